"""Indexers and matchers are killed at random, fifty times each, while the stream is split and merged."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from nadi.search.percolate.catalog import StandingQueries
from tests.search.support import Indexed, all_hits, event, numbers
from tests.support.waiting import until_async

pytest.importorskip("tantivy", reason="search needs tantivy")
pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1_800)]
KILLS = int(os.environ.get("NADI_SEARCH_KILLS", "50"))
LIMITS = "search_commit_s=0.05,search_tidy_s=0.5,search_retired_s=2,process_dead_s=1,process_beat_s=0.2"


class Killed:
    """Two processes of a command; one of them is killed repeatedly."""

    def __init__(self, uri: str, *command: str) -> None:
        self._command = [sys.executable, "-m", "nadi.cli.app", *command]
        self._environment = {**os.environ, "NADI_CONTROLLER": uri, "NADI_LIMITS": LIMITS}
        self._running: list[asyncio.subprocess.Process] = []
        self._chance = random.Random(7)
        self.kills = 0

    async def start(self) -> None:
        quiet = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*self._command, env=self._environment, stderr=quiet)
        self._running.append(process)

    async def kill_one(self) -> None:
        process = self._running.pop(self._chance.randrange(len(self._running)))
        assert process.returncode is None, "it ended by itself"
        process.kill()
        await process.wait()
        self.kills += 1

    async def stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            assert await asyncio.wait_for(process.wait(), 60) == 0


@asynccontextmanager
async def killing(logs: Indexed, killed: Killed) -> AsyncIterator[asyncio.Task[int]]:
    """Write while processes are killed; yield the number of events written."""
    chance = random.Random(11)

    async def work() -> int:
        written = 0
        ranges = [[(0.0, 1 / 3), (1 / 3, 1.0)], [(0.0, 0.5), (0.5, 0.75), (0.75, 1.0)]]
        while killed.kills < KILLS:
            count = chance.randrange(1, 200)
            keys = [f"k{number % 16}" for number in range(written, written + count)]
            await logs.write([event(number) for number in range(written, written + count)], keys)
            written += count
            await killed.start()
            await asyncio.sleep(chance.random() * 1.5)
            await killed.kill_one()
            if killed.kills % 12 == 6:
                current = await logs.manager.current_segments(logs.scope, "logs")
                segments = [one.segment_id for one in current]
                await logs.manager.scale_stream(logs.scope, "logs", segments, ranges[killed.kills // 12 % 2])
        return written

    await killed.start()
    task = asyncio.create_task(work())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await killed.stop()


async def test_each_event_is_found_once(logs: Indexed) -> None:
    await logs.create(FIELDS)
    killed = Killed(logs.uri, "search", "run", logs.scope, "logs")
    async with killing(logs, killed) as work:
        written = await work
        search = await logs.caught_up()
        hits = await all_hits(search, limit=1000)
        assert Counter(numbers(hits)) == Counter(range(written))
        assert (await search.count("group3"))["all"] == len(range(3, written, 10))
        assert (await logs.status()).indexed == written


async def test_each_hit_is_stored_once(logs: Indexed) -> None:
    await logs.manager.create_stream(logs.scope, "hits", 2)
    queries = StandingQueries(logs.manager, logs.scope)
    await queries.create("logs", "hits", fields=FIELDS)
    await queries.add("logs", {"threes": "group3", "all": "*"})
    killed = Killed(logs.uri, "search", "standing", "run", logs.scope, "logs")
    async with killing(logs, killed) as work:
        await until_async(lambda: killed.kills >= KILLS // 3, 600)
        await queries.add("logs", {"head": "group3"}, since="head")
        written = await work
        cuts = logs.manager.cuts(logs.scope, "logs")
        async with asyncio.timeout(120):
            status = await queries.status("logs")
            while status.catching_up or not (await cuts.compare(status.reached, await cuts.tail())).is_at_or_after:
                await asyncio.sleep(0.1)
                status = await queries.status("logs")
    found: dict[str, list[int]] = {}
    for one in await logs.read_all("hits"):
        hit = msgspec.json.decode(one)
        found.setdefault(hit["query"], []).append(hit["event"]["ms"])
    threes = list(range(3, written, 10))
    for name, wanted in (("all", list(range(written))), ("threes", threes), ("head", threes)):
        assert Counter(found[name]) == Counter(wanted), name
        for key in range(16):
            of_key = [number for number in found[name] if number % 16 == key]
            assert of_key == sorted(of_key), name


FIELDS = "message:text,level:keyword,ms:long"
