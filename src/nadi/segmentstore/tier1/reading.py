"""Reads parts of frames by address, and verifies the frames that a replay needs, while the log is being written."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from crc32c import crc32c

from nadi.errors import CorruptLogError
from nadi.limits import MIB
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, FRAME_HEADER_BYTES, FrameHeader, checksum_at, pack_checksum
from nadi.segmentstore.tier1.log import Frame, HeadsPage, LogAddress, LogRange, PartRead
from nadi.segmentstore.tier1.recovery import LogFile, headers_in

_REPLAY_BYTES = MIB  # read at once; a replay holds two such pieces
_REPLAY_FRAMES = 1_000
_NEAR_BYTES = 64 * 1024  # a gap between two parts that is read along, as that takes no longer than a seek
_TOGETHER_BYTES = MIB  # read at once


def read_checked(
    file: LogFile, log_crc: int, address: LogAddress, offset: int, length: int, checksum: bytes = b""
) -> bytes:
    """Implement DurableLog.read_at for a file open for reading; blocking. CorruptLogError: the bytes are damaged or
    missing, or the disk can't read them. OSError: reading failed for another reason."""
    place = address.offset + offset
    if checksum:
        seed = checksum_at(b"", log_crc, file.number, place)
        return read_part(file.read_fd, file.path, place, length, checksum, seed)
    begin = address.offset // BLOCK_BYTES * BLOCK_BYTES
    with _readable(file.path, place):
        header = FrameHeader.decode(memoryview(os.pread(file.read_fd, BLOCK_BYTES, begin)), log_crc, file.number, begin)
        if header is None or header.sequence != address.sequence:
            raise CorruptLogError(str(file.path), begin, f"frame {address.sequence:,} is missing")
        frame = memoryview(os.pread(file.read_fd, header.content_bytes, begin))
    if not header.check(frame, log_crc).is_whole:
        raise CorruptLogError(str(file.path), begin, f"frame {address.sequence:,} has a wrong checksum")
    data = bytes(frame[address.offset - begin + offset :][:length])
    assert len(data) == length, "a read stays inside its frame"
    return data


def read_near(file: LogFile, log_crc: int, parts: Sequence[LogRange]) -> list[PartRead]:
    """`read_checked` for parts of one file; nearby parts are read at once. OSError: reading failed."""
    results: dict[int, PartRead] = {}
    places = [part.address.offset + part.offset for part in parts]
    in_order = sorted(range(len(parts)), key=places.__getitem__)
    at = 0
    while at < len(in_order):
        begin = end = places[in_order[at]]
        group: list[int] = []
        for number in in_order[at:]:
            part_end = places[number] + parts[number].length
            if group and (places[number] > end + _NEAR_BYTES or part_end > begin + _TOGETHER_BYTES):
                break
            end = max(end, part_end)
            group.append(number)
        data = b""
        if len(group) > 1:
            with contextlib.suppress(OSError):  # one bad block fails the entire read: then read one by one
                data = os.pread(file.read_fd, end - begin, begin)
        for number in group:
            address, offset, length, checksum = parts[number]
            piece = data[places[number] - begin :][:length] if len(data) == end - begin else b""
            seed = checksum_at(b"", log_crc, file.number, places[number])
            if piece and checksum and pack_checksum(crc32c(piece, seed)) == checksum:
                results[number] = piece
                continue
            try:
                results[number] = read_checked(file, log_crc, address, offset, length, checksum)
            except CorruptLogError as error:
                results[number] = error
        at += len(group)
    return [results[number] for number in range(len(parts))]


def read_part(fd: int, path: Path, place: int, length: int, checksum: bytes, seed: int = 0) -> bytes:
    """Read bytes of a file and verify their checksum; blocking. Raises as `read_checked`."""
    with _readable(path, place):
        data = os.pread(fd, length, place)
    if len(data) < length:
        raise CorruptLogError(str(path), place, f"the file ends within the expected {length:,} bytes")
    if pack_checksum(crc32c(data, seed)) != checksum:
        raise CorruptLogError(str(path), place, f"{length:,} bytes have a wrong checksum")
    return data


@contextlib.contextmanager
def _readable(path: Path, place: int) -> Iterator[None]:
    """Map a disk's read error to CorruptLogError."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CorruptLogError(str(path), place, f"the disk can't read it ({error})") from error


def read_heads(
    file: LogFile, log_crc: int, place: tuple[int, int], stop: int, after_sequence: int, most_bytes: int
) -> HeadsPage:
    """Verify what a replay after `after_sequence` needs: the frames' headers, heads, and tables of checksums. place:
    position and sequence of the first frame. Ends before frame `stop`, or after `most_bytes` or slightly more; data is
    skipped. `file` is open for reading; blocking. OSError: reading failed, other than for an unreadable block."""
    position, sequence = place
    read_bytes = 0
    damages: list[CorruptLogError] = []
    while sequence < stop and read_bytes < most_bytes:
        block = memoryview(_read_readable(file, position, BLOCK_BYTES))
        read_bytes += BLOCK_BYTES
        header = FrameHeader.decode(block, log_crc, file.number, position)
        if header is None or (header.sequence, header.epoch) != (sequence, file.epoch):
            header, looked_at_bytes = _later(file, log_crc, position + BLOCK_BYTES, sequence, stop)
            read_bytes += looked_at_bytes
            end = header.sequence if header is not None else stop
            if end > after_sequence + 1:
                first = max(sequence, after_sequence + 1)
                problem = f"frames {first:,} to {end - 1:,} can't be read: the header of the first is damaged"
                damages.append(CorruptLogError(str(file.path), position, problem))
            if header is None:
                return HeadsPage(position, stop, read_bytes, tuple(damages))
            position, sequence = header.offset, header.sequence
            continue
        if sequence > after_sequence:
            size = FRAME_HEADER_BYTES + header.head_bytes
            if size > len(block):
                block = memoryview(_read_readable(file, position, size))
                read_bytes += size
            if not header.check(block[:size], log_crc).head_is_whole:
                problem = f"the head of frame {sequence:,} can't be read, or has a wrong checksum"
                damages.append(CorruptLogError(str(file.path), position, problem))
            elif header.parts:
                begin = FRAME_HEADER_BYTES + header.payload_bytes
                table = _read_readable(file, position + begin, header.content_bytes - begin)
                read_bytes += len(table)
                if checksum_at(table, log_crc, file.number, position + begin) != header.table_crc:
                    problem = f"the checksums of the data of frame {sequence:,} can't be read, or are wrong"
                    damages.append(CorruptLogError(str(file.path), position + begin, problem))
        position += header.frame_bytes
        sequence += 1
    return HeadsPage(position, sequence, read_bytes, tuple(damages))


def _later(file: LogFile, log_crc: int, position: int, sequence: int, stop: int) -> tuple[FrameHeader | None, int]:
    """Return the first header from `position` on of a frame between the two sequences, and the number of bytes read."""
    begin = position
    while position < file.end:
        chunk = _read_readable(file, position, MIB)
        for header in headers_in(chunk, log_crc, file.number, position):
            if header.epoch == file.epoch and sequence < header.sequence < stop:
                return header, position + len(chunk) - begin
        position += MIB
    return None, position - begin


def _read_readable(file: LogFile, position: int, length: int) -> bytes:
    try:
        return os.pread(file.read_fd, length, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def next_batch(frames: Iterator[Frame]) -> list[Frame]:
    """Return the next frames of a replay, up to a limit; empty at the end."""
    batch, size_bytes = [], 0
    for frame in frames:
        batch.append(frame)
        size_bytes += len(frame.payload)
        if size_bytes >= _REPLAY_BYTES or len(batch) == _REPLAY_FRAMES:
            break
    return batch
