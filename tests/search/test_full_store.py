"""The store of an index's shards is full: indexers wait and say so, and once there is room each event is found once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from tests.search.support import Indexed, all_hits, event, numbers
from tests.support.small_disk import fill, small_disk
from tests.support.waiting import until_async

pytest.importorskip("tantivy", reason="search needs tantivy")


async def test_a_full_store(logs: Indexed, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(logs.folder / "shards", 4) as disk:
        await logs.create()
        await logs.write(map(event, range(100)))
        async with logs.running():
            await logs.caught_up()
            ballast = await asyncio.to_thread(fill, disk)
            with caplog.at_level(logging.WARNING):
                await logs.write(map(event, range(100, 3_000)))
                await until_async(lambda: "can't be stored yet" in caplog.text)
            search = await logs.search()
            assert Counter(numbers(await all_hits(search))) == Counter(range(100)), "what is indexed is found"
            ballast.unlink()
            await search.wait("tail", 60.0)
            assert Counter(numbers(await all_hits(search))) == Counter(range(3_000))
