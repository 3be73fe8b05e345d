"""A folder as engine and registry, for servers on one machine.

    log/0/1/7                     objects
    servers/ab12                  values
    .nadi/unfinished/             files being written
    .nadi/locks/<number>          held while setting a value whose name hashes to the number
    .nadi/processes/<name>        held by the process with which the value ends

Unfinished files of a killed process are removed by another process once they are old by the file system's clock.

An object is written to a new file, synced, and linked to its name, which is exclusive. A value is written the same way
and renamed over the old one, under a lock, prefixed by its version: 32 unique digits. So a killed process leaves either
the old or the new value.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from nadi.durable_io import is_disk_full, sync_folder, write_all
from nadi.errors import StorageFullError, UnavailableError
from nadi.object_log.engine import VersionedValue, check_name
from nadi.object_log.failures import RefusedError
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

OURS = ".nadi"  # object names never begin with a dot
_LOST_AND_FOUND = "lost+found"  # in the root of a file system; readable only by root
UNFINISHED_S = 3600.0
_LOCKS = 64
_LOCK_WAIT_S = 5.0
_LOCK_PAUSE_S = 0.002
_FOLDERS_KNOWN = 10_000
T = TypeVar("T")
_THREADS = 8  # waiting for the disk
_SET_THREADS = 4  # separate, because they may wait for a lock
_VERSION_BYTES = 32
_PAGE = 1_000


class Folder:
    """Files of one store. root: created if missing. is_late: create nothing before the first write. All calls block."""

    def __init__(self, root: Path, runtime: Runtime, *, is_late: bool = False) -> None:
        self.root, self._runtime = root, runtime
        self._unfinished, self._locks = root / OURS / "unfinished", root / OURS / "locks"
        self._processes = root / OURS / "processes"
        self._bound: dict[str, int] = {}  # locks of the values that end with this process
        self._durable: set[Path] = set()  # folders whose names are durable, up to the root's
        self._is_made = self._is_swept = False
        if not is_late:
            self._make()

    def _make(self) -> None:
        if not self._is_made:
            _make(self._unfinished)
            _make(self._locks)
            self._is_made = True

    def _sweep(self, own: Path) -> None:
        """Remove old unfinished files, once, after a first file. own: a new file, whose time is the present."""
        self._is_swept = True
        old = own.stat().st_mtime - UNFINISHED_S
        for path in self._unfinished.iterdir():
            with contextlib.suppress(FileNotFoundError):  # just renamed or removed by another process
                if path.stat().st_mtime < old:
                    path.unlink()

    @contextlib.contextmanager
    def setting(self, name: str) -> Iterator[None]:
        """Lock out other changes of a value. UnavailableError: a process holds the lock, perhaps one stopped by
        SIGSTOP."""
        self._make()
        lock = self._locked(self._locks / str(crc32(name.encode()) % _LOCKS))
        try:
            yield
        finally:
            os.close(lock)  # releases the lock

    def _locked(self, path: Path) -> int:
        """Create a file if it's missing, and lock it. Raises as `setting`."""
        until = self._runtime.monotonic() + _LOCK_WAIT_S
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _locks(lock, path):
                return lock
            os.close(lock)
            self._runtime.rest(_LOCK_PAUSE_S)
            if self._runtime.monotonic() >= until:
                raise UnavailableError(
                    f"another process has held {path} for {_LOCK_WAIT_S:.0f} s: check whether it is stopped"
                )

    def bind(self, name: str) -> None:
        """Let a value end with this process. Call it within `setting`, before the value is named."""
        if name not in self._bound:
            _make(self._processes)
            self._bound[name] = self._locked(self._lock_of(name))

    def end(self, name: str) -> None:
        """Remove a value if it was bound to a process that has ended."""
        path = self._lock_of(name)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if _locks(lock, path):
                self.remove([name])
                path.unlink()
        finally:
            os.close(lock)

    def unbind(self, name: str) -> None:
        """Release a removed value. Call it within `setting`."""
        if (lock := self._bound.pop(name, None)) is not None:
            self._lock_of(name).unlink(missing_ok=True)
            os.close(lock)

    def _lock_of(self, name: str) -> Path:
        return self._processes / name.replace("/", "_")  # no name has "_"

    @contextlib.contextmanager
    def written(self, parts: Sequence[Buffer]) -> Iterator[Path]:
        """Yield a synced file of these bytes, removed afterwards unless it was renamed."""
        self._make()
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
            if not self._is_swept:
                self._sweep(path)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def give_name(self, name: str, give: Callable[[Path], object]) -> None:
        """Name a file durably by `give`, creating the folders that lead to it. FileExistsError from `give`: the
        existing file is durable too."""
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
        """Make a folder's names durable, and its parents', which another process may have created but not synced.
        Folders are never removed."""
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
        folders = set()
        for name in names:
            path = self.root / name
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                folders.add(path.parent)
        for folder in folders:
            sync_folder(folder)

    def walk(self, prefix: str) -> Iterator[tuple[str, Path]]:
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
    """Create a folder and its parents, durably, accessible only to the owner."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)


async def open_files(root: Path, runtime: Runtime, *, is_late: bool = False) -> tuple[FileEngine, FileRegistry]:
    """Open the engine and the registry of that folder; closing the engine closes both. is_late: see `Folder`.
    UnavailableError: the folder can't be created or written."""
    folder = await runtime.in_thread(_with_context, f"open {root}", partial(Folder, root, runtime, is_late=is_late))
    registry = FileRegistry(folder, runtime, ThreadPoolExecutor(_SET_THREADS, "registry"))
    return FileEngine(folder, runtime, ThreadPoolExecutor(_THREADS, "engine"), registry), registry


class _AsyncFolder:
    def __init__(self, folder: Folder, runtime: Runtime, threads: ThreadPoolExecutor) -> None:
        self._folder, self._runtime = folder, runtime
        self.threads = threads

    async def _in_thread(self, what: str, work: Callable[..., T], *arguments: object) -> T:
        return await self._runtime.in_thread(_with_context, what, work, *arguments, pool=self.threads)


class FileEngine(_AsyncFolder):
    def __init__(self, folder: Folder, runtime: Runtime, threads: ThreadPoolExecutor, registry: FileRegistry) -> None:
        super().__init__(folder, runtime, threads)
        self._registry = registry

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        def create() -> bool:
            with self._folder.written(parts) as file:
                try:
                    self._folder.give_name(name, partial(os.link, file))
                except FileExistsError:
                    return False
                return True

        check_name(name)
        return await self._in_thread(f"store {name}", create)

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        check_name(name)
        data = await self._in_thread(f"read {name}", _read, self._folder.root / name, position, length)
        return None if data is None else memoryview(data)

    async def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        files = self._folder.walk(prefix)
        while (page := await self._in_thread(f"list {prefix}", _page, files)) is not None:
            yield page

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            check_name(name)
        await self._in_thread("delete", self._folder.remove, names)

    async def close(self) -> None:
        for threads in (self.threads, self._registry.threads):
            threads.shutdown(wait=False)  # idle


class FileRegistry(_AsyncFolder):
    async def get(self, name: str) -> VersionedValue | None:
        check_name(name)
        data = await self._in_thread(f"read {name}", self._read, name)
        return None if data is None else VersionedValue(data[_VERSION_BYTES:], _version_in(data))

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        check_name(name)
        return await self._in_thread(f"set {name}", self._set, name, value, lambda current: current == version)

    async def put(self, name: str, value: bytes, *, ends_with_process: bool = False) -> str:
        check_name(name)
        stored = await self._in_thread(f"set {name}", self._set, name, value, lambda _: True, ends_with_process)
        assert stored is not None  # unconditional
        return stored

    def _set(
        self, name: str, value: bytes, may: Callable[[str | None], bool], ends_with_process: bool = False
    ) -> str | None:
        version, path = self._runtime.unique(), self._folder.root / name
        with self._folder.written([version.encode(), value]) as file, self._folder.setting(name):
            if not may(_version(path)):
                return None
            if ends_with_process:
                self._folder.bind(name)
            self._folder.give_name(name, partial(os.rename, file))
            return version

    def _read(self, name: str) -> bytes | None:
        self._folder.end(name)
        return _read(self._folder.root / name)

    async def list(self, folder: str) -> dict[str, str]:
        def versions() -> dict[str, str]:
            found: dict[str, str] = {}
            for name, path in self._folder.walk(folder):
                self._folder.end(name)
                if (version := _version(path)) is not None:
                    found[name] = version
            return found

        return await self._in_thread(f"list {folder}", versions)

    async def delete(self, name: str) -> None:
        def delete() -> None:
            with self._folder.setting(name):
                self._folder.remove([name])
                self._folder.unbind(name)

        check_name(name)
        await self._in_thread(f"delete {name}", delete)


def _with_context(what: str, work: Callable[..., T], *arguments: object) -> T:
    """Do the work; map errors of the file system to messages."""
    try:
        return work(*arguments)
    except UnavailableError:
        raise
    except PermissionError as error:
        raise RefusedError(f"the folder of the store can't {what}: fix its permissions ({error})") from error
    except OSError as error:
        if is_disk_full(error):
            raise StorageFullError(f"the folder of the store can't {what}: free space on its disk ({error})") from error
        raise UnavailableError(f"the folder of the store can't {what}: {error}") from error


def _locks(lock: int, path: Path) -> bool:
    """Lock an open file; return whether it is locked now, and still has that name."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path.stat().st_ino == os.fstat(lock).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def _read(path: Path, position: int = 0, length: int | None = None) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return None
        remaining = max(status.st_size - position, 0)
        return os.pread(file, remaining if length is None else min(remaining, length), position)  # no object has 2 GiB
    finally:
        os.close(file)


def _version(path: Path) -> str | None:
    prefix = _read(path, 0, _VERSION_BYTES)
    return None if prefix is None else _version_in(prefix)


def _version_in(data: bytes) -> str:
    """Return the version of a value, even a damaged one, so that it can be replaced."""
    return data[:_VERSION_BYTES].decode(errors="replace")


def _page(files: Iterator[tuple[str, Path]]) -> dict[str, int] | None:
    sizes, page = {}, list(islice(files, _PAGE))
    for name, path in page:
        with contextlib.suppress(FileNotFoundError):
            sizes[name] = path.stat().st_size
    return sizes if page else None
