"""Stores large runs of a segment's bytes in separate files, so that they are written only once: a full file becomes a
chunk of tier 2 by a second name (`docs/decisions/0020`).

A large run is durable in such a file before the frame that refers to it is written to the log. A thread prepares files
in advance, with all their blocks allocated: a run that finds none ready goes to the log, as small ones do. An earlier
owner's files are only read.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from crc32c import crc32c

from nadi import limits
from nadi.errors import NotFoundError
from nadi.runtime import REAL, Runtime
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.layout import BLOCK_BYTES, pack_checksum
from nadi.segmentstore.tier1.reading import read_part
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)

FOLDER = "runs"  # inside the log's folder
_NAME = re.compile(r"run-([0-9a-f]{16})")
_TRY_AGAIN_S = 5.0  # after the disk was full
_RESERVED_FILES = 8  # a file is created only if this many fit on the disk: the rest is reserved for others
_CARRIED_PART = 32  # a closed file carries at most this fraction of its size: saves memory for many small files


class BlobWrite:
    """One frame's write to one file: the bytes carried so far, and `length` bytes of a large run, up to a block
    boundary, from `position` in the file; the remainder stays in the frame. checksum: of these bytes, once written."""

    __slots__ = ("at", "carried", "checksum", "data", "file", "length", "position")

    def __init__(
        self, file: BlobFile, at: int, carried: list[Buffer], data: Buffer, position: int, length: int
    ) -> None:
        self.file, self.at, self.carried, self.data = file, at, carried, data
        self.position, self.length = position, length
        self.checksum = b""


class BlobFile:
    """A prepared file, from its first run until it has become a chunk, or is unused."""

    def __init__(self, number: int, path: Path, fd: int, size_bytes: int, segment: int, offset: int) -> None:
        self.number, self.path = number, path
        self.segment, self.next_offset = segment, offset
        self.used_at = 0.0  # on the monotonic clock
        self.end = 0  # end of the whole blocks, written or being written
        self.closed = False  # closed to further runs
        self._fd, self._size_bytes = fd, size_bytes
        self._lock = threading.Lock()  # guards the descriptor
        self._is_written = False  # a write is in progress, or about to start
        self._carried: list[Buffer] = []
        self._carried_bytes = 0
        self._crcs: list[int] = []  # of complete MiBs
        self._crc = 0

    @property
    def is_settled(self) -> bool:
        return self.closed and not self._is_written

    @property
    def length(self) -> int:
        """The number of the segment's bytes in the file, including carried ones."""
        return self.end + self._carried_bytes

    def takes(self, offset: int, size: int) -> bool:
        """Return whether a large run at that offset of the segment continues the file, and fits."""
        return not self.closed and offset == self.next_offset and self.length + size <= self._size_bytes

    def carry(self, offset: int, block: Buffer) -> bool:
        """Carry a small run, which is in the log; return False if that isn't possible: then close the file."""
        if self.closed or offset != self.next_offset or self._carried_bytes + len(block) > limits.RUN_CARRY_BYTES:
            return False
        self._carried.append(block)
        self._carried_bytes += len(block)
        self.next_offset += len(block)
        return True

    def add(self, block: Buffer) -> BlobWrite:
        """Add a large run that the file `takes`; return the write it needs. Its remainder is carried."""
        size = len(block)
        assert size >= BLOCK_BYTES, "a large run has a whole block"
        position, at = self.length, self.end
        self.end = (position + size) // BLOCK_BYTES * BLOCK_BYTES
        length = self.end - position
        piece = BlobWrite(self, at, self._carried, block, position, length)
        remainder = bytes(memoryview(block)[length:])  # a view would keep the entire run alive
        self._carried, self._carried_bytes = [remainder] if remainder else [], len(remainder)
        self.next_offset += size
        self._is_written = True
        return piece

    def drop_carried(self) -> None:
        """Before closing the file, drop carried bytes if they are many for its size; they are copied from the log."""
        if self._carried_bytes > self.end // _CARRIED_PART:
            self._carried, self._carried_bytes = [], 0

    def write(self, piece: BlobWrite, staging: memoryview) -> None:
        """Make a write durable; blocking, one at a time. `staging` is aligned, and of the write's size. Raises
        OSError."""
        try:
            self._write(piece, staging)
        finally:
            with self._lock:
                if self.closed:
                    self._close()
                self._is_written = False  # last: once the file is settled, its end may be written

    def _write(self, piece: BlobWrite, staging: memoryview) -> None:
        place = 0
        for part in [*piece.carried, memoryview(piece.data)[: piece.length]]:
            staging[place : place + len(part)] = part
            place += len(part)
        assert place == len(staging), "whole blocks"
        piece.checksum = pack_checksum(crc32c(staging[place - piece.length :]))
        disk.write_all(self._fd, staging, piece.at)
        os.fdatasync(self._fd)
        self._sum(staging, piece.at)

    def _sum(self, data: Buffer, at: int) -> None:
        view = memoryview(data)
        while view:
            left = limits.MIB - at % limits.MIB
            self._crc = crc32c(view[:left], self._crc)
            at += len(view[:left])
            view = view[left:]
            if not at % limits.MIB:
                self._crcs.append(self._crc)
                self._crc = 0

    def finish(self) -> tuple[bytes, list[int]]:
        """Return the bytes still carried, and the unseeded checksums of the entire file's MiBs; the file must be
        settled."""
        assert self.is_settled
        carried = b"".join(self._carried)
        crcs, crc = list(self._crcs), self._crc
        self._sum(carried, self.end)
        crcs_of_all = [*self._crcs, self._crc] if self.length % limits.MIB else list(self._crcs)
        self._crcs, self._crc = crcs, crc  # so that it can be repeated after a failure
        return carried, crcs_of_all

    def complete(self, tail: Sequence[Buffer]) -> None:
        """Write the bytes after the whole blocks, and truncate the file; durable. Blocking. Raises OSError."""
        data = b"".join(tail)
        fd = disk.open_file(self.path, os.O_WRONLY, direct=False)
        try:
            disk.write_all(fd, memoryview(data), self.end)
            os.ftruncate(fd, self.end + len(data))
            os.fsync(fd)
        finally:
            os.close(fd)

    def shut(self) -> None:
        """Refuse further runs; once no write is in progress, close the descriptor and free the unused space."""
        with self._lock:
            self.closed = True
            if not self._is_written:
                self._close()

    def abandon(self) -> None:
        """`shut` while no thread is writing: placed but unwritten runs are dropped."""
        self._is_written = False
        self.shut()

    def _close(self) -> None:
        if self._fd < 0:
            return
        try:
            os.ftruncate(
                self._fd, self.end
            )  # about 50 us; it may be long until the file becomes a chunk, or is deleted
        except OSError as error:  # only space is lost: `complete` retries
            log.warning("%s keeps unneeded space for now: %s", self.path, error)
        fd, self._fd = self._fd, -1
        os.close(fd)


def run_name(number: int) -> str:
    """Return the name of a separate file.

    >>> run_name(1 << 32)
    'run-0000000100000000'
    """
    return f"run-{number:016x}"


def run_number(name: str) -> int:
    """Return the number in such a name; 0 for any other name.

    >>> run_number("run-0000000100000000") == 1 << 32, run_number("container-0/000000000001/00")
    (True, 0)
    """
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else 0


class BlobReader:
    """Reads the separate files of a log; `folder` is the log's."""

    def __init__(self, folder: Path, runtime: Runtime = REAL) -> None:
        self._folder = folder / FOLDER
        self._runtime = runtime

    def numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return sorted(number for path in self._folder.iterdir() if (number := run_number(path.name)))

    def has(self, number: int, end: int) -> bool:
        """Return whether the file should have bytes up to `end`, by its size."""
        try:
            status = (self._folder / run_name(number)).stat()
        except OSError:  # such as a link to itself
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size >= end

    def read(self, number: int, position: int, length: int, checksum: bytes) -> bytes:
        """Read and verify a run; blocking. NotFoundError: the file is missing. CorruptLogError: its checksum is wrong,
        or the disk can't read it. OSError: reading failed for another reason."""
        path = self._folder / run_name(number)
        if not self.has(number, 0):  # opening a pipe in its place would block forever
            raise NotFoundError(f"{path} is missing, or not a file")
        try:
            fd = disk.open_for_reading(path)
        except FileNotFoundError:
            raise NotFoundError(f"{path} is missing") from None
        try:
            return read_part(fd, path, position, length, checksum)
        finally:
            os.close(fd)

    async def read_at(self, number: int, position: int, length: int, checksum: bytes) -> bytes:
        return await self._runtime.in_thread(self.read, number, position, length, checksum)

    def set_aside(self) -> None:
        """Link all files into a separate folder, from which they can be restored; blocking."""
        if numbers := self.numbers():
            folder = disk.free_name(self._folder.with_name(disk.aside_name(FOLDER)))
            folder.mkdir(mode=0o700)
            for number in numbers:
                os.link(self._folder / run_name(number), folder / run_name(number))
            disk.sync_folder(folder)
            disk.sync_folder(folder.parent)


class BlobFiles(BlobReader):
    """The files of one owner of the log, with its `epoch`; written as long as it is the owner. Everything except `read`
    and `has` is called from one event loop."""

    def __init__(self, folder: Path, epoch: int, name: str = "log", runtime: Runtime = REAL) -> None:
        super().__init__(folder, runtime)
        self._name = name
        self._next_number = (epoch << 32) + 1
        self._open: dict[int, BlobFile] = {}  # by segment, the most recently used last
        self._written: dict[int, BlobFile] = {}  # all files of this owner that are still used
        self._ready: list[tuple[int, Path, int]] = []  # number, path, and descriptor
        self._is_preparing = False
        self._full_until = 0.0
        self._direct: bool | None = None
        self._staging = threading.local()
        self._pool = ThreadPoolExecutor(limits.RUN_WRITERS, thread_name_prefix=f"nadi-runs-{name}")
        self._maker = ThreadPoolExecutor(1, thread_name_prefix=f"nadi-runs-ready-{name}")
        self._stopped = False

    @property
    def are_open(self) -> bool:
        return bool(self._open)

    def place(self, segment: int, offset: int, block: Buffer) -> BlobWrite | None:
        """Place a large run, or return None: then it stays in the log. A placed run must be written before the next
        call."""
        assert len(block) >= limits.RUN_LEAST_BYTES
        file = self._open.pop(segment, None)
        if file is not None and not file.takes(offset, len(block)):
            self._end(file)
            file = None
        if file is None:
            file = self._begin(segment, offset, len(block))
            if file is None:
                return None
        self._open[segment] = file
        file.used_at = self._runtime.monotonic()
        return file.add(block)

    def carry(self, segment: int, offset: int, block: Buffer) -> None:
        """Handle a small run in the log: the segment's file carries it, or is closed."""
        file = self._open.get(segment)
        if file is not None and not file.carry(offset, block):
            self._end(file)

    async def write(self, pieces: Sequence[BlobWrite]) -> None:
        """Make the writes durable; afterwards they have their checksums. OSError: the disk failed; no frame may refer
        to them."""
        writes = [self._runtime.in_thread(self._write, piece, pool=self._pool) for piece in pieces]
        error: BaseException | None = None
        for write in writes:  # wait for all of them
            try:
                await write
            except OSError as failure:
                error = failure
        if error is not None:
            raise error

    def _write(self, piece: BlobWrite) -> None:
        size = piece.file.end - piece.at
        staging = getattr(self._staging, "buffer", None)
        if staging is None or len(staging) < size:
            staging = self._staging.buffer = disk.aligned_buffer(size)
        piece.file.write(piece, memoryview(staging)[:size])

    def _begin(self, segment: int, offset: int, size: int) -> BlobFile | None:
        if size > limits.RUN_FILE_BYTES:
            return None
        if len(self._open) >= limits.RUN_FILES_OPEN:
            oldest = next(iter(self._open.values()))
            if self._runtime.monotonic() - oldest.used_at < limits.RUN_IDLE_S:
                return None  # its segment would return at once, and evict another one
            self._end(oldest)
        ready = self._ready.pop(0) if self._ready else None
        if len(self._ready) < limits.RUN_FILES_READY:
            self._prepare()
        if ready is None:
            return None
        file = BlobFile(*ready, limits.RUN_FILE_BYTES, segment, offset)
        self._written[file.number] = file
        return file

    def _end(self, file: BlobFile) -> None:
        """Refuse further runs for the file; it may be long until it is moved."""
        file.drop_carried()
        self.close_file(file)

    def written(self, number: int) -> BlobFile | None:
        """Return the file of that number, if this owner wrote it and it may become a chunk."""
        return self._written.get(number)

    def close_file(self, file: BlobFile) -> None:
        if self._open.get(file.segment) is file:
            del self._open[file.segment]
        file.shut()

    def release(self, numbers: Sequence[int]) -> None:
        """Delete files that aren't needed any more, not even for a start."""
        for number in numbers:
            file = self._written.pop(number, None)
            if file is not None:
                self.close_file(file)
        if numbers and not self._stopped:
            self._runtime.in_thread(self._delete, list(numbers), pool=self._maker)

    def forget(self, file: BlobFile) -> None:
        """Forget a file that became a chunk; `release` still deletes its name here."""
        self.close_file(file)
        self._written.pop(file.number, None)

    def _delete(self, numbers: list[int]) -> None:
        for number in numbers:
            try:
                (self._folder / run_name(number)).unlink(missing_ok=True)
            except OSError as error:  # a restart retries
                log.warning("%s can't be deleted: %s", self._folder / run_name(number), error)

    async def close(self) -> None:
        """Close everything; nothing is written."""
        self._stopped = True
        written, self._written = list(self._written.values()), {}  # meanwhile `forget` may be called
        self._open.clear()
        await self._runtime.in_thread(self._stop, written)

    def _stop(self, written: Sequence[BlobFile]) -> None:
        self._pool.shutdown()
        self._maker.shutdown()
        for file in written:
            file.abandon()
        while self._ready:  # never close one twice after a failure: its number may be another file's
            number, _, fd = self._ready.pop()
            os.close(fd)
            self._delete([number])

    def _prepare(self) -> None:
        """Start preparing files, unless that is in progress or the disk was full just now."""
        if self._is_preparing or self._stopped or self._runtime.monotonic() < self._full_until:
            return
        self._is_preparing = True
        self._runtime.in_thread(self._make_ready, pool=self._maker)

    def _make_ready(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if self._direct is None:
                self._direct = disk.supports_direct(self._folder)
                disk.sync_folder(self._folder.parent)
            while len(self._ready) < limits.RUN_FILES_READY and not self._stopped:
                self._ready.append(self._made())
        except OSError as error:
            self._full_until = self._runtime.monotonic() + _TRY_AGAIN_S
            if not disk.is_disk_full(error):
                log.warning("large runs go to the log %s, as no separate file can be created: %s", self._name, error)
        finally:
            self._is_preparing = False

    def _made(self) -> tuple[int, Path, int]:
        if disk.spare_bytes(self._folder) < _RESERVED_FILES * limits.RUN_FILE_BYTES:
            raise OSError(errno.ENOSPC, "the disk has little space left", str(self._folder))
        while (path := self._folder / run_name(self._next_number)).exists():
            self._next_number += 1
        number = self._next_number
        fd = disk.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, direct=bool(self._direct))
        try:
            os.posix_fallocate(fd, 0, limits.RUN_FILE_BYTES)
            os.fsync(fd)
            disk.sync_folder(self._folder)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        self._next_number += 1
        return number, path, fd
