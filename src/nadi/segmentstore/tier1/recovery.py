"""Reading a log's files back: which of them are in use, and every whole frame in order.

Two steps. `read_headers` looks at the first block of each file; `Replay` then walks the frames. Nothing
is changed on disk. How a torn tail is told from damage:

* Each owner starts a file of its own, and a file's header is durable before its first frame is
  written. So in every file but the last, the next header says where the frames must reach to: one that
  can't be read before that is damage.
* One frame is in flight at a time. So in the last file, the first unreadable frame is the torn tail of
  a crash, never acknowledged, unless a later frame header of this log shows that it was durable once.
* A last file without a header was being prepared; unless it holds a frame header, then it is damaged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from nadi.errors import CorruptLogError
from nadi.limits import MIB
from nadi.segmentstore.tier1.layout import (
    BLOCK_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FileHeader,
    FrameHeader,
    frame_bytes,
    log_file_number,
)
from nadi.segmentstore.tier1.log import LogAddress
from nadi.segmentstore.tier1.window import Window

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LogFile:
    """A file in use. `end` is where its frames end (its size, as long as nobody has walked it)."""

    number: int
    path: Path
    first_sequence: int
    epoch: int
    end: int
    read_fd: int = -1
    readers: int = 0  # reads under way; the file isn't recycled before they end


@dataclass(slots=True)
class Headers:
    """A log's files: those in use, by number, and those at the end that were only prepared."""

    log_id: bytes | None
    used: list[LogFile]
    prepared: list[LogFile]
    next_number: int


def read_headers(folder: Path, log_id: bytes | None) -> Headers:
    """Sort out a folder's log files; `log_id` None takes the first header's.

    Raises:
        CorruptLogError: a file is missing between others, or the header of one that is in use is damaged.
    """
    files: list[LogFile] = []
    valid = 0
    for number, path in sorted((n, p) for p in folder.iterdir() if (n := log_file_number(p.name)) is not None):
        if files and number != files[-1].number + 1:
            missing = folder / path.name.replace(f"{number:016d}", f"{files[-1].number + 1:016d}")
            raise CorruptLogError(str(missing), 0, "this file is missing, and later ones are there")
        with path.open("rb") as stream:
            header = FileHeader.decode(stream.read(BLOCK_BYTES), path)
        if header is not None and header.number == number and header.log_id == (log_id or header.log_id):
            log_id = header.log_id
            if valid < len(files):
                raise CorruptLogError(str(files[valid].path), 0, "its header is damaged, and later files are whole")
            previous = files[-1] if files else None
            if previous and (header.epoch, header.first_sequence) < (previous.epoch, previous.first_sequence):
                raise CorruptLogError(str(path), 0, "its header is older than that of the file before it")
            valid += 1
        first_sequence, epoch = (header.first_sequence, header.epoch) if header else (0, 0)
        files.append(LogFile(number, path, first_sequence, epoch, path.stat().st_size))
    next_number = files[valid - 1].number + 1 if valid else 1
    return Headers(log_id, files[:valid], files[valid:], next_number)


class Replay:
    """One walk over the frames of the files in use. `next_sequence` is known at its end."""

    def __init__(self, headers: Headers, log_id: bytes, *, direct: bool) -> None:
        self._used, self._prepared = headers.used, headers.prepared
        self._log_id = log_id
        self._window = Window(direct=direct)
        self.next_sequence = 0

    def frames(self, after_sequence: int) -> Iterator[tuple[LogAddress, bytes]]:
        """Every frame later than `after_sequence`. Files that end before it are not read.

        Raises:
            CorruptLogError: a frame that was durable once is damaged or missing.
        """
        self.next_sequence = after_sequence + 1
        try:
            for file in self._prepared:
                self._check_no_frames(file)
            if self._used and self._used[0].first_sequence > after_sequence + 1:
                first = self._used[0]
                what = f"the log begins with frame {first.first_sequence:,}, not {after_sequence + 1:,}"
                raise CorruptLogError(str(first.path), 0, what)
            for file, following in zip(self._used, [*self._used[1:], None], strict=False):
                if following is None or following.first_sequence > after_sequence + 1:
                    yield from self._frames_of(file, following, after_sequence)
        finally:
            self._window.close()
        if self._used:
            with self._used[-1].path.open("rb") as stream:
                os.fdatasync(stream.fileno())  # a whole frame of a killed server may not be durable yet

    def _frames_of(
        self, file: LogFile, following: LogFile | None, after_sequence: int
    ) -> Iterator[tuple[LogAddress, bytes]]:
        self._window.open(file.path)
        position, sequence = BLOCK_BYTES, file.first_sequence
        stop = following.first_sequence if following else None
        while sequence != stop:  # what stands after `stop` is the late write of an owner that was fenced
            header = self._header(file, position)
            if header is None or (header.sequence, header.epoch) != (sequence, file.epoch):
                break
            frame = self._window.view(position, FRAME_HEADER_BYTES + header.payload_bytes)
            payload = frame[FRAME_HEADER_BYTES:]
            if len(payload) < header.payload_bytes or crc32c(payload) != header.payload_crc:
                break
            if sequence > after_sequence:
                yield LogAddress(sequence, file.number, position + FRAME_HEADER_BYTES), bytes(payload)
            position += frame_bytes(header.payload_bytes)
            sequence += 1
        file.end = position
        if stop is None:
            self._check_tail(file, position, sequence)
        elif sequence != stop:
            what = f"frame {sequence:,} can't be read, and the next file begins with frame {stop:,}"
            raise CorruptLogError(str(file.path), position, what)
        self.next_sequence = max(self.next_sequence, sequence)

    def _check_tail(self, file: LogFile, position: int, sequence: int) -> None:
        torn = self._header(file, position)
        torn_bytes = torn.payload_bytes if torn and torn.epoch == file.epoch else 0
        for later in self._headers_from(file, position + BLOCK_BYTES):
            if later.epoch == file.epoch and later.sequence > sequence:
                what = f"frame {sequence:,} can't be read, and frame {later.sequence:,} was written after it"
                raise CorruptLogError(str(file.path), position, what)
        if torn_bytes:
            message = "%s: dropped frame %d at byte %d, %d bytes: a write cut short, never acknowledged"
            _logger.warning(message, file.path, sequence, position, torn_bytes)

    def _check_no_frames(self, file: LogFile) -> None:
        newest_epoch = self._used[-1].epoch if self._used else 0
        self._window.open(file.path)
        for header in self._headers_from(file, BLOCK_BYTES):
            if header.epoch >= newest_epoch:
                what = f"its header is damaged, and it holds frame {header.sequence:,}"
                raise CorruptLogError(str(file.path), 0, what)

    def _header(self, file: LogFile, position: int) -> FrameHeader | None:
        block = self._window.view(position, BLOCK_BYTES)
        return FrameHeader.decode(block, self._log_id, file.number, position)

    def _headers_from(self, file: LogFile, position: int) -> Iterator[FrameHeader]:
        """All whole frame headers that belong where they stand, from `position` on."""
        while chunk := bytes(self._window.view(position, MIB)):
            for offset in range(0, len(chunk), BLOCK_BYTES):
                if chunk.startswith(FRAME_MAGIC, offset):
                    header = self._header(file, position + offset)
                    if header is not None:
                        yield header
            position += MIB
