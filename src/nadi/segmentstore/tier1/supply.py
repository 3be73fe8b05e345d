"""Files for a log to write to, prepared ahead by a thread of their own, so that rotation never waits.

Preparing file N takes a spare (a file that `truncate` released) or fills a new one with zeros, gives it
the name of log file N and makes that durable. It has no valid header yet, so a restart sees that it was
only prepared. Released files come back through `recycle`, lowest first and each durably, so that a
crash never leaves a gap in the numbers. The first new files are small, so that a server that is given
little to store takes little of the disk; each is twice as large as the one before, up to the full size.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nadi.errors import ClosedError
from nadi.limits import LOG_FIRST_FILE_BYTES
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.fence import Fence
from nadi.segmentstore.tier1.layout import log_file_name

_PAUSE_S = 0.005  # between two pieces of a new file that nobody waits for yet


class PreparedFile(NamedTuple):
    number: int
    path: Path
    fd: int  # for writing; the taker closes it
    size_bytes: int


class FileSupply:
    """Prepares one file ahead; keeps at most `spare_files` released ones, if they have the full size."""

    def __init__(self, folder: Path, file_bytes: int, spare_files: int, fence: Fence, *, direct: bool) -> None:
        self._folder, self._file_bytes, self._spare_files = folder, file_bytes, spare_files
        self._fence, self._direct = fence, direct
        self._new_bytes = min(LOG_FIRST_FILE_BYTES, file_bytes)  # of the next new file
        self._spares: list[Path] = []
        self._names = itertools.count(1)
        self._wanted = threading.Event()  # somebody waits for the file being prepared
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[PreparedFile | Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"nadi-log-files-{folder.name}", daemon=True)

    def start(self, left_over: list[Path], *, reuse: bool) -> None:
        """Begin, with the files that a former owner had prepared; its spares are found here.

        They are deleted without `reuse`: in a log without files in use the numbers start again, and a
        stale frame of the same number could be taken for a live one.
        """
        for temporary in self._folder.glob("new-*.tmp"):
            temporary.unlink()
        former = sorted(self._folder.glob("spare-*.nadi"))
        if not reuse:
            for path in [*former, *left_over]:
                path.unlink()
            former, left_over = [], []
        self._names = itertools.count(max((int(path.stem[6:]) for path in former), default=0) + 1)
        for path in former:
            self._keep_or_delete(path, rename=False)
        for path in left_over:
            self._keep_or_delete(path)
        disk.sync_folder(self._folder)
        self._thread.start()

    def request(self, number: int) -> None:
        """Have log file `number` prepared; `take` gets it."""
        self._jobs.put(partial(self._prepare, number))

    def take(self, number: int) -> PreparedFile:
        """Wait for the file last requested.

        Raises:
            OSError: it can't be prepared, also not at a second try.
            ClosedError: another owner has opened the log.
        """
        self._wanted.set()
        try:
            file = self._ready.get()
            if isinstance(file, OSError):  # maybe of long ago; the disk may have room by now
                self.request(number)
                file = self._ready.get()
        finally:
            self._wanted.clear()
        if isinstance(file, Exception):
            raise file
        assert file.number == number, "files are taken in the order they were requested"
        return file

    def recycle(self, path: Path) -> None:
        """A file whose frames were all released: keep it as a spare, or delete it."""
        self._jobs.put(partial(self._recycle, path))

    def close(self) -> None:
        """Finish what was asked for, and stop; blocking."""
        self._wanted.set()
        self._jobs.put(None)
        self._thread.join()
        while not self._ready.empty():
            file = self._ready.get()
            if isinstance(file, PreparedFile):
                os.close(file.fd)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _prepare(self, number: int) -> None:
        path = self._folder / log_file_name(number)
        try:
            self._fence.check()
            source = self._spares.pop() if self._spares else self._new_file(path)
            source.rename(path)
            disk.sync_folder(self._folder)
            size_bytes = path.stat().st_size
            fd = disk.open_file(path, os.O_RDWR, direct=self._direct)
        except Exception as error:  # the taker gets it
            self._ready.put(error)
        else:
            self._ready.put(PreparedFile(number, path, fd, size_bytes))

    def _new_file(self, path: Path) -> Path:
        temporary = path.with_name(f"new-{path.stem}.tmp")
        fd = disk.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, direct=self._direct)
        try:
            disk.write_zeros(fd, self._new_bytes, partial(self._wanted.wait, _PAUSE_S))
        except OSError:
            temporary.unlink()  # give the room back
            raise
        finally:
            os.close(fd)
        self._new_bytes = min(2 * self._new_bytes, self._file_bytes)
        return temporary

    def _recycle(self, path: Path) -> None:
        # A file that can't be recycled stays: a restart finds it below the frames it needs.
        with contextlib.suppress(OSError, ClosedError):
            self._fence.check()
            self._keep_or_delete(path)
            disk.sync_folder(self._folder)

    def _keep_or_delete(self, path: Path, *, rename: bool = True) -> None:
        if len(self._spares) < self._spare_files and path.stat().st_size == self._file_bytes:
            if rename:
                path = path.rename(self._folder / f"spare-{next(self._names):08d}.nadi")
            self._spares.append(path)
        else:
            path.unlink()
