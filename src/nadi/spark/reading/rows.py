"""Segments to Arrow batches, inside Spark's tasks, without a Python object for each event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from nadi.limits import MIB
from nadi.model.event import EventBlock
from nadi.spark.connections import begin_task, client_of
from nadi.spark.options.read import ReadOptions
from nadi.spark.reading.direct.blocks import segment_blocks
from nadi.spark.reading.tasks import Piece

SCHEMA = "event binary, scope string, stream string, segment_id long, offset long"
_COLUMNS = pa.schema(
    [
        ("event", pa.binary()),
        ("scope", pa.string()),
        ("stream", pa.string()),
        ("segment_id", pa.int64()),
        ("offset", pa.int64()),
    ]
)
_BATCH_ROWS, _BATCH_BYTES = 20_000, MIB  # small blocks are joined up to one of these
_MAX_ROWS = 50_000


def read_pieces(options: ReadOptions, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """Yield the events of the pieces, one piece after the other, each in offset order."""
    begin_task()
    client = client_of(options.controller)
    constant: list[pa.Array] = []  # the scope and stream columns: as long as the longest batch, to be sliced
    stream = None
    for piece in pieces:
        if piece.stream != stream:
            stream = piece.stream
            constant = [pa.repeat(pa.scalar(name), _MAX_ROWS) for name in (options.scope, stream)]
        held: list[EventBlock] = []
        rows = size = 0
        for block in client.thread.each(segment_blocks(options, client, piece)):
            held.append(block)
            rows += len(block)
            size += block.size_bytes
            if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield from _batches(held, piece.segment_id, constant)
                held, rows, size = [], 0, 0
        if held:
            yield from _batches(held, piece.segment_id, constant)


def _batches(blocks: list[EventBlock], segment_id: int, constant: list[pa.Array]) -> Iterator[pa.RecordBatch]:
    payloads = [block.payloads() for block in blocks]
    events = payloads[0] if len(payloads) == 1 else pa.concat_arrays(payloads)
    offsets = np.concatenate([block.offsets() for block in blocks])
    for low in range(0, len(events), _MAX_ROWS):
        some = events.slice(low, _MAX_ROWS)
        scope, stream = (column.slice(0, len(some)) for column in constant)
        ids = np.full(len(some), segment_id, np.int64)
        yield pa.RecordBatch.from_arrays(
            [some, scope, stream, pa.array(ids), pa.array(offsets[low : low + _MAX_ROWS])], schema=_COLUMNS
        )
