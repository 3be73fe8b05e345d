"""The internal form of rows: a table's columns under numbers as names, and each row's position in the stream.

The row of a key with the greatest position (segment id, then offset) is the latest. For rows of one routing key
this is the order of writing: offsets order a segment, and successors have greater segment ids. Rows of a key in
parallel segments have an arbitrary but stable order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nadi.client.definitions.columns import CHANGE

Codes = np.ndarray[tuple[int], np.dtype[np.int64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]
Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 by the golden ratio, as in splitmix64
_SHIFT = np.uint64(29)


def codes_of(rows: pa.Table, keys: Sequence[str]) -> tuple[Codes, int]:
    """Return a code for each row, equal for rows of the same key only, and an upper bound of the codes."""
    combined: Codes = np.zeros(len(rows), np.int64)
    count = 1
    for name in keys:
        codes, more = _encoded(rows[name])
        if count > 1 and count * more > len(rows) * 4:  # close the gaps, so that the product stays small
            distinct, combined = np.unique(combined, return_inverse=True)
            count = len(distinct)
        combined, count = combined * more + codes, count * more
    if count > len(rows) * 4:
        distinct, combined = np.unique(combined, return_inverse=True)
        count = len(distinct)
    return combined, count


def _encoded(column: pa.ChunkedArray) -> tuple[Codes, int]:
    encoded = pc.dictionary_encode(column.combine_chunks())
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), max(1, len(encoded.dictionary))


def hashes_of(rows: pa.Table, keys: Sequence[str], seed: int) -> Hashes:
    """Return a hash of each row's key, independent of its position; hashes of different seeds are unrelated."""
    hashes: Hashes = np.full(len(rows), np.uint64(seed * 2 + 1), np.uint64)
    for name in keys:
        hashes = _mixed(hashes + _ODD + _hashes(rows[name]))
    return hashes


def _hashes(column: pa.ChunkedArray) -> Hashes:
    kind = column.type
    if pa.types.is_integer(kind):
        return _unsigned(column)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        number = pa.int32() if kind.bit_width == 32 else pa.int64()
        return _unsigned(column.cast(number))
    encoded = pc.dictionary_encode(column.combine_chunks())
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    texts = encoded.dictionary
    plain = texts if pa.types.is_binary(kind) else texts.cast(pa.string())
    hashed = [zlib.crc32(text if isinstance(text, bytes) else text.encode()) for text in plain.to_pylist()]
    hashes: Hashes = np.array(hashed, np.uint64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return hashes


def _unsigned(numbers: pa.ChunkedArray) -> Hashes:
    hashes: Hashes = numbers.to_numpy().astype(np.int64).view(np.uint64)
    return hashes


def _mixed(numbers: np.ndarray[Any, np.dtype[np.uint64]]) -> Hashes:
    """Mix the bits, so that each depends on all of the number's."""
    mixed: Hashes = numbers ^ (numbers >> _SHIFT)
    mixed = mixed * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return mixed * _ODD


SEGMENT, OFFSET = "segment_id", "offset"  # no clash: the table's columns have numbers here
OWN = (SEGMENT, OFFSET)
INSERT, BEFORE, AFTER, DELETE = "insert", "update_before", "update_after", "delete"


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a table's rows. fields: its columns; key: the key's columns; time: the event time's column, or
    ""."""

    fields: tuple[pa.Field, ...]
    key: tuple[str, ...]
    time: str = ""

    @property
    def keys(self) -> list[str]:
        return [name for name, field in self._numbered() if field.name in self.key]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [*((name, field.type) for name, field in self._numbered()), *((name, pa.int64()) for name in OWN)]
        )

    @property
    def output_schema(self) -> pa.Schema:
        """The rows' schema for output: the columns' own names, without the type of change."""
        return pa.schema([field for _, field in self._output_fields()])

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Convert batches of value, segment_id and offset; omit rows without a key, and rows before an update."""
        for batch in batches:
            value, *position = batch.columns
            table = pa.Table.from_arrays([*value.flatten(), *position], schema=self.schema)
            mask = None
            for name in self.keys:
                if table[name].null_count:
                    mask = _both(mask, table[name].is_valid())
            if (change := self._change) is not None:
                mask = _both(mask, pc.fill_null(pc.not_equal(table[change], BEFORE), True))
            yield table if mask is None else table.filter(mask)

    def deletes(self, rows: pa.Table) -> Flags:
        """Return which rows delete their key: all columns except key and time are null, or it is the type of change."""
        deleted: Flags = np.ones(len(rows), bool)
        for name, field in self._numbered():
            if field.name in self.key or field.name in (self.time, CHANGE):
                continue
            if not rows[name].null_count:
                deleted[:] = False
                break
            deleted &= rows[name].is_null().to_numpy()
        if (change := self._change) is not None:
            deleted |= pc.fill_null(pc.equal(rows[change], DELETE), False).to_numpy()
        return deleted

    def output(self, rows: pa.Table) -> pa.Table:
        return pa.Table.from_arrays([rows[name] for name, _ in self._output_fields()], schema=self.output_schema)

    def _output_fields(self) -> list[tuple[str, pa.Field]]:
        fields = [(name, field) for name, field in self._numbered() if field.name != CHANGE]
        names = {field.name for _, field in fields}
        return [*fields, *((name, pa.field(name, pa.int64())) for name in OWN if name not in names)]

    @property
    def _change(self) -> str | None:
        return next((name for name, field in self._numbered() if field.name == CHANGE), None)

    def _numbered(self) -> list[tuple[str, pa.Field]]:
        return [(str(number), field) for number, field in enumerate(self.fields)]


def _both(first: pa.ChunkedArray | None, second: pa.ChunkedArray) -> pa.ChunkedArray:
    return second if first is None else pc.and_(first, second)
