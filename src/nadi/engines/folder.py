"""The folder that servers on one machine share as their store: files that are durable, locks, and what kills leave.

    log/0/1/7                     objects
    servers/ab12                  values
    .nadi/lock                    held while folders of unfinished files are made or removed
    .nadi/<process>/              unfinished files of a process, and the lock that it holds
    .nadi/locks/<number>          held while a value is set whose name has that number

Unfinished files of a process are in use as long as it holds its lock, which the kernel ends with it: whoever opens the
store next removes what the killed have left. All of this is blocking.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from zlib import crc32

from nadi.errors import UnavailableError
from nadi.fsync import sync_folder, write_all
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

OURS = ".nadi"  # no name begins with a dot
_LOST_AND_FOUND = "lost+found"  # of a file system whose root this is, and which only root may look into
_LOCKS = 64
_LOCK_WAIT_S = 5.0
_LOCK_PAUSE_S = 0.002
_FOLDERS_KNOWN = 10_000


class Folder:
    """root: made if it isn't there."""

    def __init__(self, root: Path, runtime: Runtime) -> None:
        self.root, self._runtime = root, runtime
        self._ours = root / OURS
        self._unfinished = self._ours / runtime.unique()
        self._durable: set[Path] = set()  # folders whose names are, up to the root's
        for folder in (root, self._ours, self._ours / "locks"):
            _make(folder)
        with self._locked(self._ours / "lock"):
            self._clean()
            self._unfinished.mkdir(mode=0o700)
            self._held = _opened(self._unfinished / "lock")
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        if self._held >= 0:
            shutil.rmtree(self._unfinished, ignore_errors=True)  # otherwise the next one does it
            os.close(self._held)
            self._held = -1

    def _clean(self) -> None:
        for folder in self._ours.iterdir():
            if folder.name != "locks" and folder.is_dir() and not _in_use(folder / "lock"):
                shutil.rmtree(folder, ignore_errors=True)  # it may be one's own who is closing it

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        lock = _opened(path)
        try:
            until = self._runtime.monotonic() + _LOCK_WAIT_S
            while not _try_lock(lock):
                if self._runtime.monotonic() >= until:
                    raise UnavailableError(f"another process has held {path} for {_LOCK_WAIT_S:.0f} s: is it stopped?")
                self._runtime.rest(_LOCK_PAUSE_S)
            yield
        finally:
            os.close(lock)  # which gives up the lock

    def setting(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Around a change of a value: nobody else changes it.

        UnavailableError: a process has it and doesn't give it up, as one that was stopped (SIGSTOP).
        """
        return self._locked(self._ours / "locks" / str(crc32(name.encode()) % _LOCKS))

    @contextlib.contextmanager
    def written(self, parts: Sequence[Buffer]) -> Iterator[Path]:
        """A synced file of these bytes, which is gone afterwards unless it was renamed."""
        path = self._unfinished / self._runtime.unique()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                offset = 0
                for part in parts:
                    data = memoryview(part).cast("B")
                    write_all(file, data, offset)
                    offset += len(data)
                os.fdatasync(file)
            finally:
                os.close(file)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def give_name(self, name: str, give: Callable[[Path], object]) -> None:
        """Give a file its name by `give`; it is durable when this returns, and the folders that lead to it are.

        FileExistsError: `give` says so; but what has the name is durable then, too.
        """
        path = self.root / name
        try:
            try:
                give(path)
            except FileNotFoundError:
                _make(path.parent)
                give(path)
        finally:
            self._sync(path.parent)

    def _sync(self, folder: Path) -> None:
        """Others may have made the folders, and not have synced them yet. They are never removed."""
        sync_folder(folder)
        if folder in self._durable:
            return
        for above in folder.parents:
            if folder == self.root or not above.is_relative_to(self.root):
                break
            sync_folder(above)
        if len(self._durable) >= _FOLDERS_KNOWN:
            self._durable.clear()
        self._durable.add(folder)

    def remove(self, names: Sequence[str]) -> None:
        """Remove the files that are there."""
        folders = set()
        for name in names:
            path = self.root / name
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                folders.add(path.parent)
        for folder in folders:
            sync_folder(folder)

    def walk(self, prefix: str) -> Iterator[tuple[str, Path]]:
        """Names and files below a folder."""
        waiting = [self.root / prefix.strip("/")]
        while waiting:
            folder = waiting.pop()
            try:
                entries = list(os.scandir(folder))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                if entry.name.startswith(".") or entry.name == _LOST_AND_FOUND:
                    continue
                path = folder / entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                else:
                    yield path.relative_to(self.root).as_posix(), path


def _make(folder: Path) -> None:
    """With those that lead to it, all durable, for its owner alone."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)


def _opened(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_use(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # killed before it had one, or after it had removed it
        return False
    try:
        return not _try_lock(lock)
    finally:
        os.close(lock)
