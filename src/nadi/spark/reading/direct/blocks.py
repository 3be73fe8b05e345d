"""The events of a task's piece, in blocks: from tier 2, or through the server, as the option `direct` says."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nadi.client.manager.streams import stores_of
from nadi.client.reading.segment_range import read_segment_range
from nadi.model.event import EventBlock
from nadi.naming import segment_name
from nadi.spark.connections import Client
from nadi.spark.options.read import ALWAYS, NEVER, ReadOptions
from nadi.spark.reading.direct.source import LEAST_BYTES, ChunkSource
from nadi.spark.reading.tasks import Piece


def segment_blocks(options: ReadOptions, client: Client, piece: Piece) -> AsyncIterator[EventBlock]:
    """The piece's events; to be iterated over in the client's thread."""
    name = segment_name(options.scope, piece.stream, piece.segment_id)
    stores = stores_of(client.manager)
    if options.direct == NEVER or (options.direct != ALWAYS and piece.size_bytes < LEAST_BYTES):
        return read_segment_range(stores, name, piece.start, piece.end, options.on_damage)
    source = ChunkSource(options.direct)
    return read_segment_range(stores, name, piece.start, piece.end, options.on_damage, read=source.read)
