"""Reading parts of frames by their address: what comes back are the bytes that were appended, or an error."""

from __future__ import annotations

import errno
import os

from nadi.errors import CorruptLogError
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, FrameHeader, checksum_at, pack_checksum
from nadi.segmentstore.tier1.log import LogAddress
from nadi.segmentstore.tier1.recovery import LogFile


def read_checked(
    file: LogFile, log_crc: int, address: LogAddress, offset: int, length: int, checksum: bytes = b""
) -> bytes:
    """As DurableLog.read_at, of a file that is open for reading; blocking.

    Raises:
        CorruptLogError: the bytes there are others, or fewer, or the disk can't read them.
        OSError: reading failed for another reason.
    """
    place = address.offset + offset
    try:
        if not checksum:
            return _of_whole_frame(file, log_crc, address, offset, length)
        data = os.pread(file.read_fd, length, place)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CorruptLogError(str(file.path), place, f"the disk can't read it ({error})") from error
    if len(data) < length:
        raise CorruptLogError(str(file.path), place, f"the file ends within frame {address.sequence:,}")
    if pack_checksum(checksum_at(data, log_crc, file.number, place)) != checksum:
        raise CorruptLogError(str(file.path), place, f"data of frame {address.sequence:,} has a wrong checksum")
    return data


def _of_whole_frame(file: LogFile, log_crc: int, address: LogAddress, offset: int, length: int) -> bytes:
    begin = address.offset // BLOCK_BYTES * BLOCK_BYTES
    block = memoryview(os.pread(file.read_fd, BLOCK_BYTES, begin))
    header = FrameHeader.decode(block, log_crc, file.number, begin)
    if header is None or header.sequence != address.sequence:
        raise CorruptLogError(str(file.path), begin, f"frame {address.sequence:,} is not there")
    frame = memoryview(os.pread(file.read_fd, header.content_bytes, begin))
    if not header.check(frame, log_crc).is_whole:
        raise CorruptLogError(str(file.path), begin, f"frame {address.sequence:,} has a wrong checksum")
    data = bytes(frame[address.offset - begin + offset :][:length])
    assert len(data) == length, "a read stays inside its frame"
    return data
