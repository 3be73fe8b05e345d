"""Writes frames to the current log file, and rotates to the next one, which a thread has prepared (`FileSupply`), so
that rotation never waits. Everything in `FrameWriter` blocks, and is called by one thread at a time.

Preparing file N takes a spare (a file that `truncate` released) or fills a new one with zeros, renames it to log file
N, and makes that durable. It has no valid header yet, so a restart sees that it was only prepared. Released files
return through `recycle`, lowest first and each durably, so that a crash never leaves a gap in the numbers. The first
new files are small; each is twice as large as the previous one, up to the full size.

A new file never takes the last of the disk: the state and the chunks, through which the log is emptied, need space too.
In addition one small file is reserved, with its blocks allocated: on a full disk it takes the frames of operations that
free space.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from nadi.errors import ClosedError
from nadi.limits import LOG_FIRST_FILE_BYTES, LOG_RESERVE_BYTES, MIB
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.disk import is_disk_full
from nadi.segmentstore.tier1.fence import Fence, note
from nadi.segmentstore.tier1.layout import (
    BLOCK_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAX_PAYLOAD_BYTES,
    FileHeader,
    FrameHeader,
    checksum_at,
    encode_table,
    frame_bytes,
    log_file_name,
)
from nadi.segmentstore.tier1.log import AppendedFrame, LogAddress
from nadi.segmentstore.tier1.recovery import LogFile

_PAUSE_S = 0.005  # between two pieces of a new file that no append waits for yet
_RETRY_S = 1.0  # between attempts on a full disk
_RESERVE_FILE = "kept-aside"
_STAGING_BYTES = 5 * MIB  # a full frame (limits.FRAME_MAX_BYTES) and its possible overhead
_LARGE_BYTES = 64 * MIB  # more than the largest frame
_PLENTY_BYTES = 1 << 62
_SMALL_PART_BYTES = 2048  # below this, one join is faster than copying each


class PreparedFile(NamedTuple):
    number: int
    path: Path
    fd: int  # for writing; `take`'s caller closes it
    size_bytes: int
    is_reserve: bool = False  # the reserved file


class FileSupply:
    """Prepares one file ahead; stores at most `spare_files` released files, of full size only."""

    def __init__(self, folder: Path, file_bytes: int, spare_files: int, fence: Fence, *, direct: bool) -> None:
        self.folder, self._file_bytes, self._spare_files = folder, file_bytes, spare_files
        self._fence, self._direct = fence, direct
        self._new_bytes = min(LOG_FIRST_FILE_BYTES, file_bytes)  # size of the next new file
        self._least_bytes = self._new_bytes
        self._reserve_bytes = min(LOG_RESERVE_BYTES, file_bytes)
        self._spares: list[Path] = []
        self._names = itertools.count(1)
        self._awaited = threading.Event()  # an append waits for the file being prepared
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outcome = threading.Condition()  # guards the next three attributes
        self.ready: PreparedFile | None = None  # the requested file
        self.failure: Exception | None = None  # error of preparing it; the thread retries if the disk is full
        self.is_full = False  # the disk has no space for the next file
        self._closed = False
        self._number = 0  # number of the requested file
        self._has_reserve = False
        self._thread = threading.Thread(target=self._run, name=f"nadi-log-files-{folder.name}", daemon=True)

    def start(self, left_over: list[Path], *, reuse: bool) -> None:
        """Start, with the files that an earlier owner had prepared; its spares are found here. reuse: if False they are
        deleted: in a log without files in use numbers restart, and a stale frame of the same number could be mistaken
        for a live one."""
        for temporary in self.folder.glob("new-*.tmp"):
            temporary.unlink()
        former = sorted(self.folder.glob("spare-*.nadi"))
        kept = self.folder / _RESERVE_FILE
        if not reuse:
            for path in [*former, *left_over]:
                path.unlink()
            kept.unlink(missing_ok=True)
            former, left_over = [], []
        self._has_reserve = _has_all(kept, self._reserve_bytes)
        if not self._has_reserve:
            kept.unlink(missing_ok=True)  # it would fail when needed: another is created
        self._names = itertools.count(max((int(path.stem[6:]) for path in former), default=0) + 1)
        for path in [*former, *left_over]:
            if _has_all(path, path.stat().st_size):
                self._store_or_delete(path, rename=path in left_over)
            else:
                path.unlink()
        disk.sync_folder(self.folder)
        self._thread.start()

    def request(self, number: int) -> None:
        with self._outcome:
            self._number, self.ready, self.failure, self.is_full = number, None, None, False
        self._jobs.put(self._prepare)

    @property
    def reserve_bytes(self) -> int:
        """The size of the reserved file; 0 if it is in use, or never fitted the disk."""
        return self._reserve_bytes if self._has_reserve else 0

    def settle(self) -> None:
        """Wait until the requested file is ready, or unavailable; blocking."""
        self._awaited.set()
        with self._outcome:
            self._outcome.wait_for(lambda: self.ready or self.failure or self._closed)
        self._awaited.clear()

    def take(self) -> PreparedFile:
        """Wait for the requested file; on a full disk, return the reserved one. OSError: it can't be prepared, even
        after a retry. ClosedError: another owner has opened the log."""
        self.settle()
        if isinstance(self.failure, OSError):  # possibly old; the disk may have space by now
            retried = threading.Event()

            def try_again() -> None:
                self._prepare(use_reserve=True)
                retried.set()

            self._awaited.set()
            self._jobs.put(try_again)
            retried.wait()
            self._awaited.clear()
        with self._outcome:
            file, self.ready = self.ready, None
        if file is None:
            raise self.failure or ClosedError("the log is being closed")
        return file

    def recycle(self, path: Path) -> None:
        """Store a file whose frames were all released as a spare, or delete it."""
        self._jobs.put(partial(self._recycle, path))

    def close(self) -> None:
        self._awaited.set()
        self._jobs.put(None)
        self._thread.join()
        with self._outcome:
            self._closed = True
            self._outcome.notify_all()
        if self.ready is not None:
            os.close(self.ready.fd)
            self.ready = None

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_RETRY_S if self.is_full else None)
            except queue.Empty:
                job = self._prepare
            if job is None:
                return
            job()

    def _prepare(self, *, use_reserve: bool = False) -> None:
        if self.ready is not None:  # an earlier attempt succeeded
            return
        number = self._number
        path = self.folder / log_file_name(number)
        is_reserve = False
        try:
            self._fence.check()
            try:
                source = self._spares.pop() if self._spares else self._new_file(path)
            except OSError as error:
                if not (use_reserve and self._has_reserve and is_disk_full(error)):
                    raise
                source, is_reserve, self._has_reserve = self.folder / _RESERVE_FILE, True, False
            source.rename(path)
            disk.sync_folder(self.folder)
            fd = disk.open_file(path, os.O_RDWR, direct=self._direct)
            self._report(PreparedFile(number, path, fd, path.stat().st_size, is_reserve))
        except Exception as error:  # passed to `take`
            self._report(error)
        self._create_reserve()  # may fit where no other file does

    def _report(self, outcome: PreparedFile | Exception) -> None:
        with self._outcome:
            self.ready = outcome if isinstance(outcome, PreparedFile) else None
            self.failure = outcome if isinstance(outcome, Exception) else None
            self.is_full = is_disk_full(self.failure)
            self._outcome.notify_all()

    def _new_file(self, path: Path) -> Path:
        """Create a file full of zeros: a smaller one if the disk lacks space for the next size."""
        spare = disk.spare_bytes(self.folder)
        size_bytes = self._new_bytes
        while size_bytes > spare and size_bytes // 2 >= self._least_bytes:
            size_bytes //= 2
        if size_bytes > spare:
            raise OSError(errno.ENOSPC, f"the log may take only {max(0, spare):,} bytes of the disk", str(path))
        temporary = path.with_name(f"new-{path.stem}.tmp")
        fd = disk.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, direct=self._direct)
        try:
            disk.write_zeros(fd, size_bytes, partial(self._awaited.wait, _PAUSE_S))
        except OSError:
            temporary.unlink()  # free the space
            raise
        finally:
            os.close(fd)
        if size_bytes == self._new_bytes:
            self._new_bytes = min(2 * self._new_bytes, self._file_bytes)
        return temporary

    def _create_reserve(self) -> None:
        """Create the reserved file for a full disk, if there is space and it doesn't exist yet."""
        if self._has_reserve or disk.spare_bytes(self.folder) < self._reserve_bytes:
            return
        path = self.folder / _RESERVE_FILE
        with contextlib.suppress(OSError):  # retried when the next file is prepared
            fd = disk.open_file(path, os.O_RDWR | os.O_CREAT, direct=False)
            try:
                os.posix_fallocate(fd, 0, self._reserve_bytes)
                os.fsync(fd)
                self._has_reserve = True
            finally:
                os.close(fd)
                if not self._has_reserve:
                    path.unlink()

    def _recycle(self, path: Path) -> None:
        # A file that can't be recycled stays: a restart finds it below the frames it needs.
        with contextlib.suppress(OSError, ClosedError):
            self._fence.check()
            self._store_or_delete(path)
            disk.sync_folder(self.folder)
        if self.is_full:
            self._prepare()

    def _store_or_delete(self, path: Path, *, rename: bool = True) -> None:
        """Store the file as the reserve or a spare, or delete it if it isn't needed or space is short."""
        size_bytes = path.stat().st_size
        if rename and size_bytes == self._reserve_bytes and not self._has_reserve:
            path.rename(self.folder / _RESERVE_FILE)
            self._has_reserve = True
        elif (
            len(self._spares) < self._spare_files
            and size_bytes == self._file_bytes
            and disk.spare_bytes(self.folder) >= 0
        ):
            if rename:
                path = path.rename(self.folder / f"spare-{next(self._names):08d}.nadi")
            self._spares.append(path)
        else:
            path.unlink()


def _has_all(path: Path, size_bytes: int) -> bool:
    """Return whether a file has that size and all its blocks, so that it can be written on a full disk."""
    return path.is_file() and path.stat().st_size == size_bytes and disk.allocated_bytes(path) >= size_bytes


class FrameWriter:
    """Writes one frame after another, each durable before `write` returns. on_new_file: called with each file before
    its first frame is written."""

    def __init__(self, log_id: bytes, fence: Fence, supply: FileSupply, on_new_file: Callable[[LogFile], None]) -> None:
        self._log_id, self._fence, self._supply = log_id, fence, supply
        self._log_crc = crc32c(log_id)
        self._on_new_file = on_new_file
        self._next_number = 0  # known at `prepare`
        self._file: LogFile | None = None
        self._file_bytes = 0
        self._in_reserve = False  # whether the current file is the reserved one
        self._fd = -1
        self._staging = disk.aligned_buffer(_STAGING_BYTES)

    def write(self, parts: Sequence[bytes], sequence: int) -> AppendedFrame:
        """Make a frame durable. OSError: the frame may be on disk completely, partly, or not at all. ClosedError:
        another owner has opened the log."""
        head, data = (parts[0], parts[1:]) if parts else (b"", parts)
        payload_bytes = sum(map(len, parts))
        assert payload_bytes <= FRAME_MAX_PAYLOAD_BYTES, "the size field has 32 bits"
        size = frame_bytes(payload_bytes, len(data))
        self._fence.check()
        file = self._file
        if file is None or not self._fits(file, size):
            file = self._next_file(sequence)
        offset, place = file.end, file.end + FRAME_HEADER_BYTES
        table, checksums = encode_table(data, self._log_crc, file.number, place + len(head))
        frame = self._stage([*parts, table], payload_bytes + len(table), size)
        header = FrameHeader(
            payload_bytes,
            sequence,
            file.epoch,
            file.number,
            offset,
            len(head),
            checksum_at(head, self._log_crc, file.number, place),
            len(data),
            checksum_at(table, self._log_crc, file.number, place + payload_bytes),
        )
        header.encode_into(frame, self._log_crc)
        disk.write_all(self._fd, frame, offset)
        os.fdatasync(self._fd)
        self._fence.check()
        file.end = offset + size
        file.size_bytes = max(file.size_bytes, file.end)
        return AppendedFrame(LogAddress(sequence, file.number, place), checksums)

    def fits(self, payload_bytes: int, parts: int = 0) -> bool:
        """Return whether such a frame fits the current file: then `write` waits only for the disk."""
        return self._file is not None and self._fits(self._file, frame_bytes(payload_bytes, parts))

    def _fits(self, file: LogFile, size: int) -> bool:
        if self._in_reserve and self._supply.ready is not None:
            return False  # the disk has space again
        if file.end == BLOCK_BYTES:
            return True  # an empty file is enlarged if needed
        return file.end + size <= self._file_bytes

    def is_settled(self, payload_bytes: int) -> bool:
        supply = self._supply
        return supply.ready is not None or supply.failure is not None or self.fits(payload_bytes)

    @property
    def sure_bytes(self) -> int:
        if self._file is None or self._in_reserve:
            return 0
        return self._file_bytes - self._file.end - 2 * BLOCK_BYTES

    def free_bytes(self, of_reserve: float) -> int:
        supply = self._supply
        if not supply.is_full:
            if supply.ready is None or supply.ready.size_bytes >= _LARGE_BYTES:
                return _PLENTY_BYTES
            # a frame larger than its file enlarges it
            spare = disk.spare_bytes(supply.folder)
            return max(supply.ready.size_bytes, self._rest_bytes(of_reserve), spare) - 2 * BLOCK_BYTES
        return max(self._rest_bytes(of_reserve), int(of_reserve * supply.reserve_bytes) - BLOCK_BYTES) - BLOCK_BYTES

    def _rest_bytes(self, of_reserve: float) -> int:
        """Return the bytes left in the current file for frames that may use that fraction of the reserve."""
        if self._file is None:
            return 0
        not_theirs = int((1 - of_reserve) * self._file_bytes) if self._in_reserve else 0
        return self._file_bytes - self._file.end - not_theirs

    def prepare(self, number: int) -> None:
        self._next_number = number
        self._supply.request(number)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _next_file(self, first_sequence: int) -> LogFile:
        """Switch to a new file. Its header is durable before any frame: recovery relies on that."""
        prepared = self._supply.take()
        self.close()
        assert prepared.number == self._next_number, "files are taken in the order they were requested"
        self._fd, self._file_bytes, self._in_reserve = prepared.fd, prepared.size_bytes, prepared.is_reserve
        header = FileHeader(self._log_id, prepared.number, first_sequence, self._fence.epoch, prepared.size_bytes)
        block = disk.aligned_buffer(BLOCK_BYTES)
        block[:] = header.encode()
        disk.write_all(self._fd, memoryview(block), 0)
        os.fdatasync(self._fd)
        try:
            note(prepared.path.parent, self._log_id, self._next_number)
        except OSError as error:
            if not is_disk_full(error):
                raise  # else noted with the next file: on a full disk, writing frames comes first
        self._next_number += 1
        self._supply.request(self._next_number)
        self._file = LogFile(
            prepared.number, prepared.path, first_sequence, header.epoch, BLOCK_BYTES, prepared.size_bytes
        )
        self._on_new_file(self._file)
        return self._file

    def _stage(self, parts: Sequence[bytes], parts_bytes: int, size: int) -> memoryview:
        if size > len(self._staging) or len(self._staging) > _STAGING_BYTES:
            self._staging = disk.aligned_buffer(max(size, _STAGING_BYTES))
        frame = memoryview(self._staging)[:size]
        position = FRAME_HEADER_BYTES
        if parts_bytes < _SMALL_PART_BYTES * len(parts):
            parts = [b"".join(parts)]
        for part in parts:
            frame[position : position + len(part)] = part
            position += len(part)
        frame[position:] = bytes(size - position)
        return frame
