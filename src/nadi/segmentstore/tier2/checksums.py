"""The checksums of a chunk's data: one for each block of `BLOCK_BYTES`, the last one shorter.

Each is seeded with the chunk's name and the block's number, so that a block of another chunk, or from another place,
never passes. Packed as u32, little-endian, one after the other: that is how extents and descriptions keep them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from nadi.limits import MIB
from nadi.wire.fields import Buffer

BLOCK_BYTES = MIB  # of stored checksums: never to be changed

_U32 = struct.Struct("<I")


def _seed(name: str, block: int) -> int:
    return crc32c(_U32.pack(block), crc32c(name.encode()))


def checksums_of(name: str, parts: Sequence[Buffer]) -> bytes:
    """The checksums of the chunk of that name whose data is `parts` end to end; some 50 us for each MiB."""
    checksums: list[bytes] = []
    crc, left = _seed(name, 0), BLOCK_BYTES
    for part in parts:
        size = len(part)
        if size < left:  # as almost all of them, which are appends of one frame
            crc, left = crc32c(part, crc), left - size
            continue
        view = memoryview(part)
        while view:
            piece, view = view[:left], view[left:]
            crc, left = crc32c(piece, crc), left - len(piece)
            if not left:
                checksums.append(_U32.pack(crc))
                crc, left = _seed(name, len(checksums)), BLOCK_BYTES
    if left < BLOCK_BYTES:
        checksums.append(_U32.pack(crc))
    return b"".join(checksums)


def damaged_blocks(name: str, checksums: bytes, first: int, data: Buffer, length: int) -> list[int]:
    """Which blocks of the chunk are not what was stored.

    first: the number of the block that `data` begins with. length: what there should be of it. checksums: of the whole
    chunk; without any (a chunk of an earlier version) only what is missing can be told.

    >>> checksums = checksums_of("a chunk", [b"its data"])
    >>> damaged_blocks("a chunk", checksums, 0, b"its data", 8), damaged_blocks("a chunk", checksums, 0, b"its dat", 8)
    ([], [0])
    """
    view, damaged = memoryview(data), []
    for begin in range(0, length, BLOCK_BYTES):
        number = first + begin // BLOCK_BYTES
        size = min(BLOCK_BYTES, length - begin)
        block = view[begin : begin + size]
        expected = checksums[number * _U32.size :][: _U32.size]
        if len(block) < size or (checksums and _U32.pack(crc32c(block, _seed(name, number))) != expected):
            damaged.append(number)
    return damaged
