"""Objects in a folder of HDFS: each a file that comes to be under its name whole, or not at all.

A file is written under a name of chance in `.unfinished`, synced to the disks of its data nodes (a file that is merely
closed may be in their memory), and then renamed, which HDFS does in one step and refuses if something has the name. It
is one block, so that one sync is for all of it, and so that a quota, which is charged by whole blocks while they are
written, is charged for little more than the file. What a killed writer left in `.unfinished` is removed by a later one,
once it is old by the name node's clock.

The client is the asyncio one of `hdfs-native`, as what hangs can be cancelled: a sync may, whose data node has died
while a block began. It runs in a loop of its own, so that what it checks and copies doesn't hold up a server's, and
callers without a loop can use it. Its errors are Python's own for files, OSError for the network, and for all else a
RuntimeError whose text is a variant of its own, such as `RPCError("<Java class>", "<message, stack>")`.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

from nadi.errors import InvalidArgumentError, StorageFullError, UnavailableError
from nadi.limits import HDFS_ANSWER_S, HDFS_CALLS_AT_ONCE, HDFS_PUT_BYTES_A_S, HDFS_PUT_S, HDFS_UNFINISHED_S
from nadi.object_log.failures import RefusedError
from nadi.object_log.hdfs.location import HdfsLocation
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

T = TypeVar("T")
Client: TypeAlias = Any  # the one that `connect` makes
log = logging.getLogger(__name__)
UNFINISHED = ".unfinished"
_WRITTEN_BYTES = 256 << 10  # at a time: the client copies them while it has the interpreter
_LEAST_BLOCK = 1 << 20  # blocks are multiples of it
_PAGE = 1_000
_DROP_S = 5.0  # what was given up waits so long for its draft to be deleted


class HdfsFile(NamedTuple):
    """name: below the store's folder. modified_ms: since 1970, by the name node's clock."""

    name: str
    size_bytes: int
    modified_ms: int


class HdfsFiles:
    """Any number of calls may be in flight, from any thread. Names don't begin with a dot. Errors are `failures.told`'s
    of what HDFS says; and FileNotFoundError where it says so."""

    def __init__(self, where: HdfsLocation, runtime: Runtime) -> None:
        self._where, self._runtime = where, runtime
        self._client: Client | None = connect(where)
        self._permits = asyncio.Semaphore(HDFS_CALLS_AT_ONCE)
        self._is_swept = False

    async def put(
        self, name: str, parts: Sequence[Buffer], *, file: str = "", over: bool = False, makes_folder: bool = True
    ) -> bool:
        """Store `parts`, end to end; they are durable when this returns. file: in it, and the name is that of a new
        folder. over: whatever has the name. makes_folder: that it is to be in, if it isn't there. False: something has
        the name; or there is no such folder. StorageFullError, UnavailableError: it may be there all the same, or come
        to be there."""
        size_bytes = sum(memoryview(part).nbytes for part in parts)

        async def put(client: Client) -> bool:
            draft = self._path(f"{UNFINISHED}/{self._runtime.unique()}")
            try:
                await self._write(client, f"{draft}/{file}" if file else draft, parts, size_bytes)
                if not self._is_swept:
                    await self._sweep(client, draft)
                await self._rename(client, draft, self._path(name), over=over, makes_folder=makes_folder)
            except BaseException as error:
                await self._drop(client, draft, error)
                if isinstance(error, FileExistsError) or (isinstance(error, FileNotFoundError) and not makes_folder):
                    return False
                raise
            return True

        try:
            return await self.run(f"store {name}", put, HDFS_PUT_S + size_bytes / HDFS_PUT_BYTES_A_S)
        except FileNotFoundError as error:  # of what was written before it was renamed
            raise told(f"store {name}", error) from None

    async def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        """Its bytes from there on, fewer if it is shorter. FileNotFoundError: nothing has the name. UnavailableError:
        it can't be read."""
        return await self.run(f"read {name}", lambda client: self._read(client, name, position, length))

    def is_there(self, name: str) -> bool:
        """Whether a file or a folder has the name; blocking. UnavailableError: that isn't known."""
        try:
            self.run_here(f"read {name}", lambda client: client.get_file_info(self._path(name)))
        except FileNotFoundError:
            return False
        return True

    def listed(self, folder: str) -> list[HdfsFile]:
        """All files in a folder, and below it; blocking. UnavailableError: the name node can't say."""
        return self.run_here(f"list {folder or 'what is there'}", lambda client: self._list(client, folder))

    async def pages(self, folder: str) -> AsyncIterator[list[HdfsFile]]:
        what = f"list {folder or 'what is there'}"
        found = await self.run(what, lambda client: self._list(client, folder))
        for first in range(0, len(found), _PAGE):
            yield found[first : first + _PAGE]

    async def rename(self, name: str, new: str) -> None:
        """UnavailableError: it may have been done; or nothing has the name, or something has the new one."""
        try:
            await self.run(f"rename {name}", lambda client: self._rename(client, self._path(name), self._path(new)))
        except (FileNotFoundError, FileExistsError) as error:
            raise told(f"rename {name}", error) from None

    async def delete(self, name: str, *, whole: bool = False) -> None:
        """Delete a file if it is there; whole: or a folder, with all that is in it, in one step. UnavailableError: it
        may still be there."""
        await self.run(f"delete {name}", lambda client: client.delete(self._path(name), whole))

    async def run(self, what: str, work: Callable[[Client], Awaitable[T]], timeout_s: float = HDFS_ANSWER_S) -> T:
        """Do `work` in the client's loop. Raises: FileNotFoundError, FileExistsError, and `told`'s of all else."""
        return await asyncio.wrap_future(self._begin(what, work, timeout_s))

    def run_here(self, what: str, work: Callable[[Client], Awaitable[T]], timeout_s: float = HDFS_ANSWER_S) -> T:
        """`run`, for a thread that may block."""
        return self._begin(what, work, timeout_s).result()

    def _begin(self, what: str, work: Callable[[Client], Awaitable[T]], timeout_s: float) -> Future[T]:
        if self._client is None:
            self._client = connect(self._where)
        return asyncio.run_coroutine_threadsafe(self._done(what, work, timeout_s, self._client), _thread.running())

    async def _done(self, what: str, work: Callable[[Client], Awaitable[T]], timeout_s: float, client: Client) -> T:
        try:
            async with asyncio.timeout(timeout_s), self._permits:
                return await work(client)
        except BaseException as error:
            if is_no_file(error):
                raise UnavailableError(f"HDFS can't {what}: a folder has that name") from None
            if isinstance(error, (FileNotFoundError, FileExistsError)) or not is_foreign(error):
                raise
            if isinstance(error, TimeoutError) and self._client is client:
                self._client = None  # its connection may be to a machine that is gone, and nothing on it would tell
            raise told(what, error) from None

    def _path(self, name: str) -> str:
        return f"{self._where.root}/{name}" if name else self._where.root

    async def _write(self, client: Client, path: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        blocks_bytes = max(1, -(-size_bytes // _LEAST_BLOCK)) * _LEAST_BLOCK
        writer = await client.create_file(path, max(blocks_bytes, self._where.block_bytes), self._where.replication)
        for part in parts:
            rest = memoryview(part).cast("B")
            for first in range(0, len(rest), _WRITTEN_BYTES):
                await writer.write(rest[first : first + _WRITTEN_BYTES])
        if size_bytes:
            await writer.hsync()
        await writer.close()

    async def _rename(
        self, client: Client, path: str, new: str, *, over: bool = False, makes_folder: bool = True
    ) -> None:
        try:
            await client.rename(path, new, over)
        except FileNotFoundError:  # of the folder, or of the file itself
            if not makes_folder:
                raise
            await client.make_folder(new.rpartition("/")[0])
            await client.rename(path, new, over)

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

    async def _list(self, client: Client, folder: str) -> list[HdfsFile]:
        path = self._path(folder.rstrip("/"))
        try:
            found = [one async for one in client.list_status(path, True)]
        except FileNotFoundError:
            return []
        start = len(self._where.root) + 1
        files = [HdfsFile(one.path[start:], one.length, one.modification_time) for one in found if not one.isdir]
        return [file for file in files if not file.name.startswith(".") and self._path(file.name) != path]


FOREIGN = (OSError, RuntimeError, NotImplementedError)  # and panics, see `is_foreign`
_VARIANT = re.compile(r'(\w+)(?:\((?:"([^"]*)", )?"?(.*))?', re.DOTALL)
_STACK = re.compile(r"(?:\\n|\n)(?:\\t|\t)at .*", re.DOTALL)
_LONGEST = 300
_KERBEROS = ("SASLError", "GSSAPIError", "NoSASLMechanism")
_NO_FILE = "Path is not a file"


def is_foreign(error: BaseException) -> bool:
    """Whether the library raised it: a panic of its Rust is no Exception, and no caller's way to stop either."""
    return isinstance(error, FOREIGN) or type(error).__name__ == "PanicException"


def is_no_file(error: BaseException) -> bool:
    """Whether a folder has the name of what was to be a file."""
    return isinstance(error, IsADirectoryError) or (isinstance(error, FileNotFoundError) and _NO_FILE in str(error))


def is_away(error: BaseException) -> bool:
    """Whether no answer came: asking more would take as long again."""
    return isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, FileExistsError, IsADirectoryError))


def told(what: str, error: BaseException) -> UnavailableError:
    """The error to raise for one of the library's. what: as in "HDFS can't store container-0/x"."""
    text = _STACK.sub("", str(error))
    variant = _VARIANT.fullmatch(text) if isinstance(error, RuntimeError) else None
    kind, java, said = "", "", text  # the variant's name, the Java class without its package, and the message
    if variant is not None:
        kind, java = variant[1], (variant[2] or "").rpartition(".")[2]
        said = (variant[3] or "").removesuffix('")')
    found = _kind(error, kind, java, said)
    message = " ".join(said.replace("\\n", " ").replace('\\"', '"').split())
    message = message if len(message) <= _LONGEST else message[:_LONGEST] + "…"
    if found is not None:
        return found[0](f"HDFS can't {what}: {found[1]}{f' ({message})' if message else ''}")
    return UnavailableError(f"HDFS can't {what}: {message or type(error).__name__}; it is tried again")


def _kind(error: BaseException, kind: str, java: str, said: str) -> tuple[type[UnavailableError], str] | None:
    if isinstance(error, TimeoutError) and not said:
        return UnavailableError, "no answer in time; it is tried again"
    if "afeModeException" in java or "safe mode" in said:
        return UnavailableError, "its name node is in safe mode, and changes nothing until it leaves it; tried again"
    if "Quota" in java:
        return StorageFullError, "a quota of the folder is used up; raise it, or free space there"
    if "could only be written to 0 of" in said or "not sufficiently replicated yet" in said:
        return UnavailableError, "no data node takes it: they are away, or full; it is tried again"
    if java == "ParentNotDirectoryException" or "is not a directory" in said:  # to some calls it is a matter of access
        return RefusedError, "a part of its path is a file; correct the URL"
    if java in ("AccessControlException", "AuthorizationException"):
        return RefusedError, (
            "it forbids that; give the folder to the user that the server is there, or set HADOOP_USER_NAME"
        )
    if kind in _KERBEROS:
        return RefusedError, "it wants Kerberos, and there is no ticket here, or none that it takes: see kinit"
    if "erasure-coded" in said:
        return RefusedError, "the folder is erasure coded, and such files can't be synced: give it a replicated one"
    if "configured minimum value" in said:
        return RefusedError, "its name node takes larger blocks only; set the option dfs.blocksize to what it takes"
    if java == "StandbyException":
        return UnavailableError, "none of its name nodes is active; it is tried again"
    if java == "InvalidPathException":
        return RefusedError, "it takes no such path; correct the URL"
    if is_away(error):
        return UnavailableError, "it can't be reached, or the connection broke; it is tried again"
    return None


_END_S = 1.0


class _Thread:
    """With the client's loop, one for all stores of a process; a fork begins one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(target=self._run, name="hdfs", daemon=True)
                self._thread.start()
                atexit.register(self._end)
            return self._loop

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _end(self) -> None:
        if self._pid == os.getpid():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_END_S)


_thread = _Thread()


# the client panics where it would pause before it tries a name node again: it tries each once
_PATIENCE = {"dfs.client.failover.sleep.base.millis": "0", "dfs.client.socket-timeout": "20000"}
_FILE, _FOLDER = 0o640, 0o750  # HDFS gives both the group of the folder that they are in, which may read
_NO_SERVICE = "No NameNode hosts found"


def connect(where: HdfsLocation) -> Client:
    """A client; nothing is asked of HDFS yet. InvalidArgumentError: `hdfs-native` isn't installed, or Hadoop's
    configuration can't be used."""
    try:
        import hdfs_native
    except ImportError:
        raise InvalidArgumentError("HDFS needs the package `hdfs-native`: pip install 'nadi[hdfs]'") from None

    class Native(hdfs_native.AsyncClient):  # type: ignore[misc, unused-ignore]  # of an extra
        async def create_file(self, path: str, block_bytes: int, replication: int | None) -> Any:
            options = hdfs_native.WriteOptions(
                block_size=block_bytes, replication=replication, permission=_FILE, overwrite=False, create_parent=True
            )
            return await self.create(path, options)

        async def make_folder(self, path: str) -> None:
            await self.mkdirs(path, _FOLDER, True)

    try:
        tries = {"dfs.client.failover.max.attempts": str(_others(where.nodes))}
        return Native(where.nodes, {**_PATIENCE, **tries, **where.settings})
    except (RuntimeError, OSError, ElementTree.ParseError) as error:
        if _NO_SERVICE in str(error):
            raise InvalidArgumentError(
                f"{where.nodes} has no port, and no hdfs-site.xml in HADOOP_CONF_DIR knows a name service of that name"
            ) from None
        said = re.sub(r"\s+", " ", str(error))[:300]
        raise InvalidArgumentError(f"Hadoop's configuration in HADOOP_CONF_DIR can't be used: {said}") from None


def _others(nodes: str) -> int:
    """How many name nodes there are to try after the first. Raises OSError, ElementTree.ParseError."""
    parts = urlsplit(nodes)
    if parts.port is not None:
        return 0
    folder = os.environ.get("HADOOP_CONF_DIR") or os.environ.get("HADOOP_HOME", "") + "/etc/hadoop"
    known = ""
    for file in (Path(folder) / "core-site.xml", Path(folder) / "hdfs-site.xml"):
        if file.exists():
            for found in ElementTree.parse(file).iter("property"):
                if found.findtext("name") == f"dfs.ha.namenodes.{parts.netloc}":
                    known = found.findtext("value") or ""
    return known.count(",")
