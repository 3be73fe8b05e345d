"""The bytes of a log file. No I/O here: headers are packed into, and checked in, blocks of memory.

A file is `header block · frame · frame · …`; everything starts at a multiple of `BLOCK_BYTES` and is
padded to one with zeros, so that a block that is durable is never written again. All integers are
little-endian.

    header block   magic 8 · format u32 · log id 16 · file number u64 · first sequence u64
                   · epoch u64 · crc u32
    frame          magic 4 · payload size u32 · sequence u64 · epoch u64 · file number u64 · offset u64
                   · payload crc u32 · header crc u32 · payload

Each header says, under its crc, where it belongs: in which log (the log's random id is in every crc),
which file and at which offset. So neither a stale frame in a recycled file, nor a payload that carries
the image of a frame, can pass for a live frame. A frame's header has a crc of its own, so that a frame
whose payload is damaged still proves that the frames before it were once durable.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from nadi.errors import DataFolderVersionError

BLOCK_BYTES = 4096  # what disks write whole, and what O_DIRECT asks for; also the page size
FORMAT = 1
FRAME_MAGIC = b"nadf"

_FILE_MAGIC = b"nadi-log"
_FILE_HEADER = struct.Struct("<8sI16sQQQ")
_FRAME_HEADER = struct.Struct("<4sIQQQQI")
_CRC = struct.Struct("<I")
FRAME_HEADER_BYTES = _FRAME_HEADER.size + _CRC.size
FRAME_MAX_PAYLOAD_BYTES = 0xFFFF_FFFF

_LOG_FILE_NAME = re.compile(r"log-(\d{16})\.nadi")


def log_file_name(number: int) -> str:
    return f"log-{number:016d}.nadi"


def log_file_number(name: str) -> int | None:
    """The number in a log file's name, or None for any other file.

    >>> log_file_number("log-0000000000000012.nadi"), log_file_number("epoch")
    (12, None)
    """
    match = _LOG_FILE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def padded(size: int) -> int:
    """`size` rounded up to whole blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def frame_bytes(payload_bytes: int) -> int:
    """What a frame takes in its file."""
    return padded(FRAME_HEADER_BYTES + payload_bytes)


class FileHeader(NamedTuple):
    """What the first block of a log file says; every frame of the file is of this epoch."""

    log_id: bytes
    number: int
    first_sequence: int
    epoch: int

    def encode(self) -> bytes:
        fields = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT, *self)
        return (fields + _CRC.pack(crc32c(fields))).ljust(BLOCK_BYTES, b"\0")

    @classmethod
    def decode(cls, block: bytes | memoryview, path: Path) -> FileHeader | None:
        """The header in `block`, or None if it is torn, damaged or was never written.

        Raises:
            DataFolderVersionError: it is whole, and of another format.
        """
        if len(block) < _FILE_HEADER.size + _CRC.size:
            return None
        magic, version, log_id, number, first_sequence, epoch = _FILE_HEADER.unpack_from(block)
        (crc,) = _CRC.unpack_from(block, _FILE_HEADER.size)
        if magic != _FILE_MAGIC or crc != crc32c(block[: _FILE_HEADER.size]):
            return None
        if version != FORMAT:
            raise DataFolderVersionError(str(path.parent), version, FORMAT)
        return cls(log_id, number, first_sequence, epoch)


class FrameHeader(NamedTuple):
    """What stands before a frame's payload; `offset` is the header's own place in file `number`."""

    payload_bytes: int
    sequence: int
    epoch: int
    number: int
    offset: int
    payload_crc: int

    def encode_into(self, block: memoryview, log_id: bytes) -> None:
        _FRAME_HEADER.pack_into(block, 0, FRAME_MAGIC, *self)
        crc = crc32c(block[: _FRAME_HEADER.size], crc32c(log_id))
        _CRC.pack_into(block, _FRAME_HEADER.size, crc)

    @classmethod
    def decode(cls, block: memoryview, log_id: bytes, number: int, offset: int) -> FrameHeader | None:
        """The header in `block` if it is whole and belongs to exactly this place, else None."""
        if block[:4] != FRAME_MAGIC or len(block) < FRAME_HEADER_BYTES:
            return None
        (crc,) = _CRC.unpack_from(block, _FRAME_HEADER.size)
        if crc != crc32c(block[: _FRAME_HEADER.size], crc32c(log_id)):
            return None
        header = cls._make(_FRAME_HEADER.unpack_from(block)[1:])
        return header if (header.number, header.offset) == (number, offset) else None
