"""Computes the checksums of a chunk's data: one for each block of `BLOCK_BYTES`, the last one shorter.

Each is seeded with the chunk's name and the block's number, so that a block of another chunk or position is detected.
Extents and descriptions store them packed as u32, little-endian, one after the other.

A chunk object has a description after its data: the segment, checksums, and positions where events may begin.

    object     data · description, msgpack · footer
    footer     size of the description u32 · its crc32c, seeded with the chunk's name, u32 · magic 8 (little-endian)

The data comes first, so that its positions are those of the extent. Readers don't need the description: the state has
the checksums too. It tells readers where to resume after damage, and identifies the segment if the state is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache

import msgspec
from crc32c import crc32c

from nadi.encryption.sealing import PLAIN, SealBrokenError, Sealing
from nadi.limits import MIB
from nadi.wire.fields import Buffer

BLOCK_BYTES = MIB  # stored checksums depend on this: never change it

_U32 = struct.Struct("<I")
_FOOTER = struct.Struct("<II8s")
_MAGIC = b"nadichnk"


def seed_of(name: str, block: int) -> int:
    return crc32c(_U32.pack(block), crc32c(name.encode()))


def checksums_of(name: str, parts: Sequence[Buffer]) -> bytes:
    """Return the checksums of a chunk of that name whose data is the concatenated `parts`; about 50 us per MiB."""
    checksums: list[bytes] = []
    crc, left = seed_of(name, 0), BLOCK_BYTES
    for part in parts:
        size = len(part)
        if size < left:  # almost always: appends of one frame
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


@cache
def _effects_of_bits(power: int) -> tuple[int, ...]:
    """Return the effect of each bit of a seed on the checksum of 2**power bytes."""
    if not power:
        return tuple(crc32c(b"\0", 1 << bit) ^ crc32c(b"\0") for bit in range(32))
    half = _effects_of_bits(power - 1)
    return tuple(_combined(half, effect) for effect in half)


def _combined(effects: Sequence[int], bits: int) -> int:
    combined = 0
    for effect in effects:
        if bits & 1:
            combined ^= effect
        bits >>= 1
    return combined


def _effect(seed: int, size: int) -> int:
    """Return the effect of a seed on the checksum of `size` bytes, in a few microseconds."""
    for power in range(size.bit_length()):
        if size >> power & 1:
            seed = _combined(_effects_of_bits(power), seed)
    return seed


def seeded(name: str, plain: Sequence[int], length: int) -> bytes:
    """Return the checksums of a chunk of that name with `length` bytes, from the unseeded ones of its blocks.

    CRC32C is linear: the effect of another seed depends only on the block's size. So nothing is read again.

    >>> seeded("a chunk", [crc32c(b"its data")], 8) == checksums_of("a chunk", [b"its data"])
    True
    """
    packed = []
    for block, crc in enumerate(plain):
        packed.append(_U32.pack(crc ^ _effect(seed_of(name, block), min(BLOCK_BYTES, length - block * BLOCK_BYTES))))
    return b"".join(packed)


def renamed(name: str, new: str, checksums: bytes, length: int) -> bytes:
    """Return the checksums that `length` bytes have in a chunk of another name; as in `seeded`, nothing is read.

    >>> renamed("a", "b", checksums_of("a", [b"its data"]), 8) == checksums_of("b", [b"its data"])
    True
    """
    packed = []
    for block, (crc,) in enumerate(_U32.iter_unpack(checksums)):
        change = seed_of(name, block) ^ seed_of(new, block)
        packed.append(_U32.pack(crc ^ _effect(change, min(BLOCK_BYTES, length - block * BLOCK_BYTES))))
    return b"".join(packed)


def damaged_blocks(name: str, checksums: bytes, first: int, data: Buffer, length: int) -> list[int]:
    """Return the numbers of the chunk's damaged blocks.

    first: the number of the block that `data` starts with. length: the correct length of `data`. checksums: of the
    entire chunk.

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
    return _U32.pack(checksum) == checksums[block * _U32.size :][: _U32.size]


class ChunkDescription(msgspec.Struct, frozen=True, array_like=True):
    """The description of a chunk. segment, offset: the segment and position of its bytes when they were moved here; a
    merge may change both. boundaries: for each block of `BLOCK_BYTES`, the first position in the data at or after the
    block's start where an append begins that doesn't continue an event, or the data's length. sequence: the frame in
    which the chunk was planned; 0: unknown."""

    container: int
    segment_id: int
    segment: str
    offset: int
    length: int
    checksums: bytes
    boundaries: tuple[int, ...]
    sequence: int = 0

    def encode(self, name: str, sealing: Sealing = PLAIN) -> bytes:
        body = bytes(sealing.seal(msgspec.msgpack.encode(self), _context(name)))
        return body + _FOOTER.pack(len(body), crc32c(body, crc32c(name.encode())), _MAGIC)

    @classmethod
    def decode(cls, name: str, tail: Buffer, sealing: Sealing = PLAIN) -> ChunkDescription | None:
        """Return the description at the end of an object of that name, or None if it is missing or damaged.

        >>> described = ChunkDescription(0, 7, "s/t/0.#epoch.0", 0, 4, b"....", (0,))
        >>> ChunkDescription.decode("a", b"data" + described.encode("a")) == described
        True
        >>> ChunkDescription.decode("b", described.encode("a"))
        """
        tail = bytes(tail)
        if len(tail) < _FOOTER.size:
            return None
        size, crc, magic = _FOOTER.unpack_from(tail, len(tail) - _FOOTER.size)
        body = tail[: -_FOOTER.size][-size:] if size else b""
        if magic != _MAGIC or len(body) < size or crc32c(body, crc32c(name.encode())) != crc:
            return None
        try:
            return msgspec.msgpack.decode(sealing.open(body, _context(name)), type=cls)
        except (SealBrokenError, msgspec.DecodeError):  # from a later version
            return None

    def resume_at(self, block: int) -> int:
        """Return the first position at or after the start of that block where an event may begin."""
        return self.boundaries[block] if block < len(self.boundaries) else self.length

    @property
    def continues(self) -> bool:
        return self.length > 0 and self.resume_at(0) > 0


def _context(name: str) -> bytes:
    return f"{name}/description".encode()


def boundaries_of(begins: Iterable[int], length: int) -> tuple[int, ...]:
    """Return the boundaries of a description, from all positions where events may begin, in order.

    >>> boundaries_of([0, 100, BLOCK_BYTES + 5], 3 * BLOCK_BYTES)
    (0, 1048581, 3145728)
    """
    boundaries: list[int] = []
    for begin in begins:
        while len(boundaries) * BLOCK_BYTES <= begin and len(boundaries) * BLOCK_BYTES < length:
            boundaries.append(begin)
    while len(boundaries) * BLOCK_BYTES < length:
        boundaries.append(length)
    return tuple(boundaries)
