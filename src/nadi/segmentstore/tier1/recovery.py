"""Reads a log's files back: determines the files in use, and reads every intact frame in order.

A start doesn't need frames up to the one that the state reflects: if they are damaged or their file is missing, the
walk resumes after them, and reading their data raises an error. For later frames, the walk distinguishes a torn tail
from damage:

* Each owner starts a new file, whose header is durable before its first frame is written. So in every file but the
last, the next header shows how far the frames must reach: an unreadable frame before that is damage.
* One frame is in flight at a time. So in the last file, the first unreadable frame counts as the torn tail of a crash,
which was never acknowledged, unless a later frame header of this log shows that it was durable once. So damage to the
last frame alone looks like a torn write; it is reported as one of the two.
* The newest frame is never released. So a log that ends before the frame that the state reflects has lost frames; one
whose last file is shorter than it was may have.
* A last file without a header was only prepared, unless it contains a frame header, or another file was prepared after
it: then it is damaged.

A frame with damaged data and an intact head is still replayed: readers of the data get the error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from nadi.errors import CorruptLogError, NotFoundError
from nadi.limits import MIB
from nadi.segmentstore.tier1.disk import open_file, open_for_reading
from nadi.segmentstore.tier1.fence import latest, read_epoch
from nadi.segmentstore.tier1.layout import (
    BLOCK_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FileHeader,
    FrameHeader,
    log_file_name,
    log_file_number,
)
from nadi.segmentstore.tier1.log import Frame, LogAddress

_logger = logging.getLogger(__name__)
_PIECE_BYTES = 4 * MIB


class _Window:
    """Reads files in order, one piece at a time."""

    def __init__(self) -> None:
        self._fd = -1
        self._begin, self._data = 0, memoryview(b"")

    def open(self, path: Path) -> None:
        self.close()
        self._fd = open_file(path, os.O_RDONLY, direct=False)

    def view(self, position: int, length: int) -> memoryview:
        if not self._begin <= position <= position + length <= self._begin + len(self._data):
            self._begin, self._data = position, memoryview(os.pread(self._fd, max(length, _PIECE_BYTES), position))
            end = position + len(self._data)
            os.posix_fadvise(self._fd, end, _PIECE_BYTES, os.POSIX_FADV_WILLNEED)  # read meanwhile
        return self._data[position - self._begin :][:length]

    def close(self) -> None:
        self._begin, self._data = 0, memoryview(b"")
        if self._fd >= 0:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(self._fd)
            self._fd = -1


@dataclass(slots=True)
class LogFile:
    """A file in use. end: the end of its frames (the file's size until the walk)."""

    number: int
    path: Path
    first_sequence: int
    epoch: int
    end: int
    size_bytes: int  # on disk, when opened
    least_bytes: int = 0  # size on disk when its use started; 0: unknown
    header_is_damaged: bool = False
    read_fd: int = -1
    readers: int = 0  # reads in progress; the file isn't recycled before they end

    def open_reading(self) -> None:
        """Open the file for single reads, unless it is open; NotFoundError if it is missing."""
        if self.read_fd < 0:
            try:
                self.read_fd = open_for_reading(self.path)
            except FileNotFoundError as error:
                raise NotFoundError(f"{self.path} is missing") from error

    def close_reading(self) -> None:
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1


@dataclass(slots=True)
class Headers:
    """A log's files: those in use, by number, and those at the end that were only prepared."""

    folder: Path
    log_id: bytes | None
    used: list[LogFile]
    prepared: list[LogFile]
    next_number: int


UNKNOWN = 1 << 62  # a sequence later than any other


def read_headers(folder: Path, log_id: bytes | None, *, refuses: bool = True) -> Headers:
    """Classify a folder's log files. log_id: None takes the first header's. A damaged header is replaced by the file's
    first frame, which has the same fields. refuses: if False, any file that may be in use counts as such, and one
    without recognizable frames starts at UNKNOWN. CorruptLogError: the headers are out of order, the last file in use
    is missing or indistinguishable from a prepared one, or the log's id is unknown."""
    files: list[LogFile] = []
    in_use: list[bool] = []
    for number, path in sorted((n, p) for p in folder.iterdir() if (n := log_file_number(p.name)) is not None):
        with path.open("rb") as stream:
            blocks = stream.read(2 * BLOCK_BYTES)
        header = FileHeader.decode(blocks[:BLOCK_BYTES], path)
        if header is not None and (header.number != number or header.log_id != (log_id or header.log_id)):
            header = None
        if header is not None:
            log_id = header.log_id
        is_damaged = header is None
        if header is None and log_id is not None:
            first = FrameHeader.decode(memoryview(blocks)[BLOCK_BYTES:], crc32c(log_id), number, BLOCK_BYTES)
            if first is not None:
                header = FileHeader(log_id, number, first.sequence, first.epoch)
        size_bytes = path.stat().st_size
        known = (header.first_sequence, header.epoch, header.size_bytes) if header else (0, 0, 0)
        first_sequence, epoch, least_bytes = known
        files.append(LogFile(number, path, first_sequence, epoch, size_bytes, size_bytes, least_bytes, is_damaged))
        in_use.append(header is not None)
    valid = max((index + 1 for index, used in enumerate(in_use) if used), default=0)
    if not refuses:
        return _all_headers(folder, log_id, files, in_use)
    used, prepared = files[:valid], files[valid:]
    last = latest(folder, log_id)
    if last > (used[-1].number if used else 0):
        path = folder / log_file_name(last)
        problem = "neither its header nor its first frame can be read" if path.exists() else "this file is missing"
        raise CorruptLogError(str(path), 0, f"{problem}, though it was the last in use")
    if valid and len(prepared) > 1:
        raise CorruptLogError(str(prepared[0].path), 0, "its header is damaged, and another file was prepared after it")
    if valid and prepared and prepared[0].number != used[-1].number + 1:  # the file between was in use
        missing = folder / log_file_name(used[-1].number + 1)
        raise CorruptLogError(str(missing), 0, "this file is missing, but later ones exist")
    following: LogFile | None = None
    for file, is_known in zip(reversed(used), reversed(in_use[:valid]), strict=True):
        if not is_known:  # its contents are unreadable: the walk reports its frames if they are needed
            assert following is not None, "the last file in use has a header"
            file.first_sequence, file.epoch = following.first_sequence, following.epoch
        elif following and (following.epoch, following.first_sequence) < (file.epoch, file.first_sequence):
            raise CorruptLogError(str(following.path), 0, "its header is older than that of the file before it")
        following = file
    if log_id is None and prepared:
        raise CorruptLogError(str(prepared[0].path), 0, "neither its header nor the epoch file can be read")
    return Headers(folder, log_id, used, prepared, files[valid - 1].number + 1 if valid else 1)


def _all_headers(folder: Path, log_id: bytes | None, files: list[LogFile], in_use: list[bool]) -> Headers:
    """Count any file that may be in use as such, so that it isn't deleted."""
    prepared: list[LogFile] = []
    if any(in_use) and not in_use[-1] and log_id and not first_frame(files[-1].path, files[-1].number, log_id):
        prepared = [files.pop()]
    first = UNKNOWN
    for file, is_known in zip(reversed(files), reversed(in_use[: len(files)]), strict=True):
        if not is_known:  # too late a sequence never releases it too early
            file.first_sequence = first
        first = min(first, file.first_sequence)
    for file, following in pairwise(files):
        following.first_sequence = max(file.first_sequence, following.first_sequence)
    next_number = prepared[0].number if prepared else files[-1].number + 1 if files else 1
    return Headers(folder, log_id, files, prepared, next_number)


def abandoned_headers(folder: Path, log_id: bytes | None) -> tuple[Headers, int]:
    """Return the headers of a log that restarts next to its old files, none in use, and the newest known epoch."""
    last = newest = 0
    for number, _, header in _each_header(folder):
        last = max(last, number)
        if header is not None:
            log_id, newest = log_id or header.log_id, max(newest, header.epoch)
    return Headers(folder, log_id, [], [], last + 1), newest


def _each_header(folder: Path) -> Iterator[tuple[int, Path, FileHeader | None]]:
    for path in folder.iterdir():
        number = log_file_number(path.name)
        if number is not None:
            with path.open("rb") as stream:
                yield number, path, FileHeader.decode(stream.read(BLOCK_BYTES), path)


def has_frames(folder: Path) -> bool:
    """Return whether any file of the log has a recognizable frame; blocking."""
    known = read_epoch(folder)
    for number, path, header in _each_header(folder) if folder.is_dir() else ():
        log_id = header.log_id if header is not None else known[0] if known is not None else None
        if log_id is not None and first_frame(path, number, log_id) is not None:
            return True
    return False


def first_in_use(folder: Path) -> int:
    """Return the first frame in the log's files, as far as known; 0 if there is none."""
    known = read_epoch(folder)
    used = read_headers(folder, known[0] if known is not None else None, refuses=False).used if folder.is_dir() else []
    return used[0].first_sequence if used and used[0].first_sequence < UNKNOWN else 0


def first_frame(path: Path, number: int, log_id: bytes) -> FrameHeader | None:
    with path.open("rb", buffering=0) as stream:
        return next(headers_of(stream.fileno(), crc32c(log_id), number), None)


def headers_of(fd: int, log_crc: int, number: int) -> Iterator[FrameHeader]:
    """Yield all intact frame headers at their correct positions in file `number`."""
    position = 0
    while chunk := os.pread(fd, MIB, position):
        yield from headers_in(chunk, log_crc, number, position)
        position += MIB


def headers_in(chunk: bytes, log_crc: int, number: int, position: int) -> Iterator[FrameHeader]:
    """Yield all intact frame headers at their correct positions in `chunk`, at `position` of file `number`."""
    for offset in range(0, len(chunk), BLOCK_BYTES):
        if chunk.startswith(FRAME_MAGIC, offset):
            block = memoryview(chunk)[offset : offset + BLOCK_BYTES]
            header = FrameHeader.decode(block, log_crc, number, position + offset)
            if header is not None:
                yield header


class _End(NamedTuple):
    """The end of a walk: the block there, and the header of a frame that isn't intact."""

    block: bytes
    torn: FrameHeader | None


class LogReplay:
    """One walk over the frames of the files in use. `next_sequence` is known at its end. is_new: the log is empty,
    whatever the state reflects."""

    def __init__(self, headers: Headers, log_id: bytes, *, is_new: bool = False) -> None:
        self._folder, self._used, self._prepared = headers.folder, headers.used, headers.prepared
        self._log_crc, self._is_new = crc32c(log_id), is_new
        self._window = _Window()
        self.next_sequence = 0
        self.dropped = ""  # the torn tail, if there is one

    def frames(self, after_sequence: int) -> Iterator[Frame]:
        """Yield every frame later than `after_sequence`. Files that end before it are not read. CorruptLogError: a
        later frame that was durable once is damaged or missing."""
        self.next_sequence = after_sequence + 1
        for file in self._used:
            if file.header_is_damaged:
                _logger.warning("%s: its header is damaged, and was reconstructed from frames", file.path)
        newest_epoch = self._used[-1].epoch if self._used else 0
        try:
            for file in self._prepared:
                self._window.open(file.path)
                for header in self._headers_from(file, BLOCK_BYTES):
                    if header.epoch >= newest_epoch:
                        problem = f"its header is damaged, though it has frame {header.sequence:,}"
                        raise CorruptLogError(str(file.path), 0, problem)
            if self._used and self._used[0].first_sequence > after_sequence + 1:
                first = self._used[0]
                problem = f"the log starts with frame {first.first_sequence:,}, not {after_sequence + 1:,}"
                raise CorruptLogError(str(first.path), 0, problem)
            if not self._used and after_sequence and not self._is_new:
                problem = f"all files of the log are missing, though the state reflects frame {after_sequence:,}"
                raise CorruptLogError(str(self._folder / log_file_name(1)), 0, problem)
            for file, following in zip(self._used, [*self._used[1:], None], strict=False):
                if following is None or following.first_sequence > after_sequence + 1:
                    yield from self._frames_of(file, following, after_sequence)
        finally:
            self._window.close()
        if self._used:
            with self._used[-1].path.open("rb") as stream:
                os.fdatasync(stream.fileno())  # a complete frame of a killed server may not be durable yet

    def _frames_of(self, file: LogFile, following: LogFile | None, after_sequence: int) -> Iterator[Frame]:
        self._window.open(file.path)
        position, sequence = BLOCK_BYTES, file.first_sequence
        stop = following.first_sequence if following else None
        end = _End(b"", None)
        while sequence != stop:  # frames after `stop` are late writes of a fenced owner
            block = bytes(self._window.view(position, BLOCK_BYTES))
            header = FrameHeader.decode(memoryview(block), self._log_crc, file.number, position)
            if header is None or (header.sequence, header.epoch) != (sequence, file.epoch):
                header = self._later(file, position, sequence)
                if header is None or (stop is not None and header.sequence >= stop):
                    end = _End(block, None)
                    break
                if header.sequence > after_sequence + 1:
                    raise _missing(file, position, max(sequence, after_sequence + 1), header.sequence)
                message = "%s: frames %d to %d, from byte %d on, can't be read; the state includes their changes"
                _logger.warning(message, file.path, sequence, header.sequence - 1, position)
                position, sequence = header.offset, header.sequence
            if sequence > after_sequence:
                frame = self._frame(file, header)
                if frame is None or frame.damaged_parts:
                    # the next header follows the frame, so blocks that `_later` searched aren't needed again
                    later = self._later(file, position + header.frame_bytes - BLOCK_BYTES, sequence)
                    if later is not None and later.sequence > sequence + (frame is not None):
                        raise _missing(file, position, sequence, later.sequence)
                    if frame is None or (later is None and following is None):
                        end = _End(block, header)
                        break
                    message = "%s: data of frame %d, at byte %d, is damaged: reads of it will fail"
                    _logger.warning(message, file.path, sequence, position)
                yield frame
            position += header.frame_bytes
            sequence += 1
        file.end = position
        if following is None:
            sequence = self._check_end(file, position, sequence, after_sequence, end)
        elif sequence != stop and following.number != file.number + 1:
            missing = file.path.with_name(log_file_name(file.number + 1))
            raise CorruptLogError(str(missing), 0, "this file is missing, but later ones exist")
        elif sequence != stop:
            problem = f"frame {sequence:,} can't be read, though the next file starts with frame {stop:,}"
            raise CorruptLogError(str(file.path), min(position, file.size_bytes), problem)
        self.next_sequence = max(self.next_sequence, sequence)

    def _frame(self, file: LogFile, header: FrameHeader) -> Frame | None:
        """Return the frame at its header; None if its head is damaged."""
        content = self._window.view(header.offset, header.content_bytes)
        check = header.check(content, self._log_crc)
        if not check.head_is_whole:
            return None
        address = LogAddress(header.sequence, file.number, header.offset + FRAME_HEADER_BYTES)
        payload = bytes(content[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + header.payload_bytes])
        return Frame(address, payload, check.checksums, check.damaged_parts)

    def _check_end(self, file: LogFile, position: int, sequence: int, after_sequence: int, end: _End) -> int:
        """Check that no frame is lost after the last file's end. Return the next frame's number."""
        place = min(position, file.size_bytes)
        if sequence <= after_sequence:
            is_the_last = sequence == after_sequence
            block = memoryview(end.block)
            if not (is_the_last and FrameHeader.resembles(block, sequence, file.epoch, file.number, position)):
                problem = f"the log ends before frame {sequence:,}, though the state reflects frame {after_sequence:,}"
                raise CorruptLogError(str(file.path), place, problem)
            message = "%s: frame %d, at byte %d, can't be read; the state includes its changes"
            _logger.warning(message, file.path, sequence, position)
            return sequence + 1
        if file.size_bytes < file.least_bytes:
            problem = f"it had {file.least_bytes:,} bytes and has {file.size_bytes:,}; frame {sequence:,} may be lost"
            raise CorruptLogError(str(file.path), place, problem)
        block = memoryview(end.block)
        if end.torn is not None or FrameHeader.resembles(block, sequence, file.epoch, file.number, position):
            self.dropped = f"frame {sequence:,}, the last of the log, at byte {position:,} of {file.path.name}"
            message = "%s: dropped %s: its write was never completed, or it was acknowledged and is damaged"
            _logger.warning(message, self._folder, self.dropped)
        return sequence

    def _later(self, file: LogFile, position: int, sequence: int) -> FrameHeader | None:
        """Return the first header after the block at `position` of a frame later than `sequence`."""
        later = self._headers_from(file, position + BLOCK_BYTES)
        return next((header for header in later if header.epoch == file.epoch and header.sequence > sequence), None)

    def _headers_from(self, file: LogFile, position: int) -> Iterator[FrameHeader]:
        """Yield all intact frame headers at their correct positions, from `position` on."""
        while chunk := bytes(self._window.view(position, MIB)):
            yield from headers_in(chunk, self._log_crc, file.number, position)
            position += MIB


def _missing(file: LogFile, position: int, sequence: int, later: int) -> CorruptLogError:
    problem = f"frame {sequence:,} can't be read, though frame {later:,} was written after it"
    return CorruptLogError(str(file.path), position, problem)
