"""What keeps a few bytes of Arrow from becoming more than their reader has memory for.

A batch may be compressed, and some columns take no bytes, as those of nulls: either says how much it becomes in its
metadata, before anything is made of it. What is compressed is looked at there, and where a schema has such columns, so
is every batch. Others can't become more than they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

_MOST_TIMES = 256  # what was compressed may become so much larger: as much as LZ4 can
_FREE_BYTES = 4096  # and this much in any case
_ROWS_A_BYTE = 8  # of booleans
_CONTINUED = 0xFFFFFFFF
_I64, _I32, _U32, _U16 = (struct.Struct(f"<{kind}").unpack_from for kind in "qiIH")
_HEADER, _LENGTH, _NODES, _BUFFERS, _COMPRESSION = 2, 0, 1, 2, 3  # fields of a message, and of a batch within


def has_free_values(kind: pa.DataType) -> bool:
    """Whether values of the type, or within, may take no bytes."""
    types = pa.types
    if types.is_null(kind):
        return True
    if types.is_fixed_size_binary(kind):
        return bool(kind.byte_width == 0)
    if (types.is_fixed_size_list(kind) and kind.list_size == 0) or (types.is_struct(kind) and not kind.num_fields):
        return True
    return any(has_free_values(kind.field(number).type) for number in range(kind.num_fields))


def check_batch(event: bytes, *, has_free: bool) -> None:
    """ValueError for a batch that becomes too much; what is no batch is left to Arrow. has_free: whether its schema has
    values without bytes."""
    try:
        begin = 8 if _U32(event)[0] == _CONTINUED else 4
        batch = _field(event, begin + _U32(event, begin)[0], _HEADER)
        if not batch:
            return
        batch += _U32(event, batch)[0]
        compression = _field(event, batch, _COMPRESSION)
        size = len(event)
        if compression:
            size = sum(_sizes(event, batch, begin + _I32(event, begin - 4)[0]))
            if size > _MOST_TIMES * len(event) + _FREE_BYTES:
                raise ValueError(f"its {len(event):,} bytes were compressed, and become {size:,}")
        if has_free and any(rows > _ROWS_A_BYTE * size + _FREE_BYTES for rows in _rows(event, batch)):
            raise ValueError(f"it says that it has more rows than {size:,} bytes can have")
    except (struct.error, IndexError):
        return


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table lies, by the rules of FlatBuffers; 0 if it isn't there."""
    known = table - _I32(data, table)[0]
    at = 4 + 2 * number
    if _U16(data, known)[0] <= at:
        return 0
    offset: int = _U16(data, known + at)[0]
    return table + offset if offset else 0


def _pairs(data: bytes, batch: int, number: int) -> Iterator[tuple[int, int]]:
    """Those of a vector of pairs of numbers."""
    vector = _field(data, batch, number)
    if vector:
        vector += _U32(data, vector)[0]
        for one in range(_U32(data, vector)[0]):
            at = vector + 4 + 16 * one
            yield _I64(data, at)[0], _I64(data, at + 8)[0]


def _sizes(data: bytes, batch: int, body: int) -> Iterator[int]:
    """What compressed buffers become: each says it first, or -1 if it isn't compressed."""
    for offset, length in _pairs(data, batch, _BUFFERS):
        if length > 0:
            size = _I64(data, body + offset)[0]
            yield length if size == -1 else size if size >= 0 else 0


def _rows(data: bytes, batch: int) -> Iterator[int]:
    """Of the batch, and of each column, those within others too."""
    length = _field(data, batch, _LENGTH)
    yield _I64(data, length)[0] if length else 0
    for rows, _ in _pairs(data, batch, _NODES):
        yield rows
