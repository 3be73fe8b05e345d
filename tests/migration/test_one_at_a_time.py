"""One process at a time moves a store's data, or undoes that; after a crash the next may continue."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

import nadi
from nadi.errors import ConflictError, FencedError
from nadi.migration import migration_lock
from nadi.migration.migration_lock import MigrationLock, has_ended
from nadi.migration.planning import undo_cluster, undo_folder
from nadi.migration.sources import ClusterStore, StoppedFolder
from nadi.migration.targets import NewCluster, NewFolder
from nadi.object_log.engine import Registry
from nadi.object_log.files import open_files
from nadi.object_log.opening import open_engines
from nadi.runtime import REAL
from nadi.segmentstore.tier2.records import ContainerRecords, NewLocation
from tests.migration.support import LIMITS, Store, begin, migrate, refused
from tests.support.clocks import StandsStill
from tests.support.fake_s3 import FakeS3
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.timeout(300)
BEAT_S, DEAD_S = 0.1, 1.0  # for processes that replace a dead one
QUICK = {"NADI_LIMITS": f"{LIMITS['NADI_LIMITS']},migration_lock_beat_s={BEAT_S},migration_lock_dead_s={DEAD_S}"}
BUSY = "another `nadi migrate`"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice a live process soon, and don't declare it dead if the machine pauses."""
    monkeypatch.setattr(migration_lock, "MIGRATION_LOCK_BEAT_S", BEAT_S)
    monkeypatch.setattr(migration_lock, "MIGRATION_LOCK_DEAD_S", 60.0)


@contextmanager
def dead_soon() -> Iterator[None]:
    """Let processes that start meanwhile replace a dead one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration_lock, "MIGRATION_LOCK_DEAD_S", DEAD_S)
        yield


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return the store of a cluster without servers."""
    made = Store(f"file://{tmp_path}/store")
    made.server().stop()
    return made


def lock_file(tmp_path: Path) -> Path:
    return tmp_path / "store" / "migrating"


def is_released(tmp_path: Path) -> bool:
    return b'"has_ended":true' in lock_file(tmp_path).read_bytes()


@asynccontextmanager
async def under_way(undo: Coroutine[Any, Any, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Context in which `undo` is blocked midway."""
    started, released = asyncio.Event(), asyncio.Event()

    async def waits(records: ContainerRecords, number: int, epoch: int) -> None:
        started.set()
        await released.wait()
        await really(records, number, epoch)

    really = ContainerRecords.take_back
    monkeypatch.setattr(ContainerRecords, "take_back", waits)
    task = asyncio.create_task(undo)
    await started.wait()
    yield
    released.set()
    await task


@pytest.mark.parametrize("first", ["migrate", "undo"])
@pytest.mark.parametrize("second", ["migrate", "undo"])
async def test_folder_is_locked(
    first: str, second: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Store(f"file://{tmp_path}/store")
    arguments = ("--undo", str(data)) if second == "undo" else (str(data), new.url)
    async with AsyncExitStack() as stack:
        if first == "undo":
            migrate(str(data), new.url, store=new)
            shutil.rmtree(tmp_path / "store")
            await stack.enter_async_context(under_way(undo_folder(data, {}), monkeypatch))
        else:
            await stack.enter_async_context(StoppedFolder(data))
            await stack.enter_async_context(NewCluster(new.url, {}, 1))
        assert BUSY in await asyncio.to_thread(refused, *arguments, store=new)


@pytest.mark.parametrize("second", ["migrate", "undo", "fill"])
async def test_cluster_store_is_locked(second: str, store: Store, tmp_path: Path) -> None:
    back, other = tmp_path / "back", tmp_path / "other"
    if second == "undo":  # there is a migration to undo, and its target isn't found
        migrate(store.url, str(back), store=store)
        back.rename(tmp_path / "elsewhere")
    source = ClusterStore(store.url, {})
    async with source:
        arguments = {
            "migrate": (store.url, str(other)),
            "undo": ("--undo", store.url),
            "fill": (str(other), store.url),
        }[second]
        if second == "fill":
            nadi.embedded(other).stop()
        assert BUSY in await asyncio.to_thread(refused, *arguments, store=store)
    assert is_released(tmp_path)


async def test_cluster_is_locked_during_undo(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    back, other = tmp_path / "back", tmp_path / "other"
    migrate(store.url, str(back), store=store)
    back.rename(tmp_path / "elsewhere")
    async with under_way(undo_cluster(store.url, {}), monkeypatch):
        assert BUSY in await asyncio.to_thread(refused, store.url, str(other), store=store)
        assert BUSY in await asyncio.to_thread(refused, "--undo", store.url, store=store)
    store.server().stop()


HOLDER = """
import asyncio, sys
from nadi.migration.sources import ClusterStore

async def main():
    async with ClusterStore(sys.argv[1], {}):
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_lock_is_taken_over_after_a_crash(store: Store, tmp_path: Path) -> None:
    back = tmp_path / "back"
    with subprocess.Popen([sys.executable, "-c", HOLDER, store.url]) as killed:
        try:
            until(lock_file(tmp_path).exists)
        finally:
            killed.kill()
    assert not is_released(tmp_path)
    process = begin(store.url, str(back), store=store, environment=QUICK)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert is_released(tmp_path)


def test_lock_left_by_a_crash_does_not_block_a_new_store(data: Path, tmp_path: Path) -> None:
    new = Store(f"file://{tmp_path}/store")
    lock_file(tmp_path).parent.mkdir()
    lock_file(tmp_path).write_bytes(b"whatever")
    process = begin(str(data), new.url, store=new, environment=QUICK)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    new.server().stop()


async def test_paused_holder_learns_of_its_loss(tmp_path: Path) -> None:
    engine, registry = await open_files(tmp_path, REAL)
    first = MigrationLock(registry, "file:///store")
    async with AsyncExitStack() as stack:
        async with first:
            first._beats.cancel()
            with dead_soon():
                await stack.enter_async_context(second := MigrationLock(registry, "file:///store"))
            with pytest.raises(ConflictError, match=BUSY):
                await first.keep()
        await second.keep()  # its value is still there, though the first holder has ended
        with pytest.raises(ConflictError, match=BUSY):
            await MigrationLock(registry, "file:///store").__aenter__()
    entry = await registry.get("migrating")
    assert entry is not None
    assert has_ended(entry)
    await engine.close()


async def test_holder_paused_with_the_machine_keeps_the_lock(tmp_path: Path) -> None:
    engine, registry = await open_files(tmp_path, REAL)
    async with MigrationLock(registry, "file:///store") as first:
        with pytest.raises(ConflictError, match=BUSY):
            await MigrationLock(registry, "file:///store", StandsStill()).__aenter__()
        await first.keep()
    await engine.close()


class Late:
    """Registry that calls `meanwhile` before one change of a value, after `before` earlier changes."""

    def __init__(self, registry: Registry, meanwhile: Callable[[], Awaitable[object]], before: int) -> None:
        self._registry, self._meanwhile, self._remaining = registry, meanwhile, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        await self._change()
        return await self._registry.compare_and_set(name, value, version)

    async def delete(self, name: str) -> None:
        await self._change()
        await self._registry.delete(name)

    async def _change(self) -> None:
        self._remaining -= 1
        if self._remaining == -1:
            await self._meanwhile()


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.slow)])
async def test_paused_holder_does_not_release_its_successors_lock(kind: str, before: int, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        options = (await stack.enter_async_context(FakeS3())).config() if kind == "s3" else {}
        url = "s3://bucket/nadi" if kind == "s3" else f"file://{tmp_path}/store"
        engine, registry = await open_engines(url, REAL, **options)
        stack.push_async_callback(engine.close)
        first, second = MigrationLock(registry, url), MigrationLock(registry, url)
        await first.__aenter__()

        async def comes() -> None:
            with dead_soon():
                await stack.enter_async_context(second)

        first._registry = cast("Registry", Late(registry, comes, before))
        first._beats.cancel()
        await first.__aexit__()
        if not hasattr(second, "_beats"):  # the first holder ended with fewer changes
            await stack.enter_async_context(second)
        await second.keep()
        with pytest.raises(ConflictError, match=BUSY):
            await MigrationLock(registry, url).__aenter__()


async def test_released_lock_is_acquired_at_once_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration_lock, "MIGRATION_LOCK_DEAD_S", 3600.0)
    engine, registry = await open_files(tmp_path, REAL)
    for _ in range(2):
        async with MigrationLock(registry, "file:///store"):
            pass
    turns = [MigrationLock(registry, "file:///store") for _ in range(3)]
    results = await asyncio.gather(*(turn.__aenter__() for turn in turns), return_exceptions=True)
    (holder,) = [result for result in results if isinstance(result, MigrationLock)]
    assert all(isinstance(result, ConflictError) for result in results if result is not holder)
    await holder.__aexit__()
    await engine.close()


async def test_undone_migration_cannot_leave_more_containers(store: Store, tmp_path: Path) -> None:
    """A migration is paused while leaving, and another process undoes it."""
    async with ClusterStore(store.url, {}) as source:
        await source.settle()
        records = ContainerRecords(source._shared.registry, REAL)
        owner = (await records.read(0)).record.epoch
        await records.move_away(0, owner, NewLocation((tmp_path / "gone").as_uri(), "m"))
        source.lock._beats.cancel()
        with dead_soon():
            await undo_cluster(store.url, {})
        with pytest.raises(FencedError):
            await records.move_away(0, owner, NewLocation("file:///gone", "m"))
        with pytest.raises(ConflictError):
            await source.leave("file:///gone", "m")
    store.server().stop()


async def test_target_is_not_opened_after_source_was_undone(store: Store, tmp_path: Path) -> None:
    from nadi.cli.admin.migrate import _ProgressBar
    from nadi.migration.migrate import Migration

    target, back = NewFolder(tmp_path / "back", 1), tmp_path / "back"
    async with ClusterStore(store.url, {}) as source, target:
        leave = source.leave

        async def leaves(to: str, migration: str) -> None:
            await leave(to, migration)
            for number in range(source.containers):
                record = (await source.stored.read(number)).record
                await source.stored.take_back(number, record.epoch)

        source.leave = leaves  # type: ignore[method-assign]
        with pytest.raises(ConflictError):
            await Migration(source, target, _ProgressBar()).run()
    with pytest.raises(nadi.errors.DataFolderError, match="migration"):
        nadi.embedded(back)
    await until_async(lambda: is_released(tmp_path))
