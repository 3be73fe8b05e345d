"""Files for a log to write to, prepared ahead by a thread of their own, so that rotation never waits.

Preparing file N takes a spare (a file that `truncate` released) or fills a new one with zeros, gives it
the name of log file N and makes that durable. It has no valid header yet, so a restart sees that it was
only prepared. Released files come back through `recycle`, lowest first and each durably, so that a
crash never leaves a gap in the numbers. The first new files are small, so that a server that is given
little to store takes little of the disk; each is twice as large as the one before, up to the full size.

A disk that has no room for the next file is checked again every second, and whenever a file is released. A new file
never takes the last of the disk: the state and the chunks, through which the log is emptied, need room too. In
addition one small file is kept aside, its blocks allocated: on a full disk it takes the frames of what frees room.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nadi.errors import ClosedError
from nadi.limits import LOG_FIRST_FILE_BYTES, LOG_KEPT_BYTES
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.disk import is_no_room
from nadi.segmentstore.tier1.fence import Fence
from nadi.segmentstore.tier1.layout import log_file_name

_PAUSE_S = 0.005  # between two pieces of a new file that nobody waits for yet
_LOOK_AGAIN_S = 1.0  # on a full disk
_KEPT_FILE = "kept-aside"


class PreparedFile(NamedTuple):
    number: int
    path: Path
    fd: int  # for writing; the taker closes it
    size_bytes: int
    is_kept: bool = False  # the one that was kept aside


class FileSupply:
    """Prepares one file ahead; keeps at most `spare_files` released ones, if they have the full size."""

    def __init__(self, folder: Path, file_bytes: int, spare_files: int, fence: Fence, *, direct: bool) -> None:
        self._folder, self._file_bytes, self._spare_files = folder, file_bytes, spare_files
        self._fence, self._direct = fence, direct
        self._new_bytes = min(LOG_FIRST_FILE_BYTES, file_bytes)  # of the next new file
        self._least_bytes = self._new_bytes
        self._kept_bytes = min(LOG_KEPT_BYTES, file_bytes)
        self._spares: list[Path] = []
        self._names = itertools.count(1)
        self._wanted = threading.Event()  # somebody waits for the file being prepared
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outcome = threading.Condition()  # over the three that follow
        self.ready: PreparedFile | None = None  # the file that was asked for
        self.failure: Exception | None = None  # why it could not be prepared; if the disk is full, the thread retries
        self.is_full = False  # the disk has no room for the next file
        self._closed = False
        self._number = 0  # of the file that was asked for
        self._has_kept = False
        self._thread = threading.Thread(target=self._run, name=f"nadi-log-files-{folder.name}", daemon=True)

    def start(self, left_over: list[Path], *, reuse: bool) -> None:
        """Start, with the files that a former owner had prepared; its spares are found here.

        Without `reuse` they are deleted: in a log without files in use the numbers start again, and a
        stale frame of the same number could be taken for a live one.
        """
        for temporary in self._folder.glob("new-*.tmp"):
            temporary.unlink()
        former = sorted(self._folder.glob("spare-*.nadi"))
        kept = self._folder / _KEPT_FILE
        if not reuse:
            for path in [*former, *left_over]:
                path.unlink()
            kept.unlink(missing_ok=True)
            former, left_over = [], []
        self._has_kept = _has_all(kept, self._kept_bytes)
        if not self._has_kept:
            kept.unlink(missing_ok=True)  # it would fail when it is needed: another is created
        self._names = itertools.count(max((int(path.stem[6:]) for path in former), default=0) + 1)
        for path in former:
            if _has_all(path, self._file_bytes):
                self._keep_or_delete(path, rename=False)
            else:
                path.unlink()
        for path in left_over:
            if _has_all(path, path.stat().st_size):
                self._keep_or_delete(path)
            else:
                path.unlink()
        disk.sync_folder(self._folder)
        self._thread.start()

    def request(self, number: int) -> None:
        """Have log file `number` prepared; `take` returns it."""
        with self._outcome:
            self._number, self.ready, self.failure, self.is_full = number, None, None, False
        self._jobs.put(self._prepare)

    def room_to_spare(self) -> int:
        """Bytes that the log may still take of the disk."""
        return disk.room_to_spare(self._folder)

    @property
    def kept_bytes(self) -> int:
        """Size of the file kept aside; 0: it is in use, or there was never room for it."""
        return self._kept_bytes if self._has_kept else 0

    def settle(self) -> None:
        """Wait until the file last requested is ready, or unavailable; blocking."""
        self._wanted.set()
        with self._outcome:
            self._outcome.wait_for(lambda: self.ready or self.failure or self._closed)
        self._wanted.clear()

    def take(self) -> PreparedFile:
        """Wait for the file last requested; on a full disk it is the one kept aside.

        Raises:
            OSError: it can't be prepared, not even at a second try.
            ClosedError: another owner has opened the log.
        """
        self.settle()
        if isinstance(self.failure, OSError):  # maybe from long ago; the disk may have room by now
            tried = threading.Event()

            def try_again() -> None:
                self._prepare(kept_will_do=True)
                tried.set()

            self._wanted.set()
            self._jobs.put(try_again)
            tried.wait()
            self._wanted.clear()
        with self._outcome:
            file, self.ready = self.ready, None
        if file is None:
            raise self.failure or ClosedError("the log is being closed")
        return file

    def recycle(self, path: Path) -> None:
        """A file whose frames were all released: keep it as a spare, or delete it."""
        self._jobs.put(partial(self._recycle, path))

    def close(self) -> None:
        """Finish what was asked for, and stop; blocking."""
        self._wanted.set()
        self._jobs.put(None)
        self._thread.join()
        with self._outcome:
            self._closed = True
            self._outcome.notify_all()
        if self.ready is not None:
            os.close(self.ready.fd)
            self.ready = None

    # --- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_LOOK_AGAIN_S if self.is_full else None)
            except queue.Empty:
                job = self._prepare
            if job is None:
                return
            job()

    def _prepare(self, *, kept_will_do: bool = False) -> None:
        if self.ready is not None:  # an earlier try has brought it
            return
        number = self._number
        path = self._folder / log_file_name(number)
        is_kept = False
        try:
            self._fence.check()
            try:
                source = self._spares.pop() if self._spares else self._new_file(path)
            except OSError as error:
                if not (kept_will_do and self._has_kept and is_no_room(error)):
                    raise
                source, is_kept, self._has_kept = self._folder / _KEPT_FILE, True, False
            source.rename(path)
            disk.sync_folder(self._folder)
            fd = disk.open_file(path, os.O_RDWR, direct=self._direct)
            self._tell(PreparedFile(number, path, fd, path.stat().st_size, is_kept))
        except Exception as error:  # the taker gets it
            self._tell(error)
        self._keep_aside()  # which may fit where no other file does

    def _tell(self, outcome: PreparedFile | Exception) -> None:
        with self._outcome:
            self.ready = outcome if isinstance(outcome, PreparedFile) else None
            self.failure = outcome if isinstance(outcome, Exception) else None
            self.is_full = is_no_room(self.failure)
            self._outcome.notify_all()

    def _new_file(self, path: Path) -> Path:
        """A file full of zeros: a smaller one, where the disk has not enough room for what would be next."""
        room = disk.room_to_spare(self._folder)
        size_bytes = self._new_bytes
        while size_bytes > room and size_bytes // 2 >= self._least_bytes:
            size_bytes //= 2
        if size_bytes > room:
            raise OSError(errno.ENOSPC, f"only {max(0, room):,} bytes of the disk may be taken by the log", str(path))
        temporary = path.with_name(f"new-{path.stem}.tmp")
        fd = disk.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, direct=self._direct)
        try:
            disk.write_zeros(fd, size_bytes, partial(self._wanted.wait, _PAUSE_S))
        except OSError:
            temporary.unlink()  # give the room back
            raise
        finally:
            os.close(fd)
        if size_bytes == self._new_bytes:
            self._new_bytes = min(2 * self._new_bytes, self._file_bytes)
        return temporary

    def _keep_aside(self) -> None:
        """Create the small file for a full disk, if there is room for it and it doesn't exist yet."""
        if self._has_kept or disk.room_to_spare(self._folder) < self._kept_bytes:
            return
        path = self._folder / _KEPT_FILE
        with contextlib.suppress(OSError):  # then there is none, until a file is prepared again
            fd = disk.open_file(path, os.O_RDWR | os.O_CREAT, direct=False)
            try:
                os.posix_fallocate(fd, 0, self._kept_bytes)
                os.fsync(fd)
                self._has_kept = True
            finally:
                os.close(fd)
                if not self._has_kept:
                    path.unlink()

    def _recycle(self, path: Path) -> None:
        # A file that can't be recycled stays: a restart finds it below the frames it needs.
        with contextlib.suppress(OSError, ClosedError):
            self._fence.check()
            self._keep_or_delete(path)
            disk.sync_folder(self._folder)
        if self.is_full:
            self._prepare()

    def _keep_or_delete(self, path: Path, *, rename: bool = True) -> None:
        """Keep the file for whatever use it has; delete it if the disk is short of room."""
        size_bytes = path.stat().st_size
        if rename and size_bytes == self._kept_bytes and not self._has_kept:
            path.rename(self._folder / _KEPT_FILE)
            self._has_kept = True
        elif (
            len(self._spares) < self._spare_files
            and size_bytes == self._file_bytes
            and disk.room_to_spare(self._folder) >= 0
        ):
            if rename:
                path = path.rename(self._folder / f"spare-{next(self._names):08d}.nadi")
            self._spares.append(path)
        else:
            path.unlink()


def _has_all(path: Path, size_bytes: int) -> bool:
    """Whether it is a file of that size with all its blocks allocated: it can be written on a full disk."""
    return path.is_file() and path.stat().st_size == size_bytes and disk.held_bytes(path) >= size_bytes
