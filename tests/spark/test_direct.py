"""Tasks read tier 2 without the server, with the same events and errors; tested without Spark."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.client.manager.streams import stores_of
from nadi.client.scan.connection import ConnectionSettings
from nadi.client.scan.pieces import ScanRange
from nadi.client.segments.byte_locations import locate_chunks
from nadi.client.segments.segment_input import read_bytes as from_server
from nadi.client.segments.stores import REQUESTS
from nadi.errors import InvalidArgumentError, TruncatedError
from nadi.naming import segment_name
from nadi.spark.connections import TaskClient
from nadi.spark.options.parsed import ReadOptions
from nadi.spark.reading import direct as direct_module
from nadi.spark.reading import direct as source
from nadi.spark.reading.direct import DirectSource
from nadi.wire.chunks import Located

# 256 KiB go to tier 2 at once, less stays in the log
LIMITS = "chunk_flush_bytes=262144,chunk_flush_age_s=3600,run_least_bytes=1000000000,chunks_located=2"


@dataclass
class World:
    server: Any
    client: TaskClient
    events: list[bytes]
    end: int = 0
    stream: str = "events"

    @property
    def segment(self) -> str:
        return segment_name("home", self.stream, 0)

    @property
    def tier2(self) -> Path:
        return Path(self.server.folder) / "tier2"

    def write(self, count: int, size: int = 1000) -> None:
        events = [random.Random(f"{len(self.events)} {n}").randbytes(size + n % 7) for n in range(count)]
        with nadi.StreamManager(self.server.controller_uri) as manager:
            with manager.create_writer("home", self.stream) as writer:
                for event in events:
                    writer.write_event(event, "key")
                writer.flush()
            self.end = manager.stream_info("home", self.stream).tail.positions[0]
        self.events += events

    def located(self, start: int = 0) -> list[Located]:
        """Return all responses."""
        found: list[Located] = []
        while not found or not found[-1].is_last:
            found.append(self.client.run(locate_chunks(stores_of(self.client.manager), self.segment, start, self.end)))
            start = found[-1].parts[-1].end if found[-1].parts else start
        return found

    def settled(self) -> int:
        """Wait until tiering has finished; return how much of the segment is in tier 2."""
        limit, before, since = time.monotonic() + 60, -1, time.monotonic()
        while time.monotonic() < limit:
            now = sum(part.length for located in self.located() for part in located.parts)
            if now != before:
                before, since = now, time.monotonic()
            if now and self.end - now < 262_144 and time.monotonic() - since > 0.5:
                return now
            time.sleep(0.05)
        raise AssertionError(f"only {before:,} bytes of {self.end:,} came to tier 2")

    def read(self, direct: str = "always", start: int = 0, **more: Any) -> list[bytes]:
        connection = ConnectionSettings(self.server.controller_uri)
        options = ReadOptions(controller=connection, scope="home", stream=self.stream, direct=direct, **more)
        blocks = DirectSource(options, self.client).blocks(ScanRange(self.stream, 0, start, self.end))
        return [event for block in self.client.thread.each(blocks) for event in block.events()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with nadi.embedded(tmp_path_factory.mktemp("direct"), environment={"NADI_LIMITS": LIMITS}) as server:
        yield server


@pytest.fixture
def world(server: Any, request: pytest.FixtureRequest) -> World:
    """A new stream and client."""
    stream = request.node.name.replace("_", "-")
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", stream)
    return World(server, TaskClient(ConnectionSettings(server.controller_uri)), [], stream=stream)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges read through the server."""
    ranges: list[tuple[int, int]] = []

    async def read_bytes(
        stores: Any, segment: str, start: int, end: int, *, purpose: str
    ) -> AsyncGenerator[memoryview, None]:
        ranges.append((start, end))
        async with aclosing(from_server(stores, segment, start, end, purpose=purpose)) as pieces:
            async for data in pieces:
                yield data

    monkeypatch.setattr(source, "read_bytes", read_bytes)
    return ranges


Change = Callable[[Located], Located]


def on_first_answer(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Call `change` between planning and reading: at the first response that lists chunks."""
    left = [change]

    async def locate(*arguments: Any) -> Located:
        located = await locate_chunks(*arguments)
        return left.pop()(located) if left and located.parts else located

    monkeypatch.setattr(source, "locate_chunks", locate)


def replaced(located: Located) -> Located:
    """Return the response as if its first chunk had been replaced."""
    first, *others = located.parts
    return replace(located, parts=(replace(first, name=f"{first.name}-old"), *others))


def test_history_is_read_from_chunks_and_the_tail_from_the_server(world: World, asked: list[tuple[int, int]]) -> None:
    for _ in range(4):
        world.write(1_000)
        in_tier2 = world.settled()
    assert len(world.located()) > 1, "a page of chunks is not all"
    assert world.read() == world.events
    assert sum(end - start for start, end in asked) == world.end - in_tier2
    assert len(asked) <= 1
    begin = 2_345 * 8 + sum(len(event) for event in world.events[:2_345])
    assert world.read(start=begin) == world.events[2_345:]
    world.write(20)  # in the log
    assert world.read() == world.events
    assert world.read("never") == world.events


def test_large_event_spans_several_chunks(world: World, asked: list[tuple[int, int]]) -> None:
    world.write(300)
    world.write(1, 12_000_000)
    world.write(300)
    in_tier2 = world.settled()
    assert world.read() == world.events
    assert sum(end - start for start, end in asked) == world.end - in_tier2


def test_store_of_another_server_is_rejected(
    world: World, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(1_000)
    world.settled()
    monkeypatch.setattr("nadi.spark.reading.direct.LEAST_BYTES", 1)
    mark = world.tier2 / "mark"
    own = mark.read_text()
    mark.write_text("0" * 32)
    monkeypatch.setattr(direct_module, "_known", {})
    with pytest.raises(InvalidArgumentError, match="'direct' is 'always'"):
        world.read()
    assert world.read("auto") == world.events
    assert sum(end - start for start, end in asked) == world.end
    mark.unlink()
    monkeypatch.setattr(direct_module, "_known", {})
    with pytest.raises(InvalidArgumentError):
        world.read()
    mark.write_text(own)
    monkeypatch.setattr(direct_module, "_known", {})
    on_first_answer(monkeypatch, lambda located: replace(located, url="file:///not/here"))
    with pytest.raises(InvalidArgumentError, match="file:///not/here"):
        world.read()
    assert not Path("/not").exists()


def test_replaced_chunk_is_located_again(
    world: World, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(2_000)
    in_tier2 = world.settled()
    on_first_answer(monkeypatch, replaced)
    assert world.read() == world.events
    assert sum(end - start for start, end in asked) == world.end - in_tier2


def test_truncated_events_raise_the_server_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write(2_000)
    world.settled()

    def truncate(located: Located) -> Located:
        with nadi.StreamManager(world.server.controller_uri) as manager:
            manager.truncate_stream(manager.stream_info("home", world.stream).tail)
        return replaced(located)

    async def locate(*arguments: Any) -> Located:
        found = await locate_chunks(*arguments)
        return await asyncio.to_thread(truncate, found) if found.parts else found

    monkeypatch.setattr(source, "locate_chunks", locate)
    with pytest.raises(TruncatedError):
        world.read()
    monkeypatch.undo()
    for direct in ("always", "never"):
        with pytest.raises(TruncatedError, match=f"home/{world.stream}/"):
            world.read(direct)


def test_older_server_gets_no_unknown_request(world: World, asked: list[tuple[int, int]]) -> None:
    world.write(1_000)
    world.settled()
    connection = world.client.run(stores_of(world.client.manager).connection(world.segment, REQUESTS))
    connection.locates_chunks = False
    assert world.read() == world.events
    assert asked == [(0, world.end)]


def test_chunks_are_readable_after_server_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last test, as the others share that server."""
    world.write(2_000)
    world.settled()
    parts = [part for located in world.located() for part in located.parts]
    count, offset = 0, 0
    while count < len(world.events) and (after := offset + 8 + len(world.events[count])) <= parts[-1].end:
        count, offset = count + 1, after
    world.end = offset  # without the part in the log

    def kill(located: Located) -> Located:
        world.server.kill()
        return replace(located, parts=tuple(parts), is_last=True)

    on_first_answer(monkeypatch, kill)
    assert world.read() == world.events[:count]
