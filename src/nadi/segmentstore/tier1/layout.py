"""Encodes and decodes a log file's blocks. No I/O here: headers are packed into, and checked in, blocks of memory.

A file is `header block · frame · frame · …`; everything starts at a multiple of `BLOCK_BYTES` and is padded to one with
zeros, so that a durable block is never written again. All integers are little-endian.

    header block   magic 8 · format u32 · log id 16 · file number u64 · first sequence u64
                   · epoch u64 · crc u32 · file size u64 · crc u32
    frame          magic 4 · payload size u32 · sequence u64 · epoch u64 · file number u64 · offset u64
                   · head size u32 · head crc u32 · number of parts u32 · table crc u32 · header crc u32
                   · payload · table: size u32 and crc u32 of each part

A payload is its head and the parts after it, each with a checksum. So damage is confined to one part, an intact head
can be replayed although its data is damaged, and a part can be read and verified alone. Every checksum is seeded with
the log's random id and the position on disk: so a stale frame in a recycled file, a misplaced block, or a payload that
contains an image of a frame, is never accepted.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from nadi.errors import DataFolderVersionError

BLOCK_BYTES = 4096  # the unit of disk writes, required by O_DIRECT; also the page size
FORMAT = 2
FRAME_MAGIC = b"nad2"

_FILE_MAGIC = b"nadi-log"
_FILE_HEADER = struct.Struct("<8sI16sQQQ")
_FILE_SIZE = struct.Struct("<Q")
_FRAME_HEADER = struct.Struct("<4sIQQQQIIII")
_PLACE = struct.Struct("<QQ")
_PART = struct.Struct("<II")
_CRC = struct.Struct("<I")
FRAME_HEADER_BYTES = _FRAME_HEADER.size + _CRC.size
FRAME_MAX_PAYLOAD_BYTES = 0xFFFF_FFFF
CHECKSUM_BYTES = _CRC.size

_LOG_FILE_NAME = re.compile(r"log-(\d{16})\.nadi")


def log_file_name(number: int) -> str:
    return f"log-{number:016d}.nadi"


def log_file_number(name: str) -> int | None:
    """Return the number in a log file's name, or None for any other file.

    >>> log_file_number("log-0000000000000012.nadi"), log_file_number("epoch")
    (12, None)
    """
    match = _LOG_FILE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def padded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def frame_bytes(payload_bytes: int, parts: int = 0) -> int:
    return padded(FRAME_HEADER_BYTES + payload_bytes + parts * _PART.size)


def checksum_at(data: bytes | memoryview, log_crc: int, number: int, position: int) -> int:
    """Return the checksum of bytes at that position of file `number`; `log_crc` is the crc of the log's id."""
    return crc32c(data, crc32c(_PLACE.pack(number, position), log_crc))


pack_checksum = _CRC.pack  # the checksum as stored in an extent


class FileHeader(NamedTuple):
    """The header in a log file's first block; all its frames have this epoch. size_bytes: a lower bound of the file's
    size on disk; 0 if that field is damaged."""

    log_id: bytes
    number: int
    first_sequence: int
    epoch: int
    size_bytes: int = 0

    def encode(self) -> bytes:
        fields = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT, *self[:4])
        fields += _CRC.pack(crc32c(fields)) + _FILE_SIZE.pack(self.size_bytes)
        return (fields + _CRC.pack(crc32c(fields))).ljust(BLOCK_BYTES, b"\0")

    @classmethod
    def decode(cls, block: bytes | memoryview, path: Path) -> FileHeader | None:
        """Decode the header in `block`; return None if it is torn, damaged or was never written.
        DataFolderVersionError: it is intact, but has another format."""
        if len(block) < _FILE_HEADER.size + 2 * _CRC.size + _FILE_SIZE.size:
            return None
        magic, version, log_id, number, first_sequence, epoch = _FILE_HEADER.unpack_from(block)
        (crc,) = _CRC.unpack_from(block, _FILE_HEADER.size)
        if magic != _FILE_MAGIC or crc != crc32c(block[: _FILE_HEADER.size]):
            return None
        if version != FORMAT:
            raise DataFolderVersionError(str(path.parent), version, FORMAT)
        size_bytes, end = 0, _FILE_HEADER.size + _CRC.size + _FILE_SIZE.size
        if crc32c(block[:end]) == _CRC.unpack_from(block, end)[0]:
            (size_bytes,) = _FILE_SIZE.unpack_from(block, end - _FILE_SIZE.size)
        return cls(log_id, number, first_sequence, epoch, size_bytes)


class FrameCheck(NamedTuple):
    """The verification of a frame: whether its head is intact, and the numbers, from 0, of damaged parts."""

    head_is_whole: bool
    checksums: bytes  # of the parts, u32 each; empty if unknown
    damaged_parts: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return self.head_is_whole and not self.damaged_parts


class FrameHeader(NamedTuple):
    """The header before a frame's payload; `offset` is the header's position in file `number`."""

    payload_bytes: int
    sequence: int
    epoch: int
    number: int
    offset: int
    head_bytes: int
    head_crc: int
    parts: int
    table_crc: int

    @property
    def content_bytes(self) -> int:
        return FRAME_HEADER_BYTES + self.payload_bytes + self.parts * _PART.size

    @property
    def frame_bytes(self) -> int:
        return padded(self.content_bytes)

    def encode_into(self, block: memoryview, log_crc: int) -> None:
        _FRAME_HEADER.pack_into(block, 0, FRAME_MAGIC, *self)
        _CRC.pack_into(block, _FRAME_HEADER.size, crc32c(block[: _FRAME_HEADER.size], log_crc))

    @classmethod
    def decode(cls, block: memoryview, log_crc: int, number: int, offset: int) -> FrameHeader | None:
        """Decode the header in `block`; return None if it is damaged or belongs to another position."""
        if block[:4] != FRAME_MAGIC or len(block) < FRAME_HEADER_BYTES:
            return None
        (crc,) = _CRC.unpack_from(block, _FRAME_HEADER.size)
        if crc != crc32c(block[: _FRAME_HEADER.size], log_crc):
            return None
        header = cls._make(_FRAME_HEADER.unpack_from(block)[1:])
        return header if (header.number, header.offset) == (number, offset) else None

    @staticmethod
    def resembles(block: memoryview, sequence: int, epoch: int, number: int, offset: int) -> bool:
        """Return whether this is a damaged header of exactly this frame: nothing else has most fields in common."""
        if len(block) < FRAME_HEADER_BYTES:
            return False
        fields: tuple[int, ...] = _FRAME_HEADER.unpack_from(block)[2:6]
        return sum(a == b for a, b in zip(fields, (sequence, epoch, number, offset), strict=True)) >= 3

    def check(self, frame: memoryview, log_crc: int) -> FrameCheck:
        """Verify all of the frame's checksums. `frame` is header, payload and table, possibly truncated."""
        sums = self.head_bytes, self.head_crc, self.parts, self.table_crc
        return check_frame(frame, FRAME_HEADER_BYTES, self.payload_bytes, *sums, log_crc, self.number, self.offset)


def check_frame(
    frame: memoryview,
    begin: int,
    payload_bytes: int,
    head_bytes: int,
    head_crc: int,
    parts: int,
    table_crc: int,
    log_crc: int,
    number: int,
    offset: int,
) -> FrameCheck:
    """Verify the checksums of a frame at `offset` of file `number`; its payload starts at `begin` in `frame`."""
    end, position = begin + payload_bytes, begin + head_bytes
    head, table = frame[begin:position], frame[end : end + parts * _PART.size]
    is_whole = len(head) == head_bytes and checksum_at(head, log_crc, number, offset + begin) == head_crc
    if len(table) < parts * _PART.size or checksum_at(table, log_crc, number, offset + end) != table_crc:
        return FrameCheck(is_whole, b"", tuple(range(parts)))
    checksums, damaged = [], []
    for part, (size, checksum) in enumerate(_PART.iter_unpack(table)):
        if checksum_at(frame[position : position + size], log_crc, number, offset + position) != checksum:
            damaged.append(part)
        checksums.append(_CRC.pack(checksum))
        position += size
    return FrameCheck(is_whole, b"".join(checksums), tuple(damaged))


def encode_table(parts: Sequence[bytes], log_crc: int, number: int, position: int) -> tuple[bytes, bytes]:
    """Return the table of consecutive parts from that position of file `number`, and their checksums alone."""
    values: list[int] = []
    for part in parts:
        size = len(part)
        values += size, crc32c(part, crc32c(_PLACE.pack(number, position), log_crc))
        position += size
    count = len(values)
    return struct.pack(f"<{count}I", *values), struct.pack(f"<{count // 2}I", *values[1::2])
