"""A data folder's chunks in an external store: its ownership, its contents, and the detection of problems."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest

from nadi.cli.admin.migrate import _ProgressBar
from nadi.errors import DataFolderError, FencedError, InvalidArgumentError, StoreError, UnavailableError
from nadi.migration.migrate import Migration
from nadi.migration.migration_lock import MigrationLock
from nadi.migration.sources import StoppedFolder
from nadi.migration.targets import NewFolder
from nadi.object_log import outcomes
from nadi.object_log.identity import open_cluster
from nadi.object_log.opening import open_engines
from nadi.runtime import REAL
from nadi.segmentstore import storage_writer
from nadi.segmentstore.data_dir import TIER2, Tier2, find_store, has_chunks
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.writer import FrameWriter
from nadi.segmentstore.tier2 import claim
from nadi.segmentstore.tier2.opening import reclaim
from nadi.segmentstore.write_freeze import WriteFreeze
from nadi.wire import commands as wire
from tests.segmentstore.harness import open_store
from tests.segmentstore.tier2.elsewhere import (
    SEGMENT,
    URL,
    again,
    append,
    chunks,
    event,
    expected,
    move,
    opened,
    opened_as,
)
from tests.support.fake_s3.server import FakeS3
from tests.support.folders import as_a_kill_leaves_it

pytestmark = pytest.mark.uvloop


async def test_external_store_has_the_chunks_and_the_folder_the_log(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        async with opened(tmp_path, fake) as (store, peer):
            await append(peer, 1, 3)
            await move(store)
            await append(peer, 4, 5)
            assert len(chunks(fake)) == 1
            assert await peer.read_all(SEGMENT) == expected(5)
        assert not has_chunks(tmp_path)
        async with opened(tmp_path, fake) as (_, peer):
            assert await peer.read_all(SEGMENT) == expected(5)
        said = (tmp_path / "store.json").read_text()
        assert "secret" not in said
        assert fake.endpoint in said


async def test_chunks_of_what_was_deleted_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_writer, "CHUNK_GARBAGE_DELAY_S", 0.0)
    async with FakeS3() as fake, opened(tmp_path, fake) as (store, peer):
        await append(peer, 1, 3)
        await move(store)
        assert len(chunks(fake)) == 1
        assert isinstance(await peer.ask(wire.DeleteSegment(1, SEGMENT, "")), wire.SegmentDeleted)
        await store.storage_writers[0]._collect_garbage()
        assert not chunks(fake)


async def test_late_and_failed_puts_leave_no_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies are lost, and puts are executed after their caller was cancelled; no unneeded chunk remains."""
    monkeypatch.setattr(storage_writer, "CHUNK_GARBAGE_DELAY_S", 0.5)
    async with FakeS3() as fake, opened(tmp_path, fake) as (store, peer):
        writer, state = store.storage_writers[0], store.containers[0].state
        fake.faults.update(lost_answers=0.3, late_puts=0.4, slow_down=0.2, seed=7)
        for last in range(1, 6):
            await append(peer, last, last)
            while state.frames:
                try:
                    await move(store)
                except UnavailableError:
                    await writer._drop_lost_plans()
        fake.faults.update(lost_answers=0.0, late_puts=0.0, slow_down=0.0)
        assert await peer.read_all(SEGMENT) == expected(5)
        await writer._drop_lost_plans()
        await writer._runtime.sleep(0.6)
        await writer._collect_garbage()
        record = state.find(SEGMENT)
        assert record is not None
        assert {name.rpartition("/")[2] for name in chunks(fake)} == {
            extent.chunk.rpartition("/")[2] for extent in record.extents
        }


# --- ownership -----------------------------------------------------------------------------------


async def refused(folder: Path, fake: FakeS3, url: str = URL) -> str:
    with pytest.raises((StoreError, DataFolderError, InvalidArgumentError)) as error:
        async with opened(folder, fake, url):
            pass
    return str(error.value)


async def test_another_folders_store_is_refused(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        async with opened(tmp_path / "a", fake):
            pass
        before = dict(fake.objects.now)
        assert URL in await refused(tmp_path / "b", fake)
        assert fake.objects.now == before
        async with opened(tmp_path / "b", fake, URL + "-b"):  # the migration failed
            pass


@pytest.mark.parametrize(("name", "said"), [("cluster.json", "cluster.json"), ("mine.txt", "mine.txt")])
async def test_store_with_foreign_objects_is_refused(tmp_path: Path, name: str, said: str) -> None:
    async with FakeS3() as fake:
        await fake.objects.put(f"chunks/{name}", b"{}", absent=False, etag=None, generation=None)
        assert said in await refused(tmp_path, fake)


async def test_a_clusters_store_is_refused(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        engine, _ = await open_engines(URL, REAL, **fake.config())
        await open_cluster(engine, 2, REAL)
        assert "cluster" in await refused(tmp_path, fake)
        await engine.close()


async def test_a_cluster_refuses_the_store_of_a_data_folder(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        async with opened(tmp_path, fake):
            pass
        engine, _ = await open_engines(URL, REAL, **fake.config())
        with pytest.raises(StoreError):
            await open_cluster(engine, None, REAL)
        await engine.close()


async def test_failed_migration_leaves_the_store_free(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        engine, registry = await open_engines(URL, REAL, **fake.config())
        async with MigrationLock(registry, URL):
            pass
        await engine.close()
        async with opened(tmp_path / "late", fake):
            pass


async def test_missing_bucket_is_refused(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        assert "NoSuchBucket" in await refused(tmp_path, fake, "s3://wrong/chunks")


async def test_store_without_conditional_puts_is_refused(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        fake.faults.update(ignored=["create", "match"])
        assert await refused(tmp_path, fake)


async def test_an_emptied_store_is_refused(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        async with opened(tmp_path, fake):
            pass
        fake.objects.now.clear()
        assert "cluster.json" in await refused(tmp_path, fake)


async def test_folder_refuses_another_store_url(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        async with opened(tmp_path, fake):
            pass
        with pytest.raises(InvalidArgumentError, match=f"--tier2 {URL}"):
            async with opened_as(tmp_path, None):
                pass
        assert f"keeps its chunks in {URL}, not in s3://bucket/b" in await refused(tmp_path, fake, "s3://bucket/b")


async def test_a_folder_with_chunks_of_its_own_is_refused(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        async with open_store(tmp_path, 1) as (store, peer):
            await append(peer, 1, 3)
            await move(store)
        assert f"`nadi migrate {tmp_path} NEW --tier2 {URL}`" in await refused(tmp_path, fake)
        assert not fake.objects.now
        assert not (said := find_store(tmp_path).store) or not said.url


async def test_store_overlapping_the_data_folder_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "data" / "x", tmp_path):
        with pytest.raises(InvalidArgumentError):
            async with opened_as(tmp_path / "data", Tier2(place.as_uri())):
                pass


async def test_of_two_copies_only_the_last_that_was_opened_writes(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        async with opened(tmp_path / "a", fake) as (store, peer):
            await append(peer, 1, 3)
            await move(store)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        async with opened(tmp_path / "a", fake) as (store, peer):
            await append(peer, 4, 4)
            await move(store)
            assert "nadi tier2 claim" in await refused(tmp_path / "b", fake)
            (tmp_path / "b" / "store.json").write_bytes((tmp_path / "a" / "store.json").read_bytes())
            async with opened(tmp_path / "b", fake):  # a copy made while it ran, now the owner
                pass
            before = set(chunks(fake))
            await peer.ask(wire.DeleteSegment(1, SEGMENT, ""))
            with pytest.raises(StoreError, match="nadi tier2 claim"):
                await store.chunks.check_ours()
            assert store.taken_over.is_set()
            with pytest.raises(StoreError, match="nadi tier2 claim"):
                await store.chunks.put("container-0/x", [b"x"])
            assert set(chunks(fake)) == before


async def test_server_detects_a_copy_from_a_record(tmp_path: Path) -> None:
    """The lock of its own folder is held all the time."""

    async def pause(size_bytes: int) -> None: ...

    async with FakeS3() as fake:
        async with opened(tmp_path / "a", fake) as (store, peer):
            await append(peer, 1, 3)
        async with opened(tmp_path / "a", fake) as (store, _):
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            async with opened(tmp_path / "b", fake):
                pass
            with pytest.raises(FencedError):
                await store.containers[0].parts.snapshots.verify(pause)
            await asyncio.wait_for(store.taken_over.wait(), 10)
            assert store.chunks.claim is not None
            assert isinstance(store.chunks.claim.lost, StoreError)


# --- outages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [{"slow_down": 1.0}, {"expired": True}, {"lost_requests": 1.0}, {"denied": ["put", "get", "list"]}]
)
async def test_unavailable_store_does_not_affect_the_log(tmp_path: Path, fault: dict[str, object]) -> None:
    async with FakeS3() as fake, opened(tmp_path, fake) as (store, peer):
        await append(peer, 1, 3)
        await move(store)
        fake.faults.update(**fault)
        await append(peer, 4, 5)
        with pytest.raises(UnavailableError):
            await move(store)
        reply = await peer.ask(wire.ReadSegment(SEGMENT, len(expected(3)), 1_000, "", 7))
        assert bytes(reply.data) == expected(5)[len(expected(3)) :][: len(reply.data)]
        reply = await peer.ask(wire.ReadSegment(SEGMENT, 0, 1_000, "", 8))
        assert isinstance(reply, wire.ErrorMessage)
        assert reply.error_code == wire.CHUNKS_UNAVAILABLE
        assert not store.containers[0].damage.all()
        peer = await again(peer)
        fake.faults.update(slow_down=0.0, expired=False, lost_requests=0.0, denied=[])
        await move(store)
        assert await peer.read_all(SEGMENT) == expected(5)
        assert len(chunks(fake)) == 2


async def test_writers_are_refused_once_the_log_is_at_its_bound(tmp_path: Path) -> None:
    async with FakeS3() as fake, opened(tmp_path, fake) as (store, peer):
        await append(peer, 1, 3)
        fake.faults.update(slow_down=1.0)
        store.containers[0].log_max_bytes = 2_000
        await peer.setup(SEGMENT)
        refused = await peer.append([event(4)], 4)
        assert isinstance(refused, wire.ErrorMessage)
        assert refused.error_code == wire.STORAGE_FULL
        assert "tier 2" in refused.message
        peer = await again(peer)
        assert await peer.read_all(SEGMENT) == expected(3)
        store.containers[0].log_max_bytes = 1 << 30  # as if the log had been released, which happens by entire files
        await append(peer, 4, 5)
        assert await peer.read_all(SEGMENT) == expected(5)


async def test_a_start_waits_a_while_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeS3() as fake:
        async with opened(tmp_path, fake) as (store, peer):
            await append(peer, 1, 3)
            await move(store)
            await append(peer, 4, 5)
        fake.faults.update(slow_down=1.0)
        asyncio.get_running_loop().call_later(1.0, lambda: fake.faults.update(slow_down=0.0))
        async with opened(tmp_path, fake) as (store, peer):
            assert await peer.read_all(SEGMENT) == expected(5)


async def test_start_without_the_store_fails_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeS3() as fake:
        async with opened(tmp_path, fake) as (store, peer):
            await append(peer, 1, 3)
            await move(store)
            fake.faults.update(slow_down=1.0)
            await append(peer, 4, 5)  # and the stop can't store a snapshot
        with monkeypatch.context() as patched:
            patched.setattr(claim, "START_S", 1.0)
            with pytest.raises(UnavailableError, match="503 SlowDown"):
                await SegmentStore(tmp_path, 1, tier2=Tier2(URL, fake.config())).start()
        fake.faults.update(slow_down=0.0)
        async with opened(tmp_path, fake) as (store, peer):
            assert await peer.read_all(SEGMENT) == expected(5)


async def test_start_waits_once_for_an_unresponsive_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again for each container."""
    monkeypatch.setattr(claim, "START_S", 0.5)
    async with FakeS3() as fake:
        tier2 = Tier2(URL, fake.config())
        store = SegmentStore(tmp_path, 3, tier2=tier2)
        await store.start()
        await store.close()
        fake.faults.update(latency_ms={"get": (60_000, 60_001), "list": (60_000, 60_001)})
        store = SegmentStore(tmp_path, 3, tier2=tier2)
        async with asyncio.timeout(20):
            with pytest.raises(UnavailableError):
                await store.start()


async def test_start_on_a_full_disk_can_claim_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has filled the disk while the store was unavailable, and only a server with the store can empty it."""
    write = disk.write_all

    def full(fd: int, data: memoryview, offset: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("store.json.tmp") and reserved.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(fd, data, offset)

    async with FakeS3() as fake:
        async with opened(tmp_path, fake) as (store, peer):
            await append(peer, 1, 3)
            reserved = tmp_path / "container-0" / "reserve"
        assert reserved.exists()
        monkeypatch.setattr(disk, "write_all", full)
        async with opened(tmp_path, fake) as (store, peer):
            await move(store)
            assert await peer.read_all(SEGMENT) == expected(3)
        assert reserved.exists()


# --- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "truncated", "gone"])
async def test_replaced_object_is_detected(tmp_path: Path, damage: str) -> None:
    async with FakeS3() as fake:
        async with opened(tmp_path, fake) as (store, peer):
            await append(peer, 1, 3)
            await move(store)
            await append(peer, 4, 5)
        (key,) = chunks(fake)
        if damage == "gone":
            await fake.objects.delete(key)
        else:
            body = bytearray(fake.objects.now[key].body)
            body[10] ^= 1
            damaged = bytes(body if damage == "flipped" else body[:50])
            await fake.objects.put(key, damaged, absent=False, etag=None, generation=None)
        async with opened(tmp_path, fake) as (store, peer):
            reply = await peer.ask(wire.ReadSegment(SEGMENT, 0, 1_000, "", 8))
            assert isinstance(reply, wire.ErrorMessage)
            assert reply.error_code == wire.DAMAGED_DATA
            at = len(expected(3))
            reply = await peer.ask(wire.ReadSegment(SEGMENT, at, 1_000, "", 7))
            assert bytes(reply.data) == expected(5)[at:][: len(reply.data)]


# --- claims by copies of a folder, by the wrong folder, and killed halfway: no chunk is lost -------------


async def written(folder: Path) -> None:
    """Create a folder with two chunks of its own."""
    async with opened_as(folder, None) as (store, peer):
        for first, last in ((1, 3), (4, 6)):
            await append(peer, first, last)
            await move(store)


async def moved_out(folder: Path, fake: FakeS3, url: str = URL) -> None:
    """Move the data to a folder of that name, with its chunks in S3."""
    old = folder.with_name(f"{folder.name}-before")
    await asyncio.to_thread(folder.rename, old)
    async with StoppedFolder(old) as source, NewFolder(folder, None, Tier2(url, fake.config())) as target:
        await Migration(source, target, _ProgressBar()).run()


async def claimed(folder: Path, fake: FakeS3, url: str = URL) -> None:
    await reclaim(folder, Tier2(url, fake.config()), REAL)


async def killed(*_: object) -> None:
    raise UnavailableError("killed")


async def test_killed_first_start_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the store is claimed, and after, when the folder doesn't record it yet."""
    real = outcomes.was_set

    async def killed_afterwards(*arguments: object) -> None:
        await real(*arguments)  # type: ignore[arg-type]
        raise StoreError("killed")

    async def killed_before(*_: object) -> None:
        raise StoreError("killed")

    async with FakeS3() as fake:
        for stop in (killed_before, killed_afterwards):
            with monkeypatch.context() as patched:
                patched.setattr(outcomes, "was_set", stop)
                with pytest.raises(StoreError, match="killed"):
                    async with opened(tmp_path, fake):
                        pass
        async with opened(tmp_path, fake) as (store, peer):
            await append(peer, 1, 3)
            await move(store)
            assert await peer.read_all(SEGMENT) == expected(3)


async def test_killed_claim_of_another_store_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All objects were copied there."""
    async with FakeS3() as fake:
        await written(tmp_path / "data")
        await moved_out(tmp_path / "data", fake)
        for key, found in list(fake.objects.now.items()):
            copy = key.replace("chunks/", "copied/", 1)
            await fake.objects.put(copy, found.body, absent=False, etag=None, generation=None)
        with monkeypatch.context() as patched:
            patched.setattr(outcomes, "was_set", killed)
            with pytest.raises(UnavailableError, match="killed"):
                await claimed(tmp_path / "data", fake, "s3://bucket/copied")
        await claimed(tmp_path / "data", fake, "s3://bucket/copied")
        async with opened(tmp_path / "data", fake, "s3://bucket/copied") as (_, peer):
            assert await peer.read_all(SEGMENT) == expected(6)


async def test_store_of_another_folder_is_not_claimed(tmp_path: Path) -> None:
    async with FakeS3() as fake:
        for name in ("a", "b"):
            await written(tmp_path / name)
            await moved_out(tmp_path / name, fake, f"s3://bucket/{name}")
        with pytest.raises(StoreError, match="s3://bucket/b"):
            await claimed(tmp_path / "a", fake, "s3://bucket/b")
        for name in ("a", "b"):
            async with opened(tmp_path / name, fake, f"s3://bucket/{name}") as (_, peer):
                assert await peer.read_all(SEGMENT) == expected(6)


async def test_folder_with_its_own_chunks_claims_no_store(tmp_path: Path) -> None:
    """They would be deleted when the others are moved back."""
    async with FakeS3() as fake:
        for name in ("a", "b"):
            await written(tmp_path / name)
        await moved_out(tmp_path / "b", fake)
        with pytest.raises(DataFolderError, match="nadi migrate"):
            await claimed(tmp_path / "a", fake)
        assert has_chunks(tmp_path / "a")
        async with opened(tmp_path / "b", fake) as (_, peer):
            assert await peer.read_all(SEGMENT) == expected(6)


async def test_missing_store_folder_is_not_claimed(tmp_path: Path) -> None:
    await written(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / TIER2)
    with pytest.raises(StoreError, match="typo"):
        await reclaim(tmp_path / "data", Tier2((tmp_path / "typo").as_uri()), REAL)
    assert not (tmp_path / "typo").exists()


async def test_claim_killed_after_reaching_the_store_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = outcomes.was_set

    async def killed_afterwards(*arguments: object) -> None:
        await real(*arguments)  # type: ignore[arg-type]
        await killed()

    async with FakeS3() as fake:
        await written(tmp_path / "data")
        await moved_out(tmp_path / "data", fake)
        with monkeypatch.context() as patched:
            patched.setattr(outcomes, "was_set", killed_afterwards)
            with pytest.raises(UnavailableError, match="killed"):
                await claimed(tmp_path / "data", fake)
        async with opened(tmp_path / "data", fake) as (_, peer):
            assert await peer.read_all(SEGMENT) == expected(6)


async def test_overtaken_copy_does_not_touch_the_new_snapshot(tmp_path: Path) -> None:
    """Both copies use the same numbers; without the folder, the store has the only data."""

    async def keep(store: SegmentStore) -> None:
        store.storage_writers[0].start()
        await WriteFreeze(store).refresh()
        await store.storage_writers[0].stop()

    async with FakeS3() as fake, opened(tmp_path / "a", fake) as (first, peer):
        await append(peer, 1, 3)
        await keep(first)
        as_a_kill_leaves_it(tmp_path / "a", tmp_path / "b")
        async with opened(tmp_path / "b", fake) as (second, second_peer):
            await append(second_peer, 4, 5)
            await keep(second)
        there = {key: found.body for key, found in fake.objects.now.items() if "/snapshots/" in key}
        await append(peer, 6, 6)
        keeping = asyncio.create_task(keep(first))
        async with asyncio.timeout(60):
            await first.taken_over.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        now = {key: found.body for key, found in fake.objects.now.items()}
        assert {key: now.get(key) for key in there} == there


async def test_a_store_in_another_folder_is_not_claimed(tmp_path: Path) -> None:
    """Its own server may have it open, protected only by that folder's lock."""
    await written(tmp_path / "own")
    url = (tmp_path / "own" / TIER2).as_uri()
    with pytest.raises(StoreError):
        await reclaim(tmp_path / "other", Tier2(url), REAL)
    with pytest.raises(StoreError):
        async with opened_as(tmp_path / "third", Tier2(url)):
            pass
    async with opened_as(tmp_path / "own", None) as (_, peer):
        assert await peer.read_all(SEGMENT) == expected(6)


async def test_killed_claim_of_a_lost_folder_does_not_create_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isn't served without its chunks, and the claim can be repeated."""
    folder = tmp_path / "data"
    async with FakeS3() as fake:
        async with opened(folder, fake) as (_, peer):
            await append(peer, 1, 3)
        await asyncio.to_thread(shutil.rmtree, folder)
        folder.mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(outcomes, "was_set", killed)
            with pytest.raises(UnavailableError, match="killed"):
                await claimed(folder, fake)
        with pytest.raises(InvalidArgumentError, match="--tier2 s3://bucket/chunks"):
            async with opened_as(folder, None):
                pass
        await claimed(folder, fake)


async def test_store_with_outdated_records_is_refused(tmp_path: Path) -> None:
    """No copy of the folder was opened, so the error is another one."""
    async with FakeS3() as fake:
        async with opened(tmp_path, fake):
            before = dict(fake.objects.now)
        async with opened(tmp_path, fake):
            pass
        name = next(key for key in before if key.endswith("containers/0"))
        fake.objects.now[name] = before[name]
        with pytest.raises(StoreError, match="containers/0"):
            async with opened(tmp_path, fake):
                pass


async def test_a_link_to_the_store_is_refused(tmp_path: Path) -> None:
    """Two folders could share it, each with its own lock."""
    await written(tmp_path / "data")
    (tmp_path / "data" / TIER2).rename(tmp_path / "large-disk")
    (tmp_path / "data" / TIER2).symlink_to(tmp_path / "large-disk")
    with pytest.raises(DataFolderError, match="tier2"):
        async with opened_as(tmp_path / "data", None):
            pass


async def test_killed_first_start_after_a_migration_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the log's first file exists without any frame."""

    class KilledError(Exception):
        pass

    def dies(*_: object) -> None:
        raise KilledError

    async with FakeS3() as fake:
        await written(tmp_path / "data")
        await moved_out(tmp_path / "data", fake)
        with monkeypatch.context() as patched:
            patched.setattr(FrameWriter, "write", dies)
            with pytest.raises(KilledError):
                async with opened(tmp_path / "data", fake):
                    pass
        assert list((tmp_path / "data" / "container-0" / "log").glob("log-*.nadi"))
        async with opened(tmp_path / "data", fake) as (_, peer):
            assert await peer.read_all(SEGMENT) == expected(6)
