"""Objects in a folder of HDFS: each a file that appears under its name complete, or not at all.

A file is written under a random name in `.unfinished`, synced to the disks of its data nodes (a merely closed file may
only be in their memory), and then renamed, which HDFS does atomically and refuses if the name exists. It has a single
block, so that one sync covers it, and so that a quota, which counts whole blocks while they are written, is charged
little more than the file's size. Unfinished files of a killed writer are removed by a later one, once they are old by
the name node's clock.

The client is the asyncio one of `hdfs-native`, because a hanging call can be cancelled: a sync hangs if its data node
has died while a block began. It runs in a separate loop, so that its checks and copies don't delay a server's loop, and
so that callers without a loop can use it. It raises Python's own errors for files, OSError for the network, and
otherwise a RuntimeError whose text is one of its variants, such as `RPCError("<Java class>", "<message, stack>")`.
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
Client: TypeAlias = Any  # made by `connect`
log = logging.getLogger(__name__)
UNFINISHED = ".unfinished"
_WRITTEN_BYTES = 256 << 10  # per write: the client copies them while it holds the GIL
_LEAST_BLOCK = 1 << 20  # block sizes are multiples of it
_PAGE = 1_000
_DROP_S = 5.0  # time limit for deleting the draft of a failed put


class HdfsFile(NamedTuple):
    """File in the store. name: below the store's folder. modified_ms: since 1970, by the name node's clock."""

    name: str
    size_bytes: int
    modified_ms: int


class HdfsFiles:
    """Files of one store. Any number of calls may be in flight, from any thread. Names don't begin with a dot. Raises
    FileNotFoundError, and the errors of `told` otherwise."""

    def __init__(self, where: HdfsLocation, runtime: Runtime) -> None:
        self._where, self._runtime = where, runtime
        self._client: Client | None = connect(where)
        self._permits = asyncio.Semaphore(HDFS_CALLS_AT_ONCE)
        self._is_swept = False

    async def put(
        self, name: str, parts: Sequence[Buffer], *, file: str = "", over: bool = False, makes_folder: bool = True
    ) -> bool:
        """Store `parts`, end to end, durably. Return False if the name exists, or its folder doesn't and isn't created.

        file: store it under this name in a new folder `name`. over: replace an existing file. makes_folder: create a
        missing parent folder. StorageFullError, UnavailableError: the file may still exist, or appear later.
        """
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
        except FileNotFoundError as error:  # of the draft, before it was renamed
            raise error_for(f"store {name}", error) from None

    async def read(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        """Return up to `length` bytes from `position`. FileNotFoundError: no such file. UnavailableError: it can't be
        read."""
        return await self.run(f"read {name}", lambda client: self._read(client, name, position, length))

    def is_there(self, name: str) -> bool:
        """Return whether a file or folder exists; blocking. UnavailableError: unknown."""
        try:
            self.run_here(f"read {name}", lambda client: client.get_file_info(self._path(name)))
        except FileNotFoundError:
            return False
        return True

    def listed(self, folder: str) -> list[HdfsFile]:
        """Return all files in and below a folder; blocking. UnavailableError: the name node can't answer."""
        return self.run_here(f"list {folder or 'the files'}", lambda client: self._list(client, folder))

    async def pages(self, folder: str) -> AsyncIterator[list[HdfsFile]]:
        what = f"list {folder or 'the files'}"
        files = await self.run(what, lambda client: self._list(client, folder))
        for first in range(0, len(files), _PAGE):
            yield files[first : first + _PAGE]

    async def rename(self, name: str, new: str) -> None:
        """Rename a file. UnavailableError: the old name doesn't exist, the new one does, or the outcome is unknown."""
        try:
            await self.run(f"rename {name}", lambda client: self._rename(client, self._path(name), self._path(new)))
        except (FileNotFoundError, FileExistsError) as error:
            raise error_for(f"rename {name}", error) from None

    async def delete(self, name: str, *, recursive: bool = False) -> None:
        """Delete a file if it exists; recursive: or a folder with its contents, atomically. UnavailableError: it may
        still exist."""
        await self.run(f"delete {name}", lambda client: client.delete(self._path(name), recursive))

    async def run(self, what: str, work: Callable[[Client], Awaitable[T]], timeout_s: float = HDFS_ANSWER_S) -> T:
        """Run `work` in the client's loop. Raises FileNotFoundError, FileExistsError, and the errors of `told`
        otherwise."""
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
                raise UnavailableError(f"HDFS can't {what}: the name is a folder") from None
            if isinstance(error, (FileNotFoundError, FileExistsError)) or not is_foreign(error):
                raise
            if isinstance(error, TimeoutError) and self._client is client:
                self._client = None  # its connection may be to a dead machine, which never reports an error
            raise error_for(what, error) from None

    def _path(self, name: str) -> str:
        return f"{self._where.root}/{name}" if name else self._where.root

    async def _write(self, client: Client, path: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        blocks_bytes = max(1, -(-size_bytes // _LEAST_BLOCK)) * _LEAST_BLOCK
        writer = await client.create_file(path, max(blocks_bytes, self._where.block_bytes), self._where.replication)
        for part in parts:
            data = memoryview(part).cast("B")
            for first in range(0, len(data), _WRITTEN_BYTES):
                await writer.write(data[first : first + _WRITTEN_BYTES])
        if size_bytes:
            await writer.hsync()
        await writer.close()

    async def _rename(
        self, client: Client, path: str, new: str, *, over: bool = False, makes_folder: bool = True
    ) -> None:
        try:
            await client.rename(path, new, over)
        except FileNotFoundError:  # the folder, or the file itself
            if not makes_folder:
                raise
            await client.make_folder(new.rpartition("/")[0])
            await client.rename(path, new, over)

    async def _drop(self, client: Client, path: str, error: BaseException) -> None:
        """Delete a draft. If HDFS doesn't respond, `_sweep` deletes it later."""
        if is_away(error):
            return
        try:
            async with asyncio.timeout(_DROP_S):
                await client.delete(path, True)
        except BaseException as undeleted:
            if not is_foreign(undeleted):
                raise
            log.debug("%s remains in HDFS: %s", path, error_for("delete it", undeleted))

    async def _sweep(self, client: Client, own: str) -> None:
        """Remove old drafts, once, after a first file. own: a new draft, whose time is the present."""
        self._is_swept = True
        drafts = [draft async for draft in client.list_status(self._path(UNFINISHED))]
        now_ms = max((draft.modification_time for draft in drafts if draft.path == own), default=0)
        old = [draft.path for draft in drafts if draft.modification_time < now_ms - HDFS_UNFINISHED_S * 1000]
        for path in old:
            await client.delete(path, True)
        if old:
            log.info("removed %d old unfinished files from HDFS", len(old))

    async def _read(self, client: Client, name: str, position: int, length: int | None) -> bytes:
        reader = await client.read(self._path(name))
        end = len(reader) if length is None else min(len(reader), position + length)
        return await reader.read_range(position, end - position) if position < end else b""  # panics past the end

    async def _list(self, client: Client, folder: str) -> list[HdfsFile]:
        path = self._path(folder.rstrip("/"))
        try:
            entries = [entry async for entry in client.list_status(path, True)]
        except FileNotFoundError:
            return []
        start = len(self._where.root) + 1
        files = [HdfsFile(item.path[start:], item.length, item.modification_time) for item in entries if not item.isdir]
        return [file for file in files if not file.name.startswith(".") and self._path(file.name) != path]


FOREIGN = (OSError, RuntimeError, NotImplementedError)  # besides panics, see `is_foreign`
_VARIANT = re.compile(r'(\w+)(?:\((?:"([^"]*)", )?"?(.*))?', re.DOTALL)
_STACK = re.compile(r"(?:\\n|\n)(?:\\t|\t)at .*", re.DOTALL)
_LONGEST = 300
_KERBEROS = ("SASLError", "GSSAPIError", "NoSASLMechanism")
_NO_FILE = "Path is not a file"


def is_foreign(error: BaseException) -> bool:
    """Return whether the library raised the error. Panics of its Rust code aren't Exceptions, and don't mean to stop
    either."""
    return isinstance(error, FOREIGN) or type(error).__name__ == "PanicException"


def is_no_file(error: BaseException) -> bool:
    """Return whether the name of a supposed file is a folder's."""
    return isinstance(error, IsADirectoryError) or (isinstance(error, FileNotFoundError) and _NO_FILE in str(error))


def is_away(error: BaseException) -> bool:
    """Return whether HDFS sent no response: further queries would take as long."""
    return isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, FileExistsError, IsADirectoryError))


def error_for(what: str, error: BaseException) -> UnavailableError:
    """Return the error to raise for one of the library's. what: as in "HDFS can't store container-0/x"."""
    text = _STACK.sub("", str(error))
    variant = _VARIANT.fullmatch(text) if isinstance(error, RuntimeError) else None
    kind, java, detail = "", "", text  # the variant's name, the Java class without its package, and the message
    if variant is not None:
        kind, java = variant[1], (variant[2] or "").rpartition(".")[2]
        detail = (variant[3] or "").removesuffix('")')
    known = _kind(error, kind, java, detail)
    message = " ".join(detail.replace("\\n", " ").replace('\\"', '"').split())
    message = message if len(message) <= _LONGEST else message[:_LONGEST] + "…"
    if known is not None:
        return known[0](f"HDFS can't {what}: {known[1]}{f' ({message})' if message else ''}")
    return UnavailableError(f"HDFS can't {what}: {message or type(error).__name__}; will be retried")


def _kind(error: BaseException, kind: str, java: str, detail: str) -> tuple[type[UnavailableError], str] | None:
    if isinstance(error, TimeoutError) and not detail:
        return UnavailableError, "no answer in time; will be retried"
    if "afeModeException" in java or "safe mode" in detail:
        return UnavailableError, "the name node is in safe mode and rejects changes; will be retried"
    if "Quota" in java:
        return StorageFullError, "the folder's quota is exhausted; raise it, or free space"
    if "could only be written to 0 of" in detail or "not sufficiently replicated yet" in detail:
        return UnavailableError, "all data nodes are unreachable or full; will be retried"
    if java == "ParentNotDirectoryException" or "is not a directory" in detail:  # some calls report an access error
        return RefusedError, "part of the path is a file; correct the URL"
    if java in ("AccessControlException", "AuthorizationException"):
        return RefusedError, (
            "permission denied; make this server's HDFS user the owner of the folder, or set HADOOP_USER_NAME"
        )
    if kind in _KERBEROS:
        return RefusedError, "it requires Kerberos, and the ticket here is missing or invalid; run kinit"
    if "erasure-coded" in detail:
        return RefusedError, "files in an erasure-coded folder can't be synced; use a replicated folder"
    if "configured minimum value" in detail:
        return RefusedError, "the name node requires larger blocks; set the option dfs.blocksize"
    if java == "StandbyException":
        return UnavailableError, "none of its name nodes is active; will be retried"
    if java == "InvalidPathException":
        return RefusedError, "the path is invalid; correct the URL"
    if is_away(error):
        return UnavailableError, "it is unreachable, or the connection broke; will be retried"
    return None


_END_S = 1.0


class _Thread:
    """Thread with the client's loop, shared by all stores of a process; a forked process starts its own."""

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


# the client panics if it pauses before retrying a name node, so it tries each node once
_PATIENCE = {"dfs.client.failover.sleep.base.millis": "0", "dfs.client.socket-timeout": "20000"}
_FILE, _FOLDER = 0o640, 0o750  # HDFS gives both the parent folder's group, which may read
_NO_SERVICE = "No NameNode hosts found"


def connect(where: HdfsLocation) -> Client:
    """Create a client without contacting HDFS yet. InvalidArgumentError: `hdfs-native` isn't installed, or Hadoop's
    configuration is invalid."""
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
        tries = {"dfs.client.failover.max.attempts": str(_other_nodes(where.nodes))}
        return Native(where.nodes, {**_PATIENCE, **tries, **where.settings})
    except (RuntimeError, OSError, ElementTree.ParseError) as error:
        if _NO_SERVICE in str(error):
            raise InvalidArgumentError(
                f"{where.nodes} lacks a port and isn't a name service in HADOOP_CONF_DIR/hdfs-site.xml: correct the URL"
            ) from None
        reason = re.sub(r"\s+", " ", str(error))[:300]
        raise InvalidArgumentError(f"Hadoop's configuration in HADOOP_CONF_DIR is invalid: {reason}") from None


def _other_nodes(nodes: str) -> int:
    """Return the number of name nodes to try after the first. Raises OSError, ElementTree.ParseError."""
    parts = urlsplit(nodes)
    if parts.port is not None:
        return 0
    folder = os.environ.get("HADOOP_CONF_DIR") or os.environ.get("HADOOP_HOME", "") + "/etc/hadoop"
    known = ""
    for file in (Path(folder) / "core-site.xml", Path(folder) / "hdfs-site.xml"):
        if file.exists():
            for item in ElementTree.parse(file).iter("property"):
                if item.findtext("name") == f"dfs.ha.namenodes.{parts.netloc}":
                    known = item.findtext("value") or ""
    return known.count(",")
