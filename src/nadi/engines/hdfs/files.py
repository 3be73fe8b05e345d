"""Objects in a folder of HDFS: each a file that comes to be under its name whole, or not at all.

A file is written under a name of chance in `.unfinished`, synced to the disks of its data nodes (a file that is merely
closed may be in their memory), and then renamed, which HDFS does in one step and refuses if something has the name. It
is one block, so that one sync is for all of it, and so that a quota, which is charged by whole blocks while they are
written, is charged for little more than the file.

What a killed writer left in `.unfinished` is removed by a later one, once it is old by the name node's clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from nadi.engines.hdfs import client as clients
from nadi.engines.hdfs.calls import Calls
from nadi.engines.hdfs.client import Client, Status
from nadi.engines.hdfs.failures import is_away, is_foreign, is_no_file, told
from nadi.engines.hdfs.where import Where
from nadi.errors import UnavailableError
from nadi.limits import HDFS_ANSWER_S, HDFS_PUT_BYTES_A_S, HDFS_PUT_S, HDFS_UNFINISHED_S
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

T = TypeVar("T")
log = logging.getLogger(__name__)
UNFINISHED = ".unfinished"
_WRITTEN_BYTES = 256 << 10  # at a time: the client copies them while it has the interpreter
_LEAST_BLOCK = 1 << 20  # blocks are multiples of it
_PAGE = 1_000
_DROP_S = 5.0  # what was given up waits so long for its draft to be deleted


class File(NamedTuple):
    """name: below the store's folder. modified_ms: since 1970, by the name node's clock."""

    name: str
    size_bytes: int
    modified_ms: int


class _Target(NamedTuple):
    """over: whatever has the path. makes_folder: that it is in."""

    path: str
    over: bool
    makes_folder: bool


class Files:
    """Any number of calls may be in flight, from any thread. Names don't begin with a dot. Errors are `failures.told`'s
    of what HDFS says; and FileNotFoundError where it says so."""

    def __init__(self, where: Where, runtime: Runtime) -> None:
        self._where, self._runtime = where, runtime
        self._client: Client | None = clients.connect(where)
        self._calls = Calls()
        self._is_swept = False

    async def put(self, name: str, parts: Sequence[Buffer], *, over: bool = False, makes_folder: bool = True) -> bool:
        """Store `parts`, end to end; they are durable when this returns. over: whatever has the name. makes_folder:
        that it is to be in, if it isn't there.

        False: something has the name; or there is no such folder.

        Raises:
            StorageFullError, UnavailableError: it may be there all the same, or come to be there.
        """

        async def put(client: Client) -> bool:
            draft = self._draft()
            return await self._publish(client, draft, draft, parts, _Target(self._path(name), over, makes_folder))

        return await self._put(name, put, _size(parts))

    async def put_folder(self, name: str, file: str, parts: Sequence[Buffer]) -> bool:
        """Make a folder with one file in it, unless something has its name. Returns, raises: as `put`."""

        async def put(client: Client) -> bool:
            draft = self._draft()
            return await self._publish(client, draft, f"{draft}/{file}", parts, _Target(self._path(name), False, True))

        return await self._put(name, put, _size(parts))

    async def _put(self, name: str, put: Callable[[Client], Awaitable[bool]], size_bytes: int) -> bool:
        try:
            return await self.run(f"store {name}", put, HDFS_PUT_S + size_bytes / HDFS_PUT_BYTES_A_S)
        except FileNotFoundError as error:  # of what was written before it was renamed
            problem = told(f"store {name}", error)
        raise problem

    async def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        """Its bytes from there on, fewer if it is shorter.

        Raises:
            FileNotFoundError: nothing has the name.
            UnavailableError: it can't be read.
        """
        return await self.run(f"read {name}", lambda client: self._read(client, name, position, length))

    def is_there(self, name: str) -> bool:
        """Whether a file or a folder has the name; blocking. UnavailableError: that isn't known."""

        async def look(client: Client) -> bool:
            try:
                await client.get_file_info(self._path(name))
            except FileNotFoundError:
                return False
            return True

        return self.run_here(f"read {name}", look)

    def listed(self, folder: str) -> list[File]:
        """All files in a folder, and below it; blocking. UnavailableError: the name node can't say."""
        return self.run_here(f"list {folder or 'what is there'}", lambda client: self._list(client, folder))

    async def pages(self, folder: str) -> AsyncIterator[list[File]]:
        """`listed`, some at a time."""
        what = f"list {folder or 'what is there'}"
        found = await self.run(what, lambda client: self._list(client, folder))
        for first in range(0, len(found), _PAGE):
            yield found[first : first + _PAGE]

    async def rename(self, name: str, new: str) -> None:
        """UnavailableError: it may have been done; or nothing has the name, or something has the new one."""

        async def rename(client: Client) -> None:
            await self._rename(client, self._path(name), _Target(self._path(new), False, True))

        try:
            await self.run(f"rename {name}", rename)
        except (FileNotFoundError, FileExistsError) as error:
            problem = told(f"rename {name}", error)
        else:
            return
        raise problem

    async def delete(self, name: str, *, whole: bool = False) -> None:
        """Delete a file if it is there; whole: or a folder, with all that is in it, in one step.

        Raises:
            UnavailableError: it may still be there.
        """
        await self.run(f"delete {name}", lambda client: client.delete(self._path(name), whole))

    # --- calls ---------------------------------------------------------------------------------------

    async def run(self, what: str, work: Callable[[Client], Awaitable[T]], timeout_s: float = HDFS_ANSWER_S) -> T:
        """`work`, in the loop of `calls`. Raises: FileNotFoundError, FileExistsError, and `told`'s of all else."""
        client = self._connected()
        try:
            return await self._calls.run(timeout_s, lambda: work(client))
        except BaseException as error:
            problem = self._problem(what, error, client)
            if problem is None:
                raise
        raise problem

    def run_here(self, what: str, work: Callable[[Client], Awaitable[T]], timeout_s: float = HDFS_ANSWER_S) -> T:
        """`run`, for a thread that may block."""
        client = self._connected()
        try:
            return self._calls.wait(timeout_s, lambda: work(client))
        except BaseException as error:
            problem = self._problem(what, error, client)
            if problem is None:
                raise
        raise problem

    def _connected(self) -> Client:
        if self._client is None:
            self._client = clients.connect(self._where)
        return self._client

    def _problem(self, what: str, error: BaseException, client: Client) -> UnavailableError | None:
        """None: it is the caller's."""
        if is_no_file(error):
            return UnavailableError(f"HDFS can't {what}: a folder has that name")
        if isinstance(error, (FileNotFoundError, FileExistsError)) or not is_foreign(error):
            return None
        return self._told(what, error, client)

    def _told(self, what: str, error: BaseException, client: Client) -> UnavailableError:
        if isinstance(error, TimeoutError) and self._client is client:
            self._client = None  # its connection may be to a machine that is gone, and nothing on it would tell
        return told(what, error)

    # --- in the loop of `calls` -----------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._where.root}/{name}" if name else self._where.root

    def _draft(self) -> str:
        return self._path(f"{UNFINISHED}/{self._runtime.unique()}")

    async def _publish(self, client: Client, draft: str, file: str, parts: Sequence[Buffer], target: _Target) -> bool:
        """Write `file`, which is the draft or in it, and give the draft its name."""
        try:
            await self._write(client, file, parts)
            await self._sweep(client, draft)
            await self._rename(client, draft, target)
        except BaseException as error:
            await self._drop(client, draft, error)
            if isinstance(error, FileExistsError) or (isinstance(error, FileNotFoundError) and not target.makes_folder):
                return False
            raise
        return True

    async def _write(self, client: Client, path: str, parts: Sequence[Buffer]) -> None:
        size = _size(parts)
        blocks_bytes = max(1, -(-size // _LEAST_BLOCK)) * _LEAST_BLOCK
        writer = await client.create_file(path, max(blocks_bytes, self._where.block_bytes), self._where.replication)
        for part in parts:
            rest = memoryview(part).cast("B")
            for first in range(0, len(rest), _WRITTEN_BYTES):
                await writer.write(rest[first : first + _WRITTEN_BYTES])
        if size:
            await writer.hsync()
        await writer.close()

    async def _rename(self, client: Client, path: str, target: _Target) -> None:
        try:
            await client.rename(path, target.path, target.over)
        except FileNotFoundError:  # of the folder, or of the file itself
            if not target.makes_folder:
                raise
            await client.make_folder(target.path.rpartition("/")[0])
            await client.rename(path, target.path, target.over)

    async def _drop(self, client: Client, path: str, error: BaseException) -> None:
        """What isn't removed now, as nobody answers, `_sweep` removes."""
        if is_away(error):
            return
        try:
            async with asyncio.timeout(_DROP_S):
                await client.delete(path, True)
        except BaseException as undeleted:
            if not is_foreign(undeleted):
                raise
            log.debug("%s is left in HDFS: %s", path, told("delete it", undeleted))

    async def _sweep(self, client: Client, own: str) -> None:
        """Once, after a first file. own: which says how late it is."""
        if self._is_swept:
            return
        self._is_swept = True
        found = [one async for one in client.list_status(self._path(UNFINISHED))]
        now_ms = max((one.modification_time for one in found if one.path == own), default=0)
        old = [one.path for one in found if one.modification_time < now_ms - HDFS_UNFINISHED_S * 1000]
        for path in old:
            await client.delete(path, True)
        if old:
            log.info("%d files that were never finished are removed from HDFS", len(old))

    async def _read(self, client: Client, name: str, position: int, length: int | None) -> bytes:
        reader = await client.read(self._path(name))
        end = len(reader) if length is None else min(len(reader), position + length)
        return await reader.read_range(position, end - position) if position < end else b""  # past its end it panics

    async def _list(self, client: Client, folder: str) -> list[File]:
        path = self._path(folder.rstrip("/"))
        try:
            found: list[Status] = [one async for one in client.list_status(path, True)]
        except FileNotFoundError:
            return []
        start = len(self._where.root) + 1
        files = [File(one.path[start:], one.length, one.modification_time) for one in found if not one.isdir]
        return [file for file in files if not file.name.startswith(".") and self._path(file.name) != path]


def _size(parts: Sequence[Buffer]) -> int:
    return sum(memoryview(part).nbytes for part in parts)
