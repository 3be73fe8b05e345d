"""The events of a task's piece, in blocks: from tier 2, or through the server, as the option `direct` says; or where
they lie alone, which the server tells."""

from __future__ import annotations

from collections.abc import AsyncIterator

from nadi.client.manager.streams import stores_of
from nadi.client.reading.event_places import event_places
from nadi.client.reading.segment_range import ReadBytes, read_segment_range
from nadi.client.segments.segment_input import read_bytes
from nadi.model.event import EventBlock, EventPlaces
from nadi.naming import segment_name
from nadi.spark.connections import Client
from nadi.spark.options.read import ALWAYS, NEVER, ReadOptions
from nadi.spark.reading.direct.source import LEAST_BYTES, ChunkSource
from nadi.spark.reading.tasks import Piece


def segment_blocks(options: ReadOptions, client: Client, piece: Piece) -> AsyncIterator[EventBlock]:
    """The piece's events; to be iterated over in the client's thread."""
    name, read = segment_name(options.scope, piece.stream, piece.segment_id), _reading(options, piece)
    return read_segment_range(stores_of(client.manager), name, piece.start, piece.end, options.on_damage, read=read)


def segment_places(options: ReadOptions, client: Client, piece: Piece) -> AsyncIterator[EventPlaces | EventBlock]:
    """Where the piece's events lie, with the same errors; to be iterated over in the client's thread."""
    name, read = segment_name(options.scope, piece.stream, piece.segment_id), _reading(options, piece)
    return event_places(stores_of(client.manager), name, piece.start, piece.end, options.on_damage, read=read)


def _reading(options: ReadOptions, piece: Piece) -> ReadBytes:
    if options.direct == NEVER or (options.direct != ALWAYS and piece.size_bytes < LEAST_BYTES):
        return read_bytes
    return ChunkSource(options.direct).read
