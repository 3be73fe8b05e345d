"""A folder as engine and registry, for servers on one machine: any number of processes may use it.

An object is written to a file of its own, synced, and linked to its name, which is exclusive. A value is written the
same way and renamed over the old one, under a lock, with its version before it: 32 digits that no other set has. So a
process that is killed leaves the old or the new.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from nadi.engines.failures import RefusedError
from nadi.engines.folder import Folder
from nadi.engines.names import check_name
from nadi.engines.registry import Entry
from nadi.errors import StorageFullError, UnavailableError
from nadi.fsync import is_no_room
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

T = TypeVar("T")
_THREADS = 8  # that wait for the disk
_SET_THREADS = 4  # others, for they may wait for a lock
_VERSION_BYTES = 32
_PAGE = 1_000


async def open_files(root: Path, runtime: Runtime) -> tuple[FileEngine, FileRegistry]:
    """The engine and the registry of that folder; closing the engine closes both.

    UnavailableError: it can't be made or written.
    """
    folder = await runtime.in_thread(_in_words, f"open {root}", Folder, root, runtime)
    registry = FileRegistry(folder, runtime, ThreadPoolExecutor(_SET_THREADS, "registry"))
    return FileEngine(folder, runtime, ThreadPoolExecutor(_THREADS, "engine"), registry), registry


class _Files:
    """What engine and registry have in common."""

    def __init__(self, folder: Folder, runtime: Runtime, threads: ThreadPoolExecutor) -> None:
        self._folder, self._runtime = folder, runtime
        self.threads = threads

    async def _in_thread(self, what: str, work: Callable[..., T], *arguments: object) -> T:
        return await self._runtime.in_thread(_in_words, what, work, *arguments, pool=self.threads)


class FileEngine(_Files):
    """A `LogEngine` over a folder."""

    def __init__(self, folder: Folder, runtime: Runtime, threads: ThreadPoolExecutor, registry: FileRegistry) -> None:
        super().__init__(folder, runtime, threads)
        self._registry = registry

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        check_name(name)
        return await self._in_thread(f"store {name}", self._create, name, parts)

    def _create(self, name: str, parts: Sequence[Buffer]) -> bool:
        with self._folder.written(parts) as file:
            try:
                self._folder.give_name(name, partial(os.link, file))
            except FileExistsError:
                return False
            return True

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        check_name(name)
        data = await self._in_thread(f"read {name}", _read, self._folder.root / name, position, length)
        return None if data is None else memoryview(data)

    async def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        files = self._folder.walk(prefix)
        while page := await self._in_thread(f"list {prefix}", _page, files):
            yield {name: size for name, size in page.items() if size is not None}

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            check_name(name)
        await self._in_thread("delete", self._folder.remove, names)

    async def close(self) -> None:
        for threads in (self.threads, self._registry.threads):
            threads.shutdown(wait=False)  # nothing is in flight
        await self._runtime.in_thread(self._folder.close)


class FileRegistry(_Files):
    """A `Registry` over a folder."""

    async def get(self, name: str) -> Entry | None:
        check_name(name)
        data = await self._in_thread(f"read {name}", _read, self._folder.root / name)
        return None if data is None else Entry(data[_VERSION_BYTES:], data[:_VERSION_BYTES].decode())

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        check_name(name)
        return await self._in_thread(f"set {name}", self._set, name, value, lambda found: found == version)

    async def put(self, name: str, value: bytes) -> str:
        check_name(name)
        stored = await self._in_thread(f"set {name}", self._set, name, value, lambda _: True)
        assert stored is not None  # there was no condition
        return stored

    def _set(self, name: str, value: bytes, may: Callable[[str | None], bool]) -> str | None:
        version, path = self._runtime.unique(), self._folder.root / name
        with self._folder.written([version.encode(), value]) as file, self._folder.setting(name):
            if not may(_version(path)):
                return None
            self._folder.give_name(name, partial(os.rename, file))
            return version

    async def list(self, folder: str) -> dict[str, str]:
        return await self._in_thread(f"list {folder}", self._versions, folder)

    def _versions(self, folder: str) -> dict[str, str]:
        found = ((name, _version(path)) for name, path in self._folder.walk(folder))
        return {name: version for name, version in found if version is not None}

    async def delete(self, name: str) -> None:
        check_name(name)
        await self._in_thread(f"delete {name}", self._delete, name)

    def _delete(self, name: str) -> None:
        with self._folder.setting(name):
            self._folder.remove([name])


def _in_words(what: str, work: Callable[..., T], *arguments: object) -> T:
    """Do the work; an error of the file system says what it means."""
    try:
        return work(*arguments)
    except UnavailableError:
        raise
    except PermissionError as error:
        raise RefusedError(f"the folder of the store doesn't let this server {what}: {error}") from error
    except OSError as error:
        if is_no_room(error):
            raise StorageFullError(f"the folder of the store can't {what}: free space on its disk ({error})") from error
        raise UnavailableError(f"the folder of the store can't {what}: {error}") from error


def _read(path: Path, position: int = 0, length: int | None = None) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return None
        left = max(status.st_size - position, 0)
        return _read_exactly(file, position, left if length is None else min(left, length))
    finally:
        os.close(file)


def _read_exactly(file: int, position: int, length: int) -> bytes:
    data = os.pread(file, length, position)
    while len(data) < length:  # one call reads 2 GiB at most
        more = os.pread(file, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def _version(path: Path) -> str | None:
    found = _read(path, 0, _VERSION_BYTES)
    return None if found is None else found.decode()


def _page(files: Iterator[tuple[str, Path]]) -> dict[str, int | None]:
    """Sizes, by name; None if it is gone by now."""
    return {name: _size(path) for name, path in islice(files, _PAGE)}


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
