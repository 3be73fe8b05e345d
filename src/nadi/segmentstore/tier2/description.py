"""A chunk object's description of itself, after its data: whose bytes they are, checksums, where events may begin.

    object     data · description, msgpack · footer
    footer     size of the description u32 · its crc32c, seeded with the chunk's name, u32 · magic 8 (little-endian)

The data comes first, so that positions in it are those of the extent. Readers don't need the description: the state
has the checksums too. It says where to resume after damage, and whose the bytes are if the state is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec
from crc32c import crc32c

from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.wire.fields import Buffer

_FOOTER = struct.Struct("<II8s")
_MAGIC = b"nadichnk"


class ChunkDescription(msgspec.Struct, frozen=True, array_like=True):
    """segment, offset: whose bytes these were when they were moved here, and from where on; a merge may move them.

    boundaries: for each block of `BLOCK_BYTES`, the first position in the data at or after the block's start where an
    append begins, not counting appends that continue an event; the data's length if there is none.
    sequence: of the frame that the chunk was planned in; 0: not known.
    """

    container: int
    segment_id: int
    segment: str
    offset: int
    length: int
    checksums: bytes
    boundaries: tuple[int, ...]
    sequence: int = 0

    def encode(self, name: str) -> bytes:
        body = msgspec.msgpack.encode(self)
        return body + _FOOTER.pack(len(body), crc32c(body, crc32c(name.encode())), _MAGIC)

    @classmethod
    def decode(cls, name: str, tail: Buffer) -> ChunkDescription | None:
        """Return the description at the end of an object of that name, or None if there is no intact one.

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
            return msgspec.msgpack.decode(body, type=cls)
        except msgspec.DecodeError:  # of a later version
            return None

    def go_on_at(self, block: int) -> int:
        """The first position at or after the start of that block where an event may begin."""
        return self.boundaries[block] if block < len(self.boundaries) else self.length

    @property
    def continues(self) -> bool:
        return self.length > 0 and self.go_on_at(0) > 0


def boundaries_of(begins: Iterable[int], length: int) -> tuple[int, ...]:
    """The boundaries of a description, from all positions where events may begin, in order.

    >>> boundaries_of([0, 100, BLOCK_BYTES + 5], 3 * BLOCK_BYTES)
    (0, 1048581, 3145728)
    """
    found: list[int] = []
    for begin in begins:
        while len(found) * BLOCK_BYTES <= begin and len(found) * BLOCK_BYTES < length:
            found.append(begin)
    while len(found) * BLOCK_BYTES < length:
        found.append(length)
    return tuple(found)
