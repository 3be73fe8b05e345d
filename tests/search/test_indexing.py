"""Indexers on a real server: each event is found once, despite changes of the stream, crashes and a full store; and the
folders in which shards are built."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import nadi
from nadi.client.aio import StreamManager
from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts.arrival_times import arrival_times
from nadi.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    RequestTimeoutError,
    StreamRecreatedError,
    UnavailableError,
)
from nadi.object_log.files import FileEngine
from nadi.process.members import Members
from nadi.search import IndexNotFoundError, backfill_parts, serve
from nadi.search.shards.building import clean_work_folders, work_folder
from nadi.testing import RestartableServer
from nadi.wire.time_index import Numbers
from tests.search.support import FIELDS, Indexed, all_hits, event, numbers
from tests.support.small_disk import fill, small_disk
from tests.support.waiting import until_async

pytest.importorskip("tantivy", reason="search needs tantivy")


async def found_once(logs: Indexed, count: int) -> None:
    search = await logs.caught_up()
    hits = await all_hits(search, limit=1000)
    assert Counter(numbers(hits)) == Counter(range(count))
    assert len({(hit.segment_id, hit.offset) for hit in hits}) == count
    assert (await search.count())["all"] == count


async def test_indexer_finds_new_events(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.process.members.PROCESS_LEAVE_S", 60.0)
    await logs.write(map(event, range(500)))
    await logs.create()
    async with logs.running():
        await found_once(logs, 500)
        search = await logs.caught_up()
        await logs.write([event(500, message="something new")])
        page = await search.query("new", wait_for="tail")
        assert numbers(page.hits) == [500]
        status = await logs.status()
        assert (status.indexed, status.invalid, status.lag_bytes, len(status.indexers)) == (501, 0, 0, 1)
    assert (await logs.status()).indexers == ()


async def test_invalid_events_become_dead_letters_once(logs: Indexed) -> None:
    await logs.create(dead_letters="unfit")
    bad = {7: b"{", 20: b"\xff\xfe", 33: event(33, ms="no number"), 40: b""}
    await logs.write(bad.get(number, event(number)) for number in range(60))
    await logs.crash("dead-lettered")
    async with logs.running():
        search = await logs.caught_up()
    assert sorted(numbers(await all_hits(search))) == [number for number in range(60) if number not in bad]
    letters = [msgspec.json.decode(one) for one in await logs.read_all("unfit")]
    assert sorted(base64.b64decode(one["data"]) for one in letters) == sorted(bad.values())
    assert any("ms " in one["reason"] for one in letters)
    assert {one["by"] for one in letters} == {f"index {logs.scope}/logs"}
    assert (await logs.status()).invalid == 4


@pytest.mark.parametrize("step", ["built", "stored", "added"])
async def test_indexer_killed_between_steps_indexes_once(logs: Indexed, step: str) -> None:
    await logs.create()
    await logs.write(map(event, range(100)))
    for written in (100, 150, 200):
        await logs.crash(step)
        await logs.write(map(event, range(written, written + 50)))
    async with logs.running():
        await found_once(logs, 250)


async def test_splits_and_merges(logs: Indexed) -> None:
    await logs.create()
    manager, scope = logs.manager, logs.scope
    async with logs.running(2):
        await logs.write(map(event, range(200)))
        await manager.scale_stream(scope, "logs", [0], [(0.0, 0.25), (0.25, 0.5)])
        await logs.write(map(event, range(200, 400)))
        await logs.scale([(0.0, 0.6), (0.6, 1.0)])
        await logs.write(map(event, range(400, 600)))
        await logs.scale([(0.0, 0.1), (0.1, 1.0)])
        await logs.write(map(event, range(600, 700)))
        await found_once(logs, 700)
        search = await logs.search()
        assert await search.reached() == (await manager.stream_info(scope, "logs")).tail


async def test_truncated_events_are_not_found_and_their_shards_deleted(logs: Indexed) -> None:
    manager, cuts = logs.manager, logs.manager.cuts(logs.scope, "logs")
    await logs.indexed(map(event, range(100)))
    first = await cuts.tail()
    await logs.write(map(event, range(100, 200)), ["k"] * 100)  # written at once, so they become one shard
    half = await cuts.after(first, 50)
    async with logs.running():
        search = await logs.caught_up()
        await manager.truncate_stream(half)
        left = await all_hits(search)
        assert len(left) == 150 - 100
        assert min(numbers(left)) >= 100
        assert (await search.count())["all"] == 50
    async with logs.running():  # shards are maintained at its start
        await logs.until_shards(1, 1)
    assert len(await all_hits(await logs.search())) == 50


async def test_indexer_counts_truncated_events_as_gaps(logs: Indexed) -> None:
    """Events truncated before they were indexed are a gap; the others are found."""
    await logs.create()
    await logs.write(map(event, range(100)))
    cuts = logs.manager.cuts(logs.scope, "logs")
    await logs.manager.scale_stream(logs.scope, "logs", [0], [(0.0, 0.25), (0.25, 0.5)])
    await logs.manager.truncate_stream(await cuts.tail())
    await logs.write(map(event, range(100, 130)))
    async with logs.running():
        search = await logs.caught_up()
    assert sorted(numbers(await all_hits(search))) == list(range(100, 130))
    assert (await logs.status()).gaps == 2


async def test_segment_truncated_while_indexed_is_deleted(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    await logs.create()
    manager, cuts, gone = logs.manager, logs.manager.cuts(logs.scope, "logs"), asyncio.Event()
    asked: list[str] = []

    async def late(stores: SegmentStores, segment: str, offsets: Numbers, end: int) -> Numbers:
        asked.append(segment)
        if len(asked) == 1:
            await manager.scale_stream(logs.scope, "logs", [0, 1], [(0.0, 0.5), (0.5, 1.0)])
            await manager.truncate_stream(await cuts.tail())
            await logs.write(map(event, range(100, 130)), ["k"] * 30)  # at once, so they become one shard
            gone.set()
        await gone.wait()
        return await arrival_times(stores, segment, offsets, end)

    monkeypatch.setattr("nadi.search.indexing.arrival_times", late)
    await logs.write(map(event, range(100)))
    async with logs.running():
        await asyncio.wait_for(gone.wait(), 60)
        search = await logs.caught_up()
        assert sorted(numbers(await all_hits(search))) == list(range(100, 130))
        await logs.until_shards(1, 1)


async def test_many_shards_are_merged(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.limits.SEARCH_COMMIT_S", 0.01)
    await logs.create()
    async with logs.running():
        search = await logs.search()
        for number in range(12):
            await logs.write([event(number)])
            await search.wait("tail")
        await logs.until_shards(1, 8)
        await found_once(logs, 12)
        assert len(await all_hits(search)) == 12  # opened before the merge


async def test_stop_ends_workers_and_delete_removes_all(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(10)))
    _, task = logs.start()
    search = await logs.caught_up()
    await logs.indexes.stop("logs")
    await asyncio.wait_for(task, 60)
    assert (await logs.indexes.get("logs")).is_stopped
    await logs.write(map(event, range(10, 20)))
    with pytest.raises(RequestTimeoutError):
        await search.wait("tail", 0.3)
    _, task = logs.start()
    await search.wait("tail")
    await logs.indexes.delete("logs")
    await asyncio.wait_for(task, 60)
    assert not [path for path in (logs.folder / "shards").rglob("*") if path.is_file() and ".nadi" not in path.parts]
    with pytest.raises(IndexNotFoundError):
        await search.query()
    assert await logs.indexes.list() == []
    await logs.create()  # recreate
    async with logs.running():
        await found_once(logs, 20)


@pytest.mark.parametrize("is_indexed", [True, False])
async def test_recreated_stream_raises_stream_recreated_error(logs: Indexed, is_indexed: bool) -> None:
    manager = logs.manager
    await logs.create()
    await logs.write(map(event, range(50)))
    if is_indexed:
        async with logs.running():
            search = await logs.caught_up()
    search = await logs.search()
    await manager.seal_stream(logs.scope, "logs")
    if is_indexed:
        await asyncio.wait_for(logs.start()[1], 60)
    await manager.delete_stream(logs.scope, "logs")
    await manager.create_stream(logs.scope, "logs", 2)
    await logs.write(map(event, range(50, 80)))
    for ask in (
        search.query,
        search.count,
        logs.status,
        lambda: search.query(wait_for="tail"),
        lambda: logs.start()[1],
    ):
        with pytest.raises(StreamRecreatedError):
            await asyncio.wait_for(ask(), 60)
    with nadi.StreamManager(logs.uri) as client, pytest.raises(StreamRecreatedError):
        await asyncio.to_thread(backfill_parts, client, logs.scope, "logs")
    await logs.indexes.delete("logs")
    await logs.create()
    async with logs.running():
        assert sorted(numbers(await all_hits(await logs.caught_up()))) == list(range(50, 80))


async def test_status_omits_killed_indexers(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    async def killed(sharing: Members) -> None:
        pass

    await logs.create()
    monkeypatch.setattr(Members, "leave", killed)
    async with logs.running():
        await logs.caught_up()
    assert len((await logs.status()).indexers) == 1
    monkeypatch.setattr("nadi.process.members.PROCESS_SILENT_S", 0.1)
    await asyncio.sleep(0.1)
    assert (await logs.status()).indexers == ()


async def test_an_index_from_a_cut_on(logs: Indexed) -> None:
    await logs.write(map(event, range(30)))
    await logs.create(start="tail")
    await logs.write(map(event, range(30, 40)))
    async with logs.running():
        assert sorted(numbers(await all_hits(await logs.caught_up()))) == list(range(30, 40))


async def test_create_invalid_index_fails(logs: Indexed) -> None:
    await logs.create()
    with pytest.raises(AlreadyExistsError):
        await logs.create()
    missing: dict[str, dict[str, Any]] = {"nothing": {}, "unfit": {"dead_letters": "none"}}
    for stream, options in missing.items():
        with pytest.raises(NotFoundError):
            await logs.indexes.create(stream, FIELDS, where=str(logs.folder), **options)
    for key, value in (("where", "ftp://x"), ("where", "memory:///"), ("format", "xml"), ("format", "text")):
        given: dict[str, Any] = {"where": str(logs.folder), key: value}
        with pytest.raises(InvalidArgumentError, match=rf"\b{value.partition(':')[0]}\b"):
            await logs.indexes.create("unfit", FIELDS, **given)
    with pytest.raises(InvalidArgumentError, match="dead-letter"):
        await logs.indexes.create("unfit", FIELDS, where=str(logs.folder), dead_letters="unfit")


async def test_indexer_survives_a_long_server_outage(
    logs: Indexed, nadi_server: RestartableServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await logs.create()
    await logs.write(map(event, range(100)))
    stop = asyncio.Event()
    async with StreamManager(logs.uri) as impatient:
        task = asyncio.create_task(serve(impatient, logs.scope, "logs", stop=stop))
        await logs.caught_up()
        monkeypatch.setattr(impatient._controller, "timeout_s", 0.3)  # after its start
        await logs.write(map(event, range(100, 150)))
        await asyncio.to_thread(nadi_server.kill)
        await until_async(lambda: "can't report this worker" in caplog.text)
        await asyncio.to_thread(nadi_server.ensure_running)
        await logs.write(map(event, range(150, 200)))
        await found_once(logs, 200)
        stop.set()
        await task


async def test_indexer_stops_during_a_server_outage(
    logs: Indexed, nadi_server: RestartableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nadi.process.runner.PROCESS_END_S", 0.2)
    await logs.create()
    await logs.write(map(event, range(100)))
    stop, task = logs.start()
    await logs.caught_up()
    await asyncio.to_thread(nadi_server.kill)
    try:
        stop.set()
        await asyncio.wait_for(task, 20)
        stop, task = logs.start()  # which can't reach its index
        stop.set()
        await asyncio.wait_for(task, 20)
    finally:
        await asyncio.to_thread(nadi_server.ensure_running)


async def test_indexer_retries_an_unavailable_store(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    create, fails = FileEngine.create, 3

    async def failing(engine: FileEngine, name: str, parts: Any) -> bool:
        nonlocal fails
        fails -= 1
        if fails == 2:
            raise UnavailableError("not stored")
        done = await create(engine, name, parts)
        if fails == 1:
            raise UnavailableError("stored, but the response is lost")
        return done

    monkeypatch.setattr(FileEngine, "create", failing)
    await logs.create()
    await logs.write(map(event, range(100)))
    async with logs.running():
        await found_once(logs, 100)


async def test_delete_scope_deletes_its_indexes(logs: Indexed, tmp_path: Path) -> None:
    await logs.create()
    for stream in ("logs", "unfit"):
        await logs.manager.seal_stream(logs.scope, stream)
        await logs.manager.delete_stream(logs.scope, stream)
    assert await logs.manager.delete_scope(logs.scope)
    await logs.manager.create_scope(logs.scope)
    assert await logs.indexes.list() == []


async def test_a_full_store(logs: Indexed, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(logs.folder / "shards", 4) as disk:
        await logs.create()
        await logs.write(map(event, range(100)))
        async with logs.running():
            await logs.caught_up()
            ballast = await asyncio.to_thread(fill, disk)
            with caplog.at_level(logging.WARNING):
                await logs.write(map(event, range(100, 3_000)))
                await until_async(lambda: "can't store a shard" in caplog.text)
            search = await logs.search()
            assert Counter(numbers(await all_hits(search))) == Counter(range(100)), "all indexed events are found"
            ballast.unlink()
            await search.wait("tail", 60.0)
            assert Counter(numbers(await all_hits(search))) == Counter(range(3_000))


WORK = """
import sys
from nadi.search.shards.building import work_folder
with work_folder() as folder:
    (folder / "file").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_work_folders_of_killed_processes_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", WORK]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    assert child.stdout is not None
    left = Path(child.stdout.readline().strip())
    with work_folder() as mine:
        for folder in (left, mine):
            os.utime(folder, (time.time() - 3600,) * 2)
        clean_work_folders()
        assert left.is_dir()  # in use
        child.kill()
        child.communicate()
        clean_work_folders()
        assert not left.exists()
        assert mine.is_dir()
        new = tmp_path / "nadi-search-new"
        new.mkdir()
        clean_work_folders()
        assert new.is_dir()  # its creator may be about to lock it
    assert not mine.exists()
