"""One process at a time moves a store's data, or takes it back; after a crash the next may."""

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
from nadi.migration.migration_lock import Turn, has_ended
from nadi.migration.planning import take_back_cluster, take_back_folder
from nadi.migration.sources import ClusterStore, StoppedFolder
from nadi.migration.targets import NewCluster, NewFolder
from nadi.object_log.engine import Registry
from nadi.object_log.files import open_files
from nadi.object_log.opening import open_engines
from nadi.runtime import REAL
from nadi.segmentstore.tier2.records import ContainerRecords, MovedAway
from tests.migration.support import LIMITS, Store, begin, migrate, refused
from tests.support.clocks import StandsStill
from tests.support.fake_s3 import FakeS3
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.timeout(300)
BEAT_S, DEAD_S = 0.1, 1.0  # for those who take the place of a dead one
QUICK = {"NADI_LIMITS": f"{LIMITS['NADI_LIMITS']},migration_turn_beat_s={BEAT_S},migration_turn_dead_s={DEAD_S}"}
BUSY = "is being moved by another `nadi migrate`, or taken back"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lives is noticed soon, and not taken for dead where the machine stands still."""
    monkeypatch.setattr(migration_lock, "MIGRATION_TURN_BEAT_S", BEAT_S)
    monkeypatch.setattr(migration_lock, "MIGRATION_TURN_DEAD_S", 60.0)


@contextmanager
def dead_soon() -> Iterator[None]:
    """Whoever begins meanwhile takes the place of one that is dead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration_lock, "MIGRATION_TURN_DEAD_S", DEAD_S)
        yield


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A cluster's, which no server has."""
    made = Store(f"file://{tmp_path}/store")
    made.server().stop()
    return made


def leftover(tmp_path: Path) -> Path:
    return tmp_path / "store" / "migrating"


def is_given_back(tmp_path: Path) -> bool:
    return b'"has_ended":true' in leftover(tmp_path).read_bytes()


@asynccontextmanager
async def under_way(undo: Coroutine[Any, Any, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """One that is being taken back, and doesn't get on meanwhile."""
    at_it, goes_on = asyncio.Event(), asyncio.Event()

    async def waits(records: ContainerRecords, number: int, epoch: int) -> None:
        at_it.set()
        await goes_on.wait()
        await really(records, number, epoch)

    really = ContainerRecords.take_back
    monkeypatch.setattr(ContainerRecords, "take_back", waits)
    task = asyncio.create_task(undo)
    await at_it.wait()
    yield
    goes_on.set()
    await task


@pytest.mark.parametrize("first", ["migrate", "undo"])
@pytest.mark.parametrize("second", ["migrate", "undo"])
async def test_of_a_folder(
    first: str, second: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = Store(f"file://{tmp_path}/store")
    given = ("--undo", str(data)) if second == "undo" else (str(data), new.url)
    async with AsyncExitStack() as stack:
        if first == "undo":
            migrate(str(data), new.url, store=new)
            shutil.rmtree(tmp_path / "store")
            await stack.enter_async_context(under_way(take_back_folder(data, {}), monkeypatch))
        else:
            await stack.enter_async_context(StoppedFolder(data))
            await stack.enter_async_context(NewCluster(new.url, {}, 1))
        assert BUSY in await asyncio.to_thread(refused, *given, store=new)


@pytest.mark.parametrize("second", ["migrate", "undo", "fill"])
async def test_of_a_cluster(second: str, store: Store, tmp_path: Path) -> None:
    back, other = tmp_path / "back", tmp_path / "other"
    if second == "undo":  # there is something to take back, and nobody's folder stands in its way
        migrate(store.url, str(back), store=store)
        back.rename(tmp_path / "elsewhere")
    source = ClusterStore(store.url, {})
    async with source:
        given = {
            "migrate": (store.url, str(other)),
            "undo": ("--undo", store.url),
            "fill": (str(other), store.url),
        }[second]
        if second == "fill":
            nadi.embedded(other).stop()
        assert BUSY in await asyncio.to_thread(refused, *given, store=store)
    assert is_given_back(tmp_path)


async def test_a_cluster_that_is_being_taken_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back, other = tmp_path / "back", tmp_path / "other"
    migrate(store.url, str(back), store=store)
    back.rename(tmp_path / "elsewhere")
    async with under_way(take_back_cluster(store.url, {}), monkeypatch):
        assert BUSY in await asyncio.to_thread(refused, store.url, str(other), store=store)
        assert BUSY in await asyncio.to_thread(refused, "--undo", store.url, store=store)
    store.server().stop()


HAS_ITS_TURN = """
import asyncio, sys
from nadi.migration.sources import ClusterStore

async def main():
    async with ClusterStore(sys.argv[1], {}):
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_after_a_crash_the_next_may_go_on(store: Store, tmp_path: Path) -> None:
    back = tmp_path / "back"
    with subprocess.Popen([sys.executable, "-c", HAS_ITS_TURN, store.url]) as killed:
        try:
            until(leftover(tmp_path).exists)
        finally:
            killed.kill()
    assert not is_given_back(tmp_path)
    process = begin(store.url, str(back), store=store, environment=QUICK)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert is_given_back(tmp_path)


def test_what_a_crash_leaves_is_no_strangers(data: Path, tmp_path: Path) -> None:
    new = Store(f"file://{tmp_path}/store")
    leftover(tmp_path).parent.mkdir()
    leftover(tmp_path).write_bytes(b"whatever")
    process = begin(str(data), new.url, store=new, environment=QUICK)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    new.server().stop()


async def test_one_that_stood_still_is_told_so(tmp_path: Path) -> None:
    engine, registry = await open_files(tmp_path, REAL)
    first = Turn(registry, "file:///store")
    async with AsyncExitStack() as stack:
        async with first:
            first._beats.cancel()
            with dead_soon():
                await stack.enter_async_context(second := Turn(registry, "file:///store"))
            with pytest.raises(ConflictError, match=BUSY):
                await first.keep()
        await second.keep()  # whose value is still there, though the first has left
        with pytest.raises(ConflictError, match=BUSY):
            await Turn(registry, "file:///store").__aenter__()
    there = await registry.get("migrating")
    assert there is not None
    assert has_ended(there)
    await engine.close()


async def test_one_that_stood_still_with_the_machine_is_not_dead(tmp_path: Path) -> None:
    engine, registry = await open_files(tmp_path, REAL)
    async with Turn(registry, "file:///store") as first:
        with pytest.raises(ConflictError, match=BUSY):
            await Turn(registry, "file:///store", StandsStill()).__aenter__()
        await first.keep()
    await engine.close()


class Late:
    """A registry that `meanwhile` is called for, before one change of a value: the first that is made, or a later."""

    def __init__(self, registry: Registry, meanwhile: Callable[[], Awaitable[object]], before: int) -> None:
        self._registry, self._meanwhile, self._left = registry, meanwhile, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        await self._change()
        return await self._registry.compare_and_set(name, value, version)

    async def delete(self, name: str) -> None:
        await self._change()
        await self._registry.delete(name)

    async def _change(self) -> None:
        self._left -= 1
        if self._left == -1:
            await self._meanwhile()


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.slow)])
async def test_one_that_stood_still_while_it_ends_gives_back_no_other_s(kind: str, before: int, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        options = (await stack.enter_async_context(FakeS3())).config() if kind == "s3" else {}
        url = "s3://bucket/nadi" if kind == "s3" else f"file://{tmp_path}/store"
        engine, registry = await open_engines(url, REAL, **options)
        stack.push_async_callback(engine.close)
        first, second = Turn(registry, url), Turn(registry, url)
        await first.__aenter__()

        async def comes() -> None:
            with dead_soon():
                await stack.enter_async_context(second)

        first._registry = cast("Registry", Late(registry, comes, before))
        first._beats.cancel()
        await first.__aexit__()
        if not hasattr(second, "_beats"):  # it ended with fewer changes
            await stack.enter_async_context(second)
        await second.keep()
        with pytest.raises(ConflictError, match=BUSY):
            await Turn(registry, url).__aenter__()


async def test_what_is_given_back_is_taken_at_once_and_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration_lock, "MIGRATION_TURN_DEAD_S", 3600.0)
    engine, registry = await open_files(tmp_path, REAL)
    for _ in range(2):
        async with Turn(registry, "file:///store"):
            pass
    turns = [Turn(registry, "file:///store") for _ in range(3)]
    came = await asyncio.gather(*(one.__aenter__() for one in turns), return_exceptions=True)
    (has,) = [one for one in came if isinstance(one, Turn)]
    assert all(isinstance(one, ConflictError) for one in came if one is not has)
    await has.__aexit__()
    await engine.close()


async def test_who_was_taken_back_can_leave_nothing_more(store: Store, tmp_path: Path) -> None:
    """A migration that stood still in the midst of leaving, while another process took it back."""
    async with ClusterStore(store.url, {}) as source:
        await source.settle()
        records = ContainerRecords(source._shared.registry, REAL)
        owner = (await records.read(0)).record.epoch
        await records.move_away(0, owner, MovedAway((tmp_path / "gone").as_uri(), "m"))
        source.turn._beats.cancel()
        with dead_soon():
            await take_back_cluster(store.url, {})
        with pytest.raises(FencedError):
            await records.move_away(0, owner, MovedAway("file:///gone", "m"))
        with pytest.raises(ConflictError):
            await source.leave("file:///gone", "m")
    store.server().stop()


async def test_a_folder_isnt_filled_to_the_end_once_its_source_was_taken_back(store: Store, tmp_path: Path) -> None:
    from nadi.cli.admin.migrate import _Shown
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
        with pytest.raises(ConflictError, match="taken back meanwhile"):
            await Migration(source, target, _Shown()).run()
    with pytest.raises(nadi.errors.DataFolderError, match="hasn't ended"):
        nadi.embedded(back)
    await until_async(lambda: is_given_back(tmp_path))
