"""HDFS as a store, with a fake client: URLs, error messages, hanging calls, and interrupted or late puts and sets.
`tests/hdfs` uses the real one.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from nadi.errors import InvalidArgumentError, StorageFullError, UnavailableError
from nadi.limits import HDFS_CALLS_AT_ONCE
from nadi.object_log.failures import RefusedError
from nadi.object_log.hdfs import files
from nadi.object_log.hdfs.engine import HdfsRegistry, open_hdfs
from nadi.object_log.hdfs.files import Client, HdfsFiles, error_for
from nadi.object_log.hdfs.location import where
from nadi.object_log.opening import open_engines
from nadi.runtime import REAL
from nadi.segmentstore.tier2.chunks import ChunkStore
from tests.support.hdfs.fake import FakeHdfs, FakeWriter, Node
from tests.support.waiting import until_async

URL = "hdfs://name-node:8020/a/folder"
UNFINISHED = "/a/folder/.unfinished"


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch) -> FakeHdfs:
    hdfs = FakeHdfs()
    monkeypatch.setattr(files, "connect", hdfs.connect)
    return hdfs


@pytest.fixture
def stored(hdfs: FakeHdfs) -> HdfsFiles:
    return HdfsFiles(where(URL), REAL)


def unfinished(hdfs: FakeHdfs) -> list[str]:
    return [path for path in hdfs.nodes if path.startswith(UNFINISHED + "/")]


# --- where -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "data"),
    [
        ("hdfs://name-node:8020", {}, "folder"),
        ("hdfs://name-node:8020/", {}, "folder"),
        ("hdfs:///folder", {}, "name node"),
        ("hdfs:folder", {}, "name node"),
        ("hdfs://name-node:many/folder", {}, "port"),
        ("hdfs://name-node:8020/a/../b", {}, "a/../b"),
        ("hdfs://name-node:8020/a//b", {}, "a//b"),
        ("hdfs://name-node:8020/a:b", {}, "a:b"),
        ("hdfs://name-node:8020/a#b", {}, "a#b"),
        ("hdfs://user:secret@name-node:8020/a", {}, "credentials"),
        (URL, {"endpoint": "x"}, "endpoint.*dfs.replication"),
        (URL, {"dfs.replication": "none"}, "dfs.replication.*512.*'none'"),
        (URL, {"dfs.blocksize": "1024"}, "dfs.blocksize.*1,048,576"),
    ],
)
async def test_invalid_url_or_option_is_rejected(hdfs: FakeHdfs, url: str, options: dict[str, str], data: str) -> None:
    with pytest.raises(InvalidArgumentError, match=data) as caught:
        ChunkStore.from_url(url, **options)
    assert "secret" not in str(caught.value)


async def test_cluster_on_hdfs_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="--tier2"):
        await open_engines(URL, REAL)


# --- error messages --------------------------------------------------------------------------------

_SERVER = "org.apache.hadoop.hdfs.server.namenode"
_STACK = r"\n\tat org.apache.hadoop.hdfs.server.namenode.FSNamesystem.f(FSNamesystem.java:1)"


class PanicException(BaseException):
    """Panic of the library, as seen by Python."""


def _rpc(java: str, message: str) -> RuntimeError:
    """Return a name node's error, as raised by the library."""
    return RuntimeError(f'RPCError("{java}", "{message}{_STACK}")')


_FORBIDS = (
    "permission denied; make this server's HDFS user the owner of the folder, or set HADOOP_USER_NAME "
    '(user=x, inode="/p")'
)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (_rpc(f"{_SERVER}.SafeModeException", "Cannot rename /a."), None, "in safe mode"),
        (_rpc("org.apache.hadoop.ipc.RetriableException", "Name node is in safe mode."), None, "in safe mode"),
        (
            _rpc("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "of /q"),
            StorageFullError,
            "the folder's quota is exhausted; raise it, or free space (of /q)",
        ),
        (_rpc("org.apache.hadoop.security.AccessControlException", 'user=x, inode=\\"/p\\"'), RefusedError, _FORBIDS),
        (_rpc("org.apache.hadoop.ipc.StandbyException", "x"), None, "is active"),
        (_rpc("java.io.IOException", "File /a could only be written to 0 of the 1 "), None, "all data nodes"),
        (RuntimeError('OperationFailed("hsync is not supported for erasure-coded files")'), RefusedError, "replicated"),
        (RuntimeError("NoSASLMechanism"), RefusedError, "Kerberos"),
        (ConnectionRefusedError("Connection refused (os error 111)"), None, "unreachable"),
        (TimeoutError(), None, "no answer in time"),
        (PanicException("there is no reactor"), None, "there is no reactor; will be retried"),
    ],
)
def test_errors_are_mapped_to_messages(error: BaseException, kind: type[UnavailableError] | None, message: str) -> None:
    problem = error_for("store x", error)
    assert type(problem) is (kind or UnavailableError)
    assert str(problem).startswith("HDFS can't store x: ")
    assert message in str(problem)
    assert "at org.apache" not in str(problem)


async def test_each_call_maps_errors(hdfs: FakeHdfs, stored: HdfsFiles) -> None:
    hdfs.error = RuntimeError(f'RPCError("{_SERVER}.SafeModeException", "Name node is in safe mode.")')

    async def listed() -> None:
        async for _ in stored.pages(""):
            pass

    for work in (stored.put("x", [b"x"]), stored.read("x"), stored.delete("x"), stored.rename("x", "y"), listed()):
        with pytest.raises(UnavailableError, match="safe mode"):
            await work
    for call in (lambda: stored.is_there("x"), lambda: stored.listed("x")):
        with pytest.raises(UnavailableError, match="safe mode"):
            call()


# --- puts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["create_file", "write", "hsync", "close", "rename"])
async def test_a_put_that_fails_leaves_nothing(hdfs: FakeHdfs, stored: HdfsFiles, at: str) -> None:
    hdfs.error, hdfs.of = RuntimeError('RPCError("org.x.DSQuotaExceededException", "of /q")'), (at,)
    with pytest.raises(StorageFullError):
        await stored.put("a/b", [b"x"])
    assert not unfinished(hdfs)
    assert "/a/folder/a/b" not in hdfs.nodes
    hdfs.error = None
    assert await stored.put("a/b", [b"x"])


async def test_old_draft_of_killed_writer_is_removed(hdfs: FakeHdfs, stored: HdfsFiles) -> None:
    now_ms = time.time_ns() // 1_000_000
    hdfs.make_folder(UNFINISHED)
    hdfs.nodes[f"{UNFINISHED}/old"] = Node(b"x", now_ms - 2 * 3_600_000)
    hdfs.nodes[f"{UNFINISHED}/young"] = Node(b"x", now_ms - 60_000)
    await stored.put("a", [b"x"])
    assert unfinished(hdfs) == [f"{UNFINISHED}/young"]
    assert [file.name for file in stored.listed("")] == ["a"]


async def test_folder_with_name_of_chunk_is_not_a_missing_chunk(hdfs: FakeHdfs, stored: HdfsFiles) -> None:
    hdfs.make_folder("/a/folder/container-0/x")
    with pytest.raises(UnavailableError):
        await stored.read("container-0/x")


# --- hanging calls ---------------------------------------------------------------------------------


async def test_unanswered_call_times_out_and_connection_is_replaced(hdfs: FakeHdfs, stored: HdfsFiles) -> None:
    await stored.put("a", [b"x"])
    before = stored._client
    hdfs.is_silent = True
    for _ in range(2 * HDFS_CALLS_AT_ONCE):
        with pytest.raises(UnavailableError, match="no answer in time"):
            await stored.run("read a", lambda client: client.read("/a/folder/a"), 0.001)
    with pytest.raises(UnavailableError, match="no answer in time"):
        stored.run_here("read a", lambda client: client.read("/a/folder/a"), 0.001)
    hdfs.is_silent = False
    assert await stored.read("a") == b"x"
    assert stored._client is not before


async def test_hanging_sync_times_out_and_leaves_no_draft(
    hdfs: FakeHdfs, stored: HdfsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(writer: FakeWriter) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(files, "HDFS_PUT_S", 0.2)
        patched.setattr(FakeWriter, "hsync", never)
        with pytest.raises(UnavailableError, match="no answer in time"):
            await stored.put("a", [b"x"])
    assert not unfinished(hdfs)
    assert await stored.put("a", [b"y"])
    assert await stored.read("a") == b"y"


async def test_unanswered_put_times_out(hdfs: FakeHdfs, stored: HdfsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "HDFS_PUT_S", 0.1)
    monkeypatch.setattr(files, "_DROP_S", 0.1)
    hdfs.is_silent = True
    async with asyncio.timeout(20):
        with pytest.raises(UnavailableError, match="no answer in time"):
            await stored.put("a", [b"x"])


def test_concurrent_calls_are_limited(hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "HDFS_CALLS_AT_ONCE", 3)
    pool, release, running, most = HdfsFiles(where(URL), REAL), threading.Event(), [0], [0]

    async def work(client: Client) -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await until_async(release.is_set)
        running[0] -= 1
        return 7

    async def run() -> None:
        waiting = [asyncio.ensure_future(pool.run("wait", work)) for _ in range(20)]
        await until_async(lambda: running[0] == 3)
        with pytest.raises(UnavailableError, match="no answer in time"):
            await pool.run("wait", work, 0.05)
        waiting.pop().cancel()
        release.set()
        assert await asyncio.gather(*waiting) == [7] * 19

    asyncio.run(run())
    assert most[0] == 3
    assert [pool.run_here("wait", work) for _ in range(10)] == [7] * 10


# --- values ----------------------------------------------------------------------------------------


async def test_late_set_has_no_effect(hdfs: FakeHdfs) -> None:
    """It read a version, and takes effect after later sets, or after the value was deleted and recreated."""
    _, registry = open_hdfs(URL, REAL)
    first = await registry.compare_and_set("v", b"1", None)
    assert first is not None
    second = await registry.compare_and_set("v", b"2", first)
    third = await registry.compare_and_set("v", b"3", second)
    assert third is not None
    for late in (await _late(registry, "v", first), await _late(registry, "v", second or "")):
        assert late is None
    entry = await registry.get("v")
    assert entry is not None
    assert (entry.value, entry.version) == (b"3", third)
    await registry.delete("v")
    assert await _late(registry, "v", third) is None
    assert await registry.get("v") is None
    assert await registry.compare_and_set("v", b"new", None) is not None
    assert await _late(registry, "v", third) is None
    entry = await registry.get("v")
    assert entry is not None
    assert entry.value == b"new"
    again = await registry.compare_and_set("v", b"newer", entry.version)
    assert again is not None
    assert len([path for path in hdfs.nodes if "/v/" in path]) == 2, "the first and the last version"


async def _late(registry: HdfsRegistry, name: str, version: str) -> str | None:
    """Set a value after having read it while it had that version."""
    newest, calls = registry._newest, [0]

    async def newest_when_read(name: str) -> object:
        calls[0] += 1
        if calls[0] == 1:
            return version
        return await newest(name)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(registry, "_newest", newest_when_read)
        return await registry.compare_and_set(name, b"late", version)
