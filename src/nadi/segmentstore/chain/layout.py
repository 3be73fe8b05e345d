"""Encodes and decodes a chain's objects. No I/O here. All integers are little-endian.

    header   magic 8 · kind u32 · container u32 · epoch u64 · number u64 · sequence u64 · next epoch u64 · durable u64
             · nonce 16 · payload size u32 · head size u32 · head crc u32 · number of parts u32 · table crc u32
             · header crc u32
    frame    header · payload · table: size u32 and crc u32 of each part
    seal     header

A frame is a container's, as in `tier1.layout`: its payload is a head and the parts after it, each with a checksum. All
checksums are seeded with the object's name, so that no object passes for another. `durable` is the highest number of
its epoch known to be durable when the frame was written: it distinguishes a lost number from one that was never
written. A seal ends its epoch and names the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from nadi.segmentstore.tier1.layout import (
    CHECKSUM_BYTES,
    FrameCheck,
    check_frame,
    checksum_at,
    encode_table,
    pack_checksum,
)

FRAME, SEAL = 1, 2

_MAGIC = b"nadi-cl1"
_FIELDS = struct.Struct("<8sIIQQQQQ16sIIIII")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size


class ChainPosition(NamedTuple):
    """The position of an object in its container's chain: numbers count from 1 in each epoch."""

    epoch: int
    number: int

    @property
    def next(self) -> ChainPosition:
        return ChainPosition(self.epoch, self.number + 1)


def folder_of(container: int) -> str:
    """Return the folder of all objects of a container's log.

    >>> folder_of(3)
    'log/3'
    """
    return f"log/{container}"


def name_of(container: int, position: ChainPosition) -> str:
    """Return the name of the object at that position.

    >>> name_of(3, ChainPosition(2, 17))
    'log/3/0000000000000002/0000000000000011'
    """
    return f"{folder_of(container)}/{position.epoch:016x}/{position.number:016x}"


def place_of(name: str) -> ChainPosition | None:
    """Return the position in an object's name; None for other names.

    >>> place_of("log/3/0000000000000002/0000000000000011")
    ChainPosition(epoch=2, number=17)
    """
    parts = name.split("/")
    try:
        return ChainPosition(int(parts[-2], 16), int(parts[-1], 16)) if len(parts) == 4 and parts[0] == "log" else None
    except ValueError:
        return None


class Header(NamedTuple):
    """The header of an object. sequence: the frame's, or the last one before a seal."""

    kind: int
    container: int
    epoch: int
    number: int
    sequence: int
    next_epoch: int
    durable: int
    nonce: bytes
    payload_bytes: int = 0
    head_bytes: int = 0
    head_crc: int = 0
    parts: int = 0
    table_crc: int = 0

    @property
    def place(self) -> ChainPosition:
        return ChainPosition(self.epoch, self.number)

    def encode(self) -> bytes:
        raw = _FIELDS.pack(_MAGIC, *self)
        return raw + _CRC.pack(crc32c(raw))

    @classmethod
    def decode(cls, data: memoryview, container: int, position: ChainPosition) -> Header | None:
        """Return the header of the object at that position, or None if it is damaged or another object's."""
        if len(data) < HEADER_BYTES or data[:8] != _MAGIC:
            return None
        if _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(data[: _FIELDS.size]):
            return None
        header = cls._make(_FIELDS.unpack_from(data)[1:])
        is_it = (header.container, header.place) == (container, position) and header.kind in (FRAME, SEAL)
        return header if is_it else None

    def check(self, data: memoryview) -> FrameCheck:
        """Verify all checksums of a frame; `data` is the object, possibly truncated."""
        sums = self.head_bytes, self.head_crc, self.parts, self.table_crc
        return check_frame(data, HEADER_BYTES, self.payload_bytes, *sums, _seed(self.container, self.place), 0, 0)


def encode_seal(container: int, position: ChainPosition, sequence: int, next_epoch: int, nonce: bytes) -> bytes:
    """Encode the seal that ends an epoch at that position, after the frame of that sequence."""
    return Header(SEAL, container, *position, sequence, next_epoch, 0, nonce).encode()


def encode_frame(
    container: int, position: ChainPosition, sequence: int, durable: int, nonce: bytes, parts: Sequence[bytes]
) -> tuple[list[bytes], bytes]:
    """Encode a frame's object, in pieces; also return the checksums of the parts after its head, for
    `part_is_whole`."""
    seed, head = _seed(container, position), parts[0] if parts else b""
    payload_bytes = sum(map(len, parts))
    table, checksums = encode_table(parts[1:], seed, 0, HEADER_BYTES + len(head))
    header = Header(
        FRAME,
        container,
        *position,
        sequence,
        0,
        durable,
        nonce,
        payload_bytes,
        len(head),
        checksum_at(head, seed, 0, HEADER_BYTES),
        len(checksums) // CHECKSUM_BYTES,
        checksum_at(table, seed, 0, HEADER_BYTES + payload_bytes),
    )
    return [header.encode(), *parts, table], checksums


def part_is_whole(container: int, position: ChainPosition, offset: int, data: memoryview, checksum: bytes) -> bool:
    """Verify a part at that offset of the frame's payload."""
    return pack_checksum(checksum_at(data, _seed(container, position), 0, HEADER_BYTES + offset)) == checksum


def _seed(container: int, position: ChainPosition) -> int:
    return crc32c(name_of(container, position).encode())
