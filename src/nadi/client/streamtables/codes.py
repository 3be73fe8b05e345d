"""Keys of rows as numbers: equal ones have equal numbers, within one table or, as hashes, in all."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
