"""A migration killed or failing at any point leaves the source unchanged, and the next run completes it."""

from __future__ import annotations

import random
import re
import shutil
import time
from pathlib import Path

import pytest

import nadi
from nadi.cli.admin.migrate import _ProgressBar
from nadi.client import StreamManager
from nadi.errors import DamagedDataError, DataFolderError, StoreError
from nadi.migration.migrate import Migration
from nadi.migration.sources import ClusterStore, StoppedFolder
from nadi.migration.targets import NewCluster, NewFolder
from nadi.segmentstore.data_dir import Tier2, check_not_moved, find_store
from tests.migration.support import LIMITS, Store, Written, begin, migrate, store_of
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)


class Stopped(Exception):
    """Simulated failure of a migration."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    """Return the data folder of a stopped server with three containers."""
    data = tmp_path_factory.mktemp("filled") / "data"
    server = nadi.embedded(data, containers=3, environment=LIMITS)
    with StreamManager(server.controller_uri) as manager:
        written = Written(manager)
        until(lambda: chunks_in(data / "tier2"))
    server.stop()
    return data, written


def chunks_in(store: Path) -> list[Path]:
    return [path for path in store.glob("container-*/*/*") if path.is_file()]


def copied(filled: tuple[Path, Written], folder: Path) -> Path:
    shutil.copytree(filled[0], folder)
    return folder


def check_served(data: Path, written: Written) -> None:
    with nadi.embedded(data) as server, StreamManager(server.controller_uri) as manager:
        written.check(manager)


def check(data: Path) -> None:
    store_file = find_store(data).store
    assert store_file is not None
    check_not_moved(data, store_file)


STEPS = ["put", "leave", *(pytest.param(step, marks=pytest.mark.slow) for step in ("settle", "left", "finish"))]


@pytest.mark.parametrize("step", STEPS)
async def test_failed_migration_is_completed_by_next_run(
    step: str, filled: tuple[Path, Written], tmp_path: Path
) -> None:
    data, url = copied(filled, tmp_path / "data"), f"file://{tmp_path}/store"
    back, last = tmp_path / "back", tmp_path / "last"

    async def run(source: StoppedFolder | ClusterStore, target: NewCluster | NewFolder, failing: str) -> None:
        async with source, target:
            if failing:
                fail(source, target, failing)
            await Migration(source, target, _ProgressBar()).run()

    def fail(source: object, target: object, failing: str) -> None:
        async def stops(*_: object) -> None:
            raise Stopped

        if failing == "left":  # fail right after `leave`

            async def leaves(to: str, migration: str) -> None:
                await leave(to, migration)
                raise Stopped

            leave = source.leave  # type: ignore[attr-defined]
            source.leave = leaves  # type: ignore[attr-defined]
        else:
            setattr(source if hasattr(source, failing) else target, failing, stops)

    for source, target in (
        (lambda: StoppedFolder(data), lambda: NewCluster(url, {}, None)),
        (lambda: ClusterStore(url, {}), lambda: NewFolder(back, 2, Tier2(f"file://{tmp_path}/chunks"))),
        (lambda: StoppedFolder(back), lambda: NewFolder(last, None)),
    ):
        with pytest.raises(Stopped):
            await run(source(), target(), step)
        is_left = step in ("left", "finish")
        async with source() as opened:
            assert bool(await opened.migrated_by()) == is_left
        await run(source(), target(), "")
    with pytest.raises(DataFolderError, match=re.escape(url)):
        check(data)
    check_served(last, filled[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_repeatedly_killed_migration_completes(kind: str, filled: tuple[Path, Written], tmp_path: Path) -> None:
    data, back = copied(filled, tmp_path / "data"), tmp_path / "back"
    chance = random.Random(7)
    with store_of(kind, tmp_path) as store:
        kill_repeatedly(chance, str(data), store.url, store=store)
        migrate(str(data), store.url, store=store)
        with store.server() as server, StreamManager(server.controller_uri) as manager:
            filled[1].check(manager)
        kill_repeatedly(chance, store.url, str(back), store=store)
        migrate(store.url, str(back), store=store)
    check_served(back, filled[1])


def kill_repeatedly(chance: random.Random, *arguments: str, store: Store) -> None:
    for _ in range(5):
        process = begin(*arguments, store=store)
        time.sleep(chance.uniform(0.4, 1.5))
        process.kill()
        process.communicate()


def test_folder_stays_in_service_after_copying_ahead(filled: tuple[Path, Written], tmp_path: Path) -> None:
    data, store = copied(filled, tmp_path / "data"), Store(f"file://{tmp_path}/store")
    migrate(str(data), store.url, "--ahead", store=store)
    with pytest.raises(StoreError, match="migration"):
        store.server()
    check_served(data, filled[1])
    migrate(str(data), store.url, store=store)
    with store.server() as server, StreamManager(server.controller_uri) as manager:
        filled[1].check(manager)


async def test_damaged_copy_of_earlier_run_is_replaced(filled: tuple[Path, Written], tmp_path: Path) -> None:
    data, url = copied(filled, tmp_path / "data"), f"file://{tmp_path}/store"
    async with StoppedFolder(data) as source, NewCluster(url, {}, None) as target:
        await source.settle()  # so that snapshots name several chunks
        await Migration(source, target, _ProgressBar()).run(only_ahead=True)
    chunks = chunks_in(tmp_path / "store")
    assert len(chunks) > 1
    raw = bytearray(chunks[0].read_bytes())
    raw[1] ^= 1
    chunks[0].write_bytes(raw)
    async with StoppedFolder(data) as source, NewCluster(url, {}, None) as target:
        report = await Migration(source, target, _ProgressBar()).run()
    assert 0 < report.stored_bytes < report.bytes
    with nadi.embedded(store=url) as server, StreamManager(server.controller_uri) as manager:
        filled[1].check(manager)


async def test_damaged_source_is_reported_and_not_moved(filled: tuple[Path, Written], tmp_path: Path) -> None:
    data, url = copied(filled, tmp_path / "data"), f"file://{tmp_path}/store"
    async with StoppedFolder(data) as source:
        await source.settle()  # so that snapshots name chunks, whatever the server had moved before
    for chunk in chunks_in(data / "tier2"):  # some may be replaced already, and never read
        raw = bytearray(chunk.read_bytes())
        raw[1] ^= 1
        chunk.write_bytes(raw)
    with pytest.raises(DamagedDataError):
        async with StoppedFolder(data) as source, NewCluster(url, {}, None) as target:
            await Migration(source, target, _ProgressBar()).run()
    check(data)
    with pytest.raises(StoreError, match="migration"):
        nadi.embedded(store=url)
