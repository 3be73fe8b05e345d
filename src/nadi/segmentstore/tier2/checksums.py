"""The checksums of a chunk's data: one for each block of `BLOCK_BYTES`, the last one shorter.

Each is seeded with the chunk's name and the block's number, so that a block of another chunk, or from another place,
never passes. Extents and descriptions keep them packed as u32, little-endian, one after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from nadi.limits import MIB
from nadi.wire.fields import Buffer

BLOCK_BYTES = MIB  # of stored checksums: never to be changed

_U32 = struct.Struct("<I")
_ZEROS = memoryview(bytes(BLOCK_BYTES))


def seed_of(name: str, block: int) -> int:
    """The seed of the checksum of a chunk's block."""
    return crc32c(_U32.pack(block), crc32c(name.encode()))


def checksums_of(name: str, parts: Sequence[Buffer]) -> bytes:
    """The checksums of the chunk of that name whose data is `parts` end to end; takes about 50 us per MiB."""
    checksums: list[bytes] = []
    crc, left = seed_of(name, 0), BLOCK_BYTES
    for part in parts:
        size = len(part)
        if size < left:  # almost all of them are: appends of one frame
            crc, left = crc32c(part, crc), left - size
            continue
        view = memoryview(part)
        while view:
            piece, view = view[:left], view[left:]
            crc, left = crc32c(piece, crc), left - len(piece)
            if not left:
                checksums.append(_U32.pack(crc))
                crc, left = seed_of(name, len(checksums)), BLOCK_BYTES
    if left < BLOCK_BYTES:
        checksums.append(_U32.pack(crc))
    return b"".join(checksums)


def seeded(name: str, plain: Sequence[int], length: int) -> bytes:
    """The checksums of a chunk of that name with `length` bytes, from those of its blocks without a seed.

    CRC32C is linear: what another seed changes depends only on the block's size. So the data need not be read again.

    >>> seeded("a chunk", [crc32c(b"its data")], 8) == checksums_of("a chunk", [b"its data"])
    True
    """
    found = []
    for block, crc in enumerate(plain):
        zeros = _ZEROS[: min(BLOCK_BYTES, length - block * BLOCK_BYTES)]
        found.append(_U32.pack(crc ^ crc32c(zeros) ^ crc32c(zeros, seed_of(name, block))))
    return b"".join(found)


def renamed(name: str, new: str, checksums: bytes, length: int) -> bytes:
    """The checksums that the same `length` bytes have in a chunk of another name. As in `seeded`, nothing is read.

    >>> renamed("a", "b", checksums_of("a", [b"its data"]), 8) == checksums_of("b", [b"its data"])
    True
    """
    found = []
    for block, (crc,) in enumerate(_U32.iter_unpack(checksums)):
        zeros = _ZEROS[: min(BLOCK_BYTES, length - block * BLOCK_BYTES)]
        found.append(_U32.pack(crc ^ crc32c(zeros, seed_of(name, block)) ^ crc32c(zeros, seed_of(new, block))))
    return b"".join(found)


def damaged_blocks(name: str, checksums: bytes, first: int, data: Buffer, length: int) -> list[int]:
    """Return which blocks of the chunk are not what was stored.

    first: the number of the block that `data` begins with. length: how long `data` should be. checksums: of the whole
    chunk.

    >>> checksums = checksums_of("a chunk", [b"its data"])
    >>> damaged_blocks("a chunk", checksums, 0, b"its data", 8), damaged_blocks("a chunk", checksums, 0, b"its dat", 8)
    ([], [0])
    """
    view, damaged = memoryview(data), []
    for begin in range(0, length, BLOCK_BYTES):
        number = first + begin // BLOCK_BYTES
        size = min(BLOCK_BYTES, length - begin)
        block = view[begin : begin + size]
        if len(block) < size or not is_right(checksums, number, crc32c(block, seed_of(name, number))):
            damaged.append(number)
    return damaged


def is_right(checksums: bytes, block: int, checksum: int) -> bool:
    """Whether that is the block's checksum, according to its chunk's checksums."""
    return _U32.pack(checksum) == checksums[block * _U32.size :][: _U32.size]
