"""A segment store with chunks in a real HDFS, and its faults: restarts of the name node, dead data nodes, safe mode,
exhausted quotas, missing permissions. The log continues, and all writes are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from nadi.cli.admin.migrate import _ProgressBar
from nadi.errors import DataFolderError, InvalidArgumentError, StorageFullError, StoreError, UnavailableError
from nadi.migration.migrate import Migration
from nadi.migration.sources import StoppedFolder
from nadi.migration.targets import NewFolder
from nadi.segmentstore.data_dir import Tier2
from nadi.segmentstore.repair.inspection import inspect_folder
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2 import claim
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire import commands as wire
from tests.segmentstore.tier2.elsewhere import SEGMENT, again, append, expected, move, opened_as
from tests.support.hdfs.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.uvloop, pytest.mark.timeout(600)]
CHUNK = "container-0/x"


async def until_available(work: Callable[[], Awaitable[object]], limit_s: float = 240.0) -> None:
    """Retry until it succeeds, like the storage writer."""
    async with asyncio.timeout(limit_s):
        while True:
            try:
                await work()
                return
            except UnavailableError:
                await asyncio.sleep(0.2)


def path_of(url: str) -> str:
    return urlsplit(url).path


# --- outages ---------------------------------------------------------------------------------------


@pytest.fixture(params=["away", "safe mode"])
def outage(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Callable[[bool], None]]:
    """Return a function that begins or ends an outage of the name node."""
    words = {"away": ("start-name-node", "stop-name-node"), "safe mode": ("safe-mode off", "safe-mode on")}
    now = False

    def change(is_out: bool) -> None:
        nonlocal now
        now = is_out
        cluster.run_command(words[request.param][is_out])

    yield change
    if now:
        change(False)


async def test_log_grows_during_outage_and_is_moved_afterwards(
    tmp_path: Path, url: str, outage: Callable[[bool], None], request: pytest.FixtureRequest
) -> None:
    async with opened_as(tmp_path, Tier2(url)) as (store, peer):
        await append(peer, 1, 3)
        await move(store)
        outage(True)
        await append(peer, 4, 5)
        with pytest.raises(UnavailableError):
            await move(store)
        reply = await peer.ask(wire.ReadSegment(SEGMENT, 0, 1_000, "", 8))
        if "away" in request.node.name:
            assert isinstance(reply, wire.ErrorMessage)
            assert reply.error_code == wire.CHUNKS_UNAVAILABLE
            peer = await again(peer)
        else:
            assert isinstance(reply, wire.SegmentRead)
        assert not store.containers[0].damage.all()
        outage(False)
        await until_available(lambda: move(store))
        assert await peer.read_all(SEGMENT) == expected(5)
    async with opened_as(tmp_path, Tier2(url)) as (_, peer):
        assert await peer.read_all(SEGMENT) == expected(5)


async def test_start_during_outage_fails_without_loss(
    tmp_path: Path, url: str, outage: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "START_S", 1.0)
    async with opened_as(tmp_path, Tier2(url)) as (store, peer):
        await append(peer, 1, 3)
        await move(store)
    outage(True)
    with pytest.raises(UnavailableError):
        await SegmentStore(tmp_path, 1, tier2=Tier2(url)).start()
    outage(False)
    async with opened_as(tmp_path, Tier2(url)) as (store, peer):
        await append(peer, 4, 5)
        await until_available(lambda: move(store))
        assert await peer.read_all(SEGMENT) == expected(5)


async def test_dead_data_nodes_lose_no_chunks(tmp_path: Path, url: str, cluster: Cluster) -> None:
    try:
        async with opened_as(tmp_path, Tier2(url, {"dfs.replication": "2"})) as (store, peer):
            await append(peer, 1, 3)
            await move(store)
            cluster.run_command("kill-data-node")
            await append(peer, 4, 5)
            await until_available(lambda: move(store))
            assert await peer.read_all(SEGMENT) == expected(5)
        cluster.run_command("kill-data-node")
        async with opened_as(tmp_path, Tier2(url, {"dfs.replication": "2"})) as (store, peer):
            assert await peer.read_all(SEGMENT) == expected(5), "each chunk has two replicas on three data nodes"
    finally:
        cluster.run_command("start-data-nodes")


async def test_outage_of_all_data_nodes_loses_nothing(tmp_path: Path, url: str, cluster: Cluster) -> None:
    try:
        async with opened_as(tmp_path, Tier2(url)) as (store, peer):
            for _ in range(3):
                cluster.run_command("kill-data-node")
            await append(peer, 1, 3)
            with pytest.raises(UnavailableError):
                await move(store)
            cluster.run_command("start-data-nodes")
            await until_available(lambda: move(store))
            assert await peer.read_all(SEGMENT) == expected(3)
    finally:
        cluster.run_command("start-data-nodes")


async def test_exhausted_quota_raises_storage_full(tmp_path: Path, url: str, cluster: Cluster) -> None:
    async with opened_as(tmp_path, Tier2(url)) as (store, peer):
        await append(peer, 1, 3)
        cluster.run_command("space-quota", path_of(url), 1 << 20)
        with pytest.raises(StorageFullError):
            await store.chunks.put(CHUNK, [b"x"])
        with pytest.raises(UnavailableError):
            await move(store)
        await append(peer, 4, 5)
        cluster.run_command("space-quota", path_of(url), "none")
        await move(store)
        assert await peer.read_all(SEGMENT) == expected(5)
    assert cluster.run_command("files-in", path_of(url) + "/.unfinished") == "0"


async def test_quota_is_charged_little_more_than_the_stored_bytes(url: str, cluster: Cluster) -> None:
    chunks = ChunkStore.from_url(url, **{"dfs.replication": "2"})
    await chunks.put("first", [b"x"])
    cluster.run_command("space-quota", path_of(url), 2 * (6 << 20))
    for name in ("a", "b"):
        await chunks.put(name, [bytes(2 << 20)])
    assert cluster.run_command("replication", path_of(url) + "/a") == "2"
    with pytest.raises(StorageFullError):
        await chunks.put("c", [bytes(2 << 20)])


# --- refusals --------------------------------------------------------------------------------------


async def refused(folder: Path, url: str) -> str:
    with pytest.raises((StoreError, DataFolderError)) as error:
        async with opened_as(folder, Tier2(url)):
            pass
    return str(error.value)


async def test_unwritable_folder_is_rejected(
    tmp_path: Path, url: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.run_command("make-folder", path_of(url), "755")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    message = await refused(tmp_path, f"{url}/chunks")
    assert "HADOOP_USER_NAME" in message
    assert "user=stranger" in message


async def test_folder_with_other_data_is_rejected(tmp_path: Path, url: str, cluster: Cluster) -> None:
    async with opened_as(tmp_path / "a", Tier2(url)):
        pass
    await refused(tmp_path / "b", url)
    cluster.run_command("make-file", f"{path_of(url)}-b/mine.txt")
    assert "mine.txt" in await refused(tmp_path / "c", f"{url}-b")
    assert "part of the path is a file" in await refused(tmp_path / "d", f"{url}-b/mine.txt/chunks")


async def test_an_erasure_coded_folder_is_refused(tmp_path: Path, url: str, cluster: Cluster) -> None:
    cluster.run_command("make-folder", path_of(url), "777")
    cluster.run_command("erasure-code", path_of(url))
    assert "erasure-coded" in await refused(tmp_path, url)


async def test_unknown_name_service_is_reported(url: str) -> None:
    place = f"{urlsplit(url).scheme}://service{path_of(url)}"
    with pytest.raises(InvalidArgumentError, match=r"hdfs-site\.xml"):
        ChunkStore.from_url(place)


async def test_configured_name_service_is_used(
    tmp_path: Path, url: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two name nodes is down."""
    known = {
        "dfs.ha.namenodes.service": "nn1,nn2",
        "dfs.namenode.rpc-address.service.nn1": "127.0.0.1:9",
        "dfs.namenode.rpc-address.service.nn2": f"127.0.0.1:{cluster.port}",
    }
    pairs = (f"<name>{name}</name><value>{value}</value>" for name, value in known.items())
    written = "".join(f"<property>{pair}</property>" for pair in pairs)
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{written}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    chunks = ChunkStore.from_url(f"hdfs://service{path_of(url)}")
    await chunks.put(CHUNK, [b"x"])
    assert bytes(await ChunkStore.from_url(url).read(CHUNK, 0, 10)) == b"x"


# --- migration and inspection ------------------------------------------------------------------------


async def test_migrated_chunks_pass_the_check(tmp_path: Path, url: str) -> None:
    async with opened_as(tmp_path / "before", None) as (store, peer):
        await append(peer, 1, 3)
        await move(store)
    data = tmp_path / "data"
    async with StoppedFolder(tmp_path / "before") as source, NewFolder(data, None, Tier2(url)) as target:
        await Migration(source, target, _ProgressBar()).run()
    async with opened_as(data, Tier2(url)) as (store, peer):
        assert await peer.read_all(SEGMENT) == expected(3)
        await append(peer, 4, 5)
        await move(store)
    assert not [finding for report in await inspect_folder(data) for finding in report.lost]
