"""A stream with its index, in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nadi.client.aio import StreamManager
from nadi.search import serve
from nadi.search.catalog import Indexes, IndexStatus
from nadi.search.searching.index_search import Hit, Search
from tests.cli.test_streams import Shell

FIELDS = "message:text,level:keyword,ms:long,at:date,ok:bool,load:double,path:facet"


def event(number: int, **more: Any) -> bytes:
    """Return an event whose message has `number` and a word that a tenth of the events has."""
    known = {"message": f"request {number} of group{number % 10}", "level": "info", "ms": number}
    return msgspec.json.encode(known | more)


def crash_at(step: str) -> Callable[[str], None]:
    """Return an `on_step` that raises after a step."""

    def crash(name: str) -> None:
        if name == step:
            raise ConnectionError("killed")

    return crash


class Indexed:
    def __init__(self, manager: StreamManager, scope: str, folder: Path, uri: str) -> None:
        self.manager, self.scope, self.folder, self.uri = manager, scope, folder, uri
        self.shell = Shell(uri)
        self.indexes = Indexes(manager, scope)
        self._opened: list[Search] = []
        self._running: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    async def create(self, fields: str = FIELDS, **options: Any) -> None:
        await self.indexes.create("logs", fields, where=str(self.folder / "shards"), **options)

    async def write(self, events: Iterable[bytes], keys: Sequence[str] | None = None) -> None:
        batch = list(events)
        writer = await self.manager.create_writer(self.scope, "logs")
        await writer.write_many(batch, keys or [f"k{number % 16}" for number in range(len(batch))])
        await writer.close()

    async def indexed(self, events: Iterable[bytes], keys: Sequence[str] | None = None, **options: Any) -> Search:
        """Create the index, write the events and index them; return the opened index."""
        await self.create(**options)
        await self.write(events, keys)
        async with self.running():
            return await self.caught_up()

    async def scale(self, ranges: list[tuple[float, float]]) -> None:
        """Replace all segments."""
        current = await self.manager.current_segments(self.scope, "logs")
        await self.manager.scale_stream(self.scope, "logs", [one.segment_id for one in current], ranges)

    async def truncate(self) -> None:
        """Truncate the stream at its tail."""
        await self.manager.truncate_stream((await self.manager.stream_info(self.scope, "logs")).tail)

    async def remake(self) -> None:
        """Recreate the stream."""
        await self.manager.seal_stream(self.scope, "logs")
        await self.manager.delete_stream(self.scope, "logs")
        await self.manager.create_stream(self.scope, "logs", 2)

    async def run(self, *words: str, **more: Any) -> Any:
        """Run a command."""
        return await asyncio.to_thread(self.shell.run, *words, **more)

    async def json(self, *words: str) -> Any:
        return await asyncio.to_thread(self.shell.json, *words)

    def objects(self, folder: str = "") -> list[Path]:
        """Return the files in the store of shards, or in a folder of it, without the store's internal files."""
        found = (self.folder / "shards" / folder).rglob("*")
        return sorted(path for path in found if path.is_file() and ".nadi" not in path.parts)

    def start(self, **options: Any) -> tuple[asyncio.Event, asyncio.Task[None]]:
        stop = asyncio.Event()
        task = asyncio.create_task(serve(self.manager, self.scope, "logs", stop=stop, **options))
        self._running.append((stop, task))
        return stop, task

    async def crash(self, step: str) -> None:
        """Run an indexer that is killed after a step."""
        with pytest.raises(ConnectionError):
            await self.start(on_step=crash_at(step))[1]

    @asynccontextmanager
    async def running(self, count: int = 1) -> AsyncIterator[None]:
        """Run indexers until the end of the block, and raise their errors there."""
        started = [self.start() for _ in range(count)]
        try:
            yield
        finally:
            for stop, _ in started:
                stop.set()
        for _, task in started:
            await task

    async def search(self) -> Search:
        found = await self.indexes.open("logs", cache=self.folder / f"cache{len(self._opened)}")
        self._opened.append(found)
        return found

    async def caught_up(self) -> Search:
        """Return the index once it has reached the stream's current tail."""
        found = await self.search()
        await found.wait("tail", 60.0)
        return found

    async def status(self) -> IndexStatus:
        return await self.indexes.status("logs")

    async def until_shards(self, least: int, most: int) -> None:
        async with asyncio.timeout(60):
            count = -1
            while not least <= count <= most:
                count = (await self.status()).shards
                await asyncio.sleep(0.05)

    async def until_unfit(self, least: int) -> None:
        async with asyncio.timeout(60):
            count = -1
            while count < least:
                count = (await self.status()).invalid
                await asyncio.sleep(0.05)

    async def read_all(self, stream: str) -> list[bytes]:
        tail = (await self.manager.stream_info(self.scope, stream)).tail
        return [one.data async for one in self.manager.read_events(self.scope, stream, end=tail)]

    async def close(self) -> None:
        for stop, _ in self._running:
            stop.set()
        for _, task in self._running:
            await asyncio.gather(task, return_exceptions=True)
        for one in self._opened:
            one.close()


async def all_hits(search: Search, text: str = "", limit: int = 100, **options: Any) -> list[Hit]:
    """Return the hits of all pages."""
    hits: list[Hit] = []
    after = None
    while True:
        page = await search.query(text, limit=limit, after=after, **options)
        hits += page.hits
        after = page.next
        if after is None:
            return hits


def numbers(hits: Iterable[Hit]) -> list[int]:
    return [msgspec.json.decode(hit.data)["ms"] for hit in hits]
