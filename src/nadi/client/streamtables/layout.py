"""Rows as they are worked on: a table's columns under numbers for names, and where each row lies in the stream.

Of two rows of a key the later is the one with the greater place (segment id, then offset). For rows of one routing key
that is the order in which they were written: within a segment it is that of offsets, and what follows a segment has a
greater id. Rows without a place of their own in that order, those of one key in segments beside each other, have the
same order each time, and no other sense.
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
    """A number for each row, the same for rows of one key and no other, and how many there may be."""
    found: Codes = np.zeros(len(rows), np.int64)
    count = 1
    for name in keys:
        codes, more = _encoded(rows[name])
        if count > 1 and count * more > len(rows) * 4:  # close the gaps, so that the product stays small
            distinct, found = np.unique(found, return_inverse=True)
            count = len(distinct)
        found, count = found * more + codes, count * more
    if count > len(rows) * 4:
        distinct, found = np.unique(found, return_inverse=True)
        count = len(distinct)
    return found, count


def _encoded(column: pa.ChunkedArray) -> tuple[Codes, int]:
    encoded = pc.dictionary_encode(column.combine_chunks())
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), max(1, len(encoded.dictionary))


def hashes_of(rows: pa.Table, keys: Sequence[str], seed: int) -> Hashes:
    """A hash of each row's key, the same wherever the key is: those of another seed have nothing to do with it."""
    found: Hashes = np.full(len(rows), np.uint64(seed * 2 + 1), np.uint64)
    for name in keys:
        found = _mixed(found + _ODD + _hashes(rows[name]))
    return found


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
    hashed = [zlib.crc32(one if isinstance(one, bytes) else one.encode()) for one in plain.to_pylist()]
    found: Hashes = np.array(hashed, np.uint64)[encoded.indices.to_numpy(zero_copy_only=False)]
    return found


def _unsigned(numbers: pa.ChunkedArray) -> Hashes:
    found: Hashes = numbers.to_numpy().astype(np.int64).view(np.uint64)
    return found


def _mixed(numbers: np.ndarray[Any, np.dtype[np.uint64]]) -> Hashes:
    """Each bit depends on all of the number's."""
    mixed: Hashes = numbers ^ (numbers >> _SHIFT)
    mixed = mixed * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return mixed * _ODD


SEGMENT, OFFSET = "segment_id", "offset"  # no table's column is named so here
OWN = (SEGMENT, OFFSET)
INSERT, BEFORE, AFTER, DELETE = "insert", "update_before", "update_after", "delete"


@dataclass(frozen=True, slots=True)
class Layout:
    """fields: the table's columns; key: those that tell rows apart; time: that of the event time, or ""."""

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
    def told(self) -> pa.Schema:
        """Of the rows, as they are given away: under the columns' own names, without what says how they changed."""
        return pa.schema([field for _, field in self._told()])

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """What was read as value, segment_id and offset, without what has no key, or says what was before a change."""
        for batch in batches:
            value, *place = batch.columns
            found = pa.Table.from_arrays([*value.flatten(), *place], schema=self.schema)
            wanted = None
            for name in self.keys:
                if found[name].null_count:
                    wanted = _both(wanted, found[name].is_valid())
            if (change := self._change) is not None:
                wanted = _both(wanted, pc.fill_null(pc.not_equal(found[change], BEFORE), True))
            yield found if wanted is None else found.filter(wanted)

    def deletes(self, rows: pa.Table) -> Flags:
        """Which of the rows delete their key: all columns but key and time are null, or the row says that it does."""
        found: Flags = np.ones(len(rows), bool)
        for name, field in self._numbered():
            if field.name in self.key or field.name in (self.time, CHANGE):
                continue
            if not rows[name].null_count:
                found[:] = False
                break
            found &= rows[name].is_null().to_numpy()
        if (change := self._change) is not None:
            found |= pc.fill_null(pc.equal(rows[change], DELETE), False).to_numpy()
        return found

    def tell(self, rows: pa.Table) -> pa.Table:
        return pa.Table.from_arrays([rows[name] for name, _ in self._told()], schema=self.told)

    def _told(self) -> list[tuple[str, pa.Field]]:
        mine = [(name, field) for name, field in self._numbered() if field.name != CHANGE]
        names = {field.name for _, field in mine}
        return [*mine, *((name, pa.field(name, pa.int64())) for name in OWN if name not in names)]

    @property
    def _change(self) -> str | None:
        return next((name for name, field in self._numbered() if field.name == CHANGE), None)

    def _numbered(self) -> list[tuple[str, pa.Field]]:
        return [(str(number), field) for number, field in enumerate(self.fields)]


def _both(first: pa.ChunkedArray | None, second: pa.ChunkedArray) -> pa.ChunkedArray:
    return second if first is None else pc.and_(first, second)
