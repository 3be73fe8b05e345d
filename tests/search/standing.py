"""Standing queries of a stream, in the test's own loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from nadi.client.tables.catalog import CatalogRecord
from nadi.errors import TruncatedError
from nadi.search import serve_matcher
from nadi.search.percolate.catalog import StandingQueries
from nadi.search.percolate.records import MatcherProgress, MatcherRecords
from tests.search.support import Indexed, crash_at, event

FIELDS = "message:text,level:keyword,ms:long"


class Standing:
    def __init__(self, logs: Indexed) -> None:
        self.logs, self.queries = logs, StandingQueries(logs.manager, logs.scope)

    async def create(self, queries: dict[str, str] | None = None, **options: Any) -> None:
        await self.logs.manager.create_stream(self.logs.scope, "hits", 2)
        await self.queries.create("logs", "hits", fields=FIELDS, **options)
        await self.queries.add("logs", queries or {})

    def start(self, **options: Any) -> tuple[asyncio.Event, asyncio.Task[None]]:
        stop = asyncio.Event()
        return stop, asyncio.create_task(
            serve_matcher(self.logs.manager, self.logs.scope, "logs", stop=stop, **options)
        )

    async def crash(self, step: str) -> None:
        """Run a matcher that is killed after a step."""
        with pytest.raises(ConnectionError):
            await self.start(on_step=crash_at(step))[1]

    @asynccontextmanager
    async def running(self, count: int = 1) -> AsyncIterator[None]:
        started = [self.start() for _ in range(count)]
        try:
            yield
        finally:
            for stop, _ in started:
                stop.set()
            ends = await asyncio.gather(*(task for _, task in started), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def match(self) -> None:
        """Match the whole stream."""
        async with self.running():
            await self.matched()

    async def matched(self) -> None:
        """Wait until the stream up to its current tail is matched with all queries."""
        tail = (await self.logs.manager.stream_info(self.logs.scope, "logs")).tail

        async def is_matched() -> bool:
            status = await self.queries.status("logs")
            try:
                order = await self.logs.manager.cuts(self.logs.scope, "logs").compare(status.reached, tail)
            except TruncatedError:
                return False  # its position is truncated: it continues at the head
            return order.is_at_or_after and not status.catching_up

        await until_true(is_matched)

    async def until_hits(self, least: int) -> None:
        async with asyncio.timeout(60):
            count = 0
            while count < least:
                count = len(await self.hits())
                await asyncio.sleep(0.01)

    async def stored(self) -> list[str]:
        """Return the names of all stored queries, listed or not."""
        return [query.name for query in await (await self.records()).queries()]

    async def records(self) -> MatcherRecords:
        return MatcherRecords(self.queries._definitions, await self.queries.get("logs"))

    async def progress(self) -> MatcherProgress:
        return await (await self.changes()).get()

    async def changes(self) -> CatalogRecord[MatcherProgress]:
        return (await self.records()).progress()

    async def hits(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(one) for one in await self.logs.read_all("hits")]

    async def found(self, query: str) -> list[int]:
        return [hit["event"]["ms"] for hit in await self.hits() if hit["query"] == query]


def check(actual: list[int], expected: list[int], keys: int = 16) -> None:
    """Check that each number is present once, and those of a key in order."""
    assert Counter(actual) == Counter(expected)
    for key in range(keys):
        of_key = [number for number in actual if number % keys == key]
        assert of_key == sorted(of_key)


async def write(logs: Indexed, first: int, last: int) -> None:
    numbers = range(first, last)
    await logs.write(map(event, numbers), [f"k{number % 16}" for number in numbers])


async def until_true(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(60):
        is_so = False
        while not is_so:
            is_so = bool(await condition())
            await asyncio.sleep(0.01)
