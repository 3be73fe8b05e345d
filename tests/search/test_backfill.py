"""Backfill: a stream's history is indexed in parts by any process, while indexers follow new events."""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import random
import re
import subprocess
import sys
import time
from collections import Counter

import msgspec
import numpy as np
import pytest

import nadi
from nadi.errors import InvalidArgumentError
from nadi.search import BackfillPart, backfill_parts
from nadi.search.objects import Shards
from nadi.search.shards.manifest import HistoryOrders, past_micros
from tests.search.support import Indexed, all_hits, event, numbers

pytest.importorskip("tantivy", reason="search needs tantivy")


async def parts_of(logs: Indexed, uri: str, max_bytes: int) -> list[BackfillPart]:
    def divide() -> list[BackfillPart]:
        with nadi.StreamManager(uri) as manager:
            return backfill_parts(manager, logs.scope, "logs", max_bytes=max_bytes)

    return pickle.loads(pickle.dumps(await asyncio.to_thread(divide)))  # type: ignore[no-any-return]


async def test_parts_are_indexed_once(logs: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = logs.uri
    await logs.indexed([*map(event, range(100)), b"{"], dead_letters="unfit")
    await logs.write([b"[]", *map(event, range(100, 300))])
    await logs.manager.scale_stream(logs.scope, "logs", [0], [(0.0, 0.25), (0.25, 0.5)])
    await logs.write([*map(event, range(300, 400)), b"}"])
    parts = await parts_of(logs, uri, 3_000)
    assert len(parts) > 8
    assert await parts_of(logs, uri, 1_000) == parts  # the remaining parts
    assert (await logs.status()).backfill_bytes == sum(part.size_bytes for part in parts)
    put = Shards.put

    async def killed(shards: Shards, shard: str, data: list[memoryview]) -> None:
        await put(shards, shard, data)
        raise ConnectionError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Shards, "put", killed)
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(parts[0].index)
    async with logs.running():
        await logs.write(map(event, range(400, 450)))
        search = await logs.search()
        with pytest.raises(nadi.errors.RequestTimeoutError):
            await search.wait("tail", 0.5)
        both = await asyncio.gather(*(asyncio.to_thread(part.index) for part in [*parts, *parts]))
        assert sum(both) == len(parts)
        await search.wait("tail")
        assert Counter(numbers(await all_hits(search))) == Counter(range(450))
    status = await logs.status()
    assert (status.backfill_bytes, status.indexed, status.invalid, status.lag_bytes) == (0, 450, 3, 0)
    assert len(await logs.read_all("unfit")) == 3
    assert await parts_of(logs, uri, 1_000) == []


async def test_dead_letters_of_a_killed_indexer_are_written_once(logs: Indexed) -> None:
    """It is killed after writing them and before recording them; then the history is divided."""
    await logs.create(dead_letters="unfit")
    bad = {number: b"{%d" % number for number in (3, 38, 77, 110, 150)}  # of both segments, also before 100
    await logs.write([bad.get(number, event(number)) for number in range(100)])
    await logs.crash("dead-lettered")
    written = len(await logs.read_all("unfit"))
    assert written > 0
    await logs.write([bad.get(number, event(number)) for number in range(100, 120)])
    parts = await parts_of(logs, logs.uri, 1_000)
    await logs.write([bad.get(number, event(number)) for number in range(120, 160)])
    async with logs.running():  # new events are indexed before the history
        await logs.until_unfit(1)
    for part in reversed(parts):
        assert await asyncio.to_thread(part.index)
    search = await logs.search()
    await search.wait("tail")
    letters = [base64.b64decode(msgspec.json.decode(one)["data"]) for one in await logs.read_all("unfit")]
    assert sorted(letters) == sorted(bad.values())
    assert (await logs.status()).invalid == len(bad)


async def test_backfilled_events_are_in_order(logs: Indexed) -> None:
    """Order holds before, within and after the history, whichever process indexes which part when."""
    await logs.indexed(map(event, range(50)))
    for first in range(50, 450, 100):
        await logs.write(map(event, range(first, first + 100)))
    parts = await parts_of(logs, logs.uri, 3_200)
    assert len(parts) > 8
    async with logs.running():
        for number in range(450, 650, 50):
            await logs.write(map(event, range(number, number + 50)))
            await (await logs.search()).query("")
        for part in random.Random(3).sample(parts, len(parts)):
            await asyncio.to_thread(part.index)
        search = await logs.caught_up()
    newest = await all_hits(search, limit=77)
    assert sorted(numbers(newest)) == list(range(650))
    assert await all_hits(search, limit=501, order="oldest") == newest[::-1]
    for segment in {hit.segment_id for hit in newest}:
        offsets = [hit.offset for hit in newest if hit.segment_id == segment]
        assert offsets == sorted(offsets, reverse=True)
    moments = [hit.arrival_time.timestamp() for hit in newest]
    assert max(moments) - min(moments) < 120
    assert abs(max(moments) - time.time()) < 120


@pytest.mark.parametrize("seed", range(20))
def test_past_micros_ascend_with_offsets(seed: int) -> None:
    chance = random.Random(seed)
    offsets = np.cumsum([chance.choice((9, 100, 5_000, 200_000)) for _ in range(2_000)])
    end = int(offsets[-1]) + 50
    moments = np.cumsum([chance.choice((1_000, 10_000)) for _ in range(40)]) + 1_000_000
    borders = np.sort(np.array(chance.sample(offsets.tolist(), 40)))
    arrival_ms = int(moments[30]) if seed % 3 else -1
    before = chance.choice((0, int(moments[5]) * 1_000, int(moments[-1]) * 1_001))
    known = HistoryOrders(int(offsets[0]), before, end, arrival_ms)
    found = []
    for some in np.array_split(offsets, 13):
        there = chance.randrange(31, 41)  # number of entries of the time index when this part was indexed
        places = np.searchsorted(borders[:there], some, side="right")
        later = int(moments[there - 1]) + chance.randrange(100)
        times = np.append(moments[:there], later)[places]
        ends = np.append(borders[:there], end)[places]
        unknown = some < borders[seed % 4]
        micros = past_micros(known, some, np.where(unknown, -1, times), np.where(unknown, 0, ends))
        found += micros.tolist()
    assert found == sorted(found)
    assert before < found[0]
    assert found[-1] <= known.last
    assert max(Counter(found).values()) <= 4_096 // 9 + 1


async def test_parts_that_are_truncated_meanwhile(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(300)))
    parts = await parts_of(logs, logs.uri, 2_000)
    cuts = logs.manager.cuts(logs.scope, "logs")
    await logs.manager.truncate_stream(await cuts.after(await cuts.head(), 123))
    for part in parts:
        assert await asyncio.to_thread(part.index)
    search = await logs.search()
    await search.wait("tail")
    assert len(await all_hits(search)) == 300 - 123


async def test_a_sealed_stream_at_the_prompt(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(100)))
    await logs.manager.seal_stream(logs.scope, "logs")
    with pytest.raises(InvalidArgumentError):
        await parts_of(logs, logs.uri, 0)
    done = await logs.run("search", "backfill", logs.scope, "logs", "--processes", "2")
    assert re.search(r"\b[12] parts", done.output)
    assert Counter(numbers(await all_hits(await logs.search()))) == Counter(range(100))
    await asyncio.wait_for(logs.start()[1], 60)  # it ends because all is indexed
    assert (await logs.status()).lag_bytes == 0


async def test_backfill_stopped_starts_no_other_part(logs: Indexed) -> None:
    await logs.create()
    await logs.write(map(event, range(2_000)))
    limits = {"NADI_CONTROLLER": logs.uri, "NADI_LIMITS": "search_batch_bytes=1000"}
    command = [sys.executable, "-m", "nadi", "search", "backfill", logs.scope, "logs"]
    past = await asyncio.to_thread(subprocess.Popen, command, env=os.environ | limits, stderr=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(60):
            indexed = 0
            while not indexed:
                await asyncio.sleep(0.05)
                indexed = (await logs.status()).indexed
        past.terminate()
        assert await asyncio.to_thread(past.wait, 60) == 143
    finally:
        past.kill()
        past.wait()
    assert (await logs.status()).backfill_bytes > 0
