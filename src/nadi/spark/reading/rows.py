"""Segments to Arrow batches, inside Spark's tasks, without a Python object for each event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nadi.limits import MIB
from nadi.model.event import EventBlock
from nadi.spark.connections import begin_task, client_of
from nadi.spark.options.columns import POSITIONS
from nadi.spark.options.read import ReadOptions
from nadi.spark.reading.direct.blocks import segment_blocks
from nadi.spark.reading.positions import PositionTexts
from nadi.spark.reading.tasks import Piece

_TYPES = {
    "event": pa.binary(),
    "scope": pa.string(),
    "stream": pa.string(),
    "segment_id": pa.int64(),
    "offset": pa.int64(),
    "position_before": pa.string(),
    "position": pa.string(),
}
_BATCH_ROWS, _BATCH_BYTES = 20_000, MIB  # small blocks are joined up to one of these
_MAX_ROWS = 50_000
_Numbers = np.ndarray[Any, np.dtype[np.int64]]


def read_pieces(options: ReadOptions, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """Yield the events of the pieces, one piece after the other, each in offset order."""
    begin_task()
    client = client_of(options.controller)
    constant: dict[str, pa.Array] = {}  # the scope and stream columns: as long as the longest batch, to be sliced
    stream = None
    for piece in pieces:
        if piece.stream != stream:
            stream = piece.stream
            names = {"scope": options.scope, "stream": stream}
            constant = {name: pa.repeat(pa.scalar(text), _MAX_ROWS) for name, text in names.items()}
        made = _Batches(options, piece, constant)
        held: list[EventBlock] = []
        rows = size = 0
        for block in client.thread.each(segment_blocks(options, client, piece)):
            held.append(block)
            rows += len(block)
            size += block.size_bytes
            if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield from made.of(held)
                held, rows, size = [], 0, 0
        if held:
            yield from made.of(held)


class _Batches:
    """The columns of one piece's rows."""

    def __init__(self, options: ReadOptions, piece: Piece, constant: dict[str, pa.Array]) -> None:
        self._piece, self._constant = piece, constant
        self._schema = pa.schema([(name, _TYPES[name]) for name in options.columns])
        is_placed = any(name in options.columns for name in POSITIONS)
        self._texts = PositionTexts(options.scope, piece) if is_placed else None

    def of(self, blocks: Sequence[EventBlock]) -> Iterator[pa.RecordBatch]:
        offsets = np.concatenate([block.offsets() for block in blocks])
        columns: dict[str, pa.Array] = {"offset": pa.array(offsets)}
        if "event" in self._schema.names:
            payloads = [block.payloads() for block in blocks]
            columns["event"] = payloads[0] if len(payloads) == 1 else pa.concat_arrays(payloads)
        if self._texts is not None:
            columns |= self._positions(self._texts, offsets, blocks)
        for low in range(0, len(offsets), _MAX_ROWS):
            count = min(len(offsets) - low, _MAX_ROWS)
            some = {name: column.slice(low, count) for name, column in columns.items()}
            some |= {name: column.slice(0, count) for name, column in self._constant.items()}
            some["segment_id"] = pa.array(np.full(count, self._piece.segment_id, np.int64))
            yield pa.RecordBatch.from_arrays([some[name] for name in self._schema.names], schema=self._schema)

    def _positions(self, texts: PositionTexts, offsets: _Numbers, blocks: Sequence[EventBlock]) -> dict[str, pa.Array]:
        ends = np.concatenate([[*block.offsets()[1:], block.offset + block.size_bytes] for block in blocks])
        before = texts.of(offsets.tolist())
        if np.array_equal(ends[:-1], offsets[1:]):  # nothing was left out: one row's cut is the next one's
            after = [*before[1:], *texts.of([int(ends[-1])])]
        else:
            after = texts.of(ends.tolist())
        return {"position_before": pa.array(before, pa.string()), "position": pa.array(after, pa.string())}
