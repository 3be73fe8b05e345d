"""Full-text search: the speed of indexing a log, compared with tantivy alone; queries; freshness; and standing queries.
The log is generated: some words are frequent and most are rare, as in a language. Rates "of a core" refer to the CPU
time of the process, regardless of other load on the machine."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

import nadi
from bench.events import percentile
from bench.measure import Figure
from bench.process import cpu_seconds
from nadi.client.aio import EventWriter, StreamManager
from nadi.model.event import whole_events
from nadi.model.framing import frame_events
from nadi.search.catalog import Indexes
from nadi.search.fields import fields_of, prepared, schema_of
from nadi.search.percolate.catalog import StandingQueries
from nadi.search.percolate.query_index import Matcher, Query, counted
from nadi.search.query.bound import bind
from nadi.search.query.parser import parse
from nadi.search.searching.index_search import Search
from nadi.search.shards.building import EventRun, build, work_folder

SCOPE, STREAM, HITS = "bench", "logs", "hits"
FIELDS = "message:text,level:keyword,at:timestamp_ms,ms:long"
EVENTS = int(os.environ.get("NADI_BENCH_SEARCH_EVENTS", "1000000"))
ALONE = 100_000  # events that are given to tantivy alone
STANDING, BEHIND = 10_000, 300_000
RATE, SECONDS = 500, 20.0
QUERIES = 200
_VOCABULARY = 50_000


class Log:
    """Generated lines, always the same."""

    def __init__(self, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._number = 0

    def word(self) -> str:
        return f"w{int(self._chance.paretovariate(0.8)) % _VOCABULARY}"

    def events(self, count: int) -> list[bytes]:
        return [self.event() for _ in range(count)]

    def event(self, **more: object) -> bytes:
        chance, self._number = self._chance, self._number + 1
        ms = chance.randrange(2_000)
        verb = chance.choice(("GET", "POST", "PUT"))
        text = f"{verb} /api/v1/{self.word()}/{self.word()} user {self.word()} took {ms} ms"
        level = chance.choices(("info", "warning", "error"), (90, 8, 2))[0]
        known = {"message": text, "level": level, "at": 1_700_000_000_000 + self._number, "ms": ms}
        return msgspec.json.encode(known | more)

    def query(self, number: int) -> str:
        first, second = self.word(), f"w{self._chance.randrange(_VOCABULARY)}"
        return (
            f"{first} {second}",
            f"{second} level:error",
            f'"user {second}"',
            f"({first} OR {second}) ms:>1000",
            f"{second} -{first}",
        )[number % 5]

    def standing(self, number: int) -> str:
        """Return a query for words that are rare, or for a few that aren't."""
        first, second = (f"w{self._chance.randrange(_VOCABULARY)}" for _ in range(2))
        return (
            f"{first} level:error",
            f"{first} OR {second}",
            f'"user {first}" ms:>1000',
            f"{first} get -{second}",
        )[number % 4]


def search(folder: Path) -> list[Figure]:
    """Index `EVENTS` events, in a stream of two segments, with one indexer in a separate process."""
    return [*_alone(), *asyncio.run(_search(folder))]


def standing(folder: Path) -> list[Figure]:
    """Match `STANDING` queries, most of them for rare words."""
    return [*_matched(), *asyncio.run(_caught_up(folder / "past")), *asyncio.run(_standing(folder))]


def _alone() -> list[Figure]:
    import tantivy

    events, fields = Log().events(ALONE), fields_of(FIELDS)
    block, _ = whole_events(memoryview(bytes(frame_events(events))))
    began = time.process_time()
    built = build([EventRun(0, [block], np.arange(ALONE))], "json", fields)
    ours = time.process_time() - began
    assert built.docs == ALONE
    parsed = [msgspec.json.decode(one) for one in events]
    with work_folder() as where:
        writer = prepared(tantivy.Index(schema_of(fields), path=str(where))).writer(256_000_000, 1)
        began = time.process_time()
        for one in parsed:
            document = tantivy.Document()
            document.add_text("f0", one["message"])
            document.add_text("f1", one["level"])
            document.add_integer("f2", one["at"] * 1000)
            document.add_integer("f3", one["ms"])
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
        theirs = time.process_time() - began
    return [
        Figure("events made a shard of, parsing included", ALONE / ours, "a second of a core"),
        Figure("events given to tantivy alone, parsed before", ALONE / theirs, "a second of a core"),
    ]


async def _search(folder: Path) -> list[Figure]:
    log = Log()
    with nadi.embedded(folder / "data") as server:
        async with StreamManager(server.controller_uri) as manager:
            size = await _filled(manager, log, EVENTS)
            queries = [log.query(number) for number in range(QUERIES)]
            async with indexed(manager, server.controller_uri, folder, STREAM, FIELDS, queries) as found:
                fresh = await _freshness(manager, log, found.search)
    return [
        Figure("events indexed", EVENTS / found.took_s, "a second"),
        Figure("events indexed, by what the indexer spent", EVENTS / found.spent_s, "a second of a core"),
        Figure("index size, of an event", found.size_bytes / EVENTS, "bytes"),
        Figure("event size", size / EVENTS, "bytes"),
        *found.waits(),
        Figure("from acknowledged to found, p50", percentile(fresh, 50), "ms", 1_000, at_most=True),
        Figure("from acknowledged to found, p99", percentile(fresh, 99), "ms", 2_000, at_most=True),
    ]


@dataclass(frozen=True, slots=True)
class IndexedStream:
    """The indexing of a whole stream, in seconds of time and of the indexer's CPU, and its queries, sorted."""

    search: Search
    took_s: float
    spent_s: float
    size_bytes: int
    waits_s: list[float]

    def waits(self) -> list[Figure]:
        return [
            Figure("query with ten hits' events, p50", percentile(self.waits_s, 50), "ms"),
            Figure("query with ten hits' events, p99", percentile(self.waits_s, 99), "ms"),
        ]


@asynccontextmanager
async def indexed(
    manager: StreamManager, uri: str, folder: Path, stream: str, fields: str, queries: Sequence[str]
) -> AsyncIterator[IndexedStream]:
    """Index a stream, then run each query, with an indexer that continues until the block's end."""
    indexes = Indexes(manager, SCOPE)
    await indexes.create(stream, fields, where=str(folder / "shards"))
    with running(uri, "search", "run", SCOPE, stream) as process:
        found = await indexes.open(stream, cache=folder / "cache")
        began = time.perf_counter()
        await found.wait("tail", 3_600)
        took, spent = time.perf_counter() - began, cpu_seconds(process.pid)
        size = (await indexes.status(stream)).size_bytes
        await found.query("nothing")
        waits = []
        for number, text in enumerate(queries):
            began = time.perf_counter()
            await found.query(text, order="best" if number % 2 else "newest", limit=10)
            waits.append(time.perf_counter() - began)
        yield IndexedStream(found, took, spent, size, sorted(waits))
        found.close()


async def _filled(manager: StreamManager, log: Log, count: int) -> int:
    await manager.create_scope(SCOPE)
    await manager.create_stream(SCOPE, STREAM, 2)
    writer = await manager.create_writer(SCOPE, STREAM)
    size = 0
    for _ in range(0, count, 10_000):
        events = log.events(10_000)
        size += sum(map(len, events))
        await writer.write_many(events, [f"k{number % 64}" for number in range(len(events))])
    await writer.flush()
    return size


async def _write_until(stop: asyncio.Event, writer: EventWriter, log: Log) -> None:
    """Write `RATE` events per second."""
    while not stop.is_set():
        await writer.write_many(log.events(RATE // 20), [f"k{number}" for number in range(RATE // 20)])
        await asyncio.sleep(0.05)


async def _freshness(manager: StreamManager, log: Log, found: Search) -> list[float]:
    """Return the seconds from the acknowledgement of an event until a query finds it, with `RATE` other events per
    second."""
    writer = await manager.create_writer(SCOPE, STREAM)
    stop = asyncio.Event()
    writing = asyncio.create_task(_write_until(stop, writer, log))
    waits = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        mark = f"m{os.urandom(8).hex()}"
        ack = await writer.write(log.event(message=mark))
        await ack
        began = time.perf_counter()
        while True:
            page = await found.query(mark, limit=1)
            if page.count:
                break
            await asyncio.sleep(0.005)
        waits.append(time.perf_counter() - began)
        await asyncio.sleep(random.random() * 0.2)
    stop.set()
    await writing
    return sorted(waits)


def _matched() -> list[Figure]:
    log, fields = Log(), fields_of(FIELDS)
    events = log.events(50_000)
    queries = {f"q{number}": Query(bind(parse(log.standing(number)).node, fields)) for number in range(STANDING)}
    first = Matcher(queries, "json", fields)
    matcher = Matcher(queries, "json", fields, counted(first.subject(event) for event in events[:2_000]))
    began = time.process_time()
    hits = sum(len(matcher.matched(matcher.subject(event))) for event in events)
    took = time.process_time() - began
    return [
        Figure(f"events matched with {STANDING:,} queries", len(events) / took, "a second of a core", 50_000),
        Figure("hits of an event", hits / len(events), ""),
    ]


async def _caught_up(folder: Path) -> list[Figure]:
    """Measure a matcher with a backlog of some minutes of events."""
    log = Log()
    with nadi.embedded(folder / "data") as server:
        async with StreamManager(server.controller_uri) as manager:
            await _filled(manager, log, BEHIND)
            await manager.create_stream(SCOPE, HITS, 2)
            queries = StandingQueries(manager, SCOPE)
            await queries.create(STREAM, HITS, fields=FIELDS, start="head")
            await queries.add(STREAM, {f"q{number}": log.standing(number) for number in range(STANDING)})
            with running(server.controller_uri, "search", "standing", "run", SCOPE, STREAM) as process:
                events, began, took = 0, 0.0, 0.0
                while events < BEHIND:
                    events = (await queries.status(STREAM)).events
                    began = began or (time.perf_counter() if events else 0.0)
                    took = time.perf_counter() - began
                    await asyncio.sleep(0.05)
                spent = cpu_seconds(process.pid)
    return [
        Figure("events matched, from the stream to the hits", BEHIND / took, "a second", 50_000),
        Figure("the same, by what the matcher spent", BEHIND / spent, "a second of a core"),
    ]


async def _standing(folder: Path) -> list[Figure]:
    log = Log()
    with nadi.embedded(folder / "data") as server:
        async with StreamManager(server.controller_uri) as manager:
            await manager.create_scope(SCOPE)
            await manager.create_stream(SCOPE, STREAM, 2)
            await manager.create_stream(SCOPE, HITS, 2)
            queries = StandingQueries(manager, SCOPE)
            await queries.create(STREAM, HITS, fields=FIELDS)
            texts = {f"q{number}": log.standing(number) for number in range(STANDING)}
            began = time.perf_counter()
            await queries.add(STREAM, {**texts, "marked": "level:marked"})
            added = time.perf_counter() - began
            with running(server.controller_uri, "search", "standing", "run", SCOPE, STREAM) as process:
                waits = sorted(await _delays(manager, log))
                spent = cpu_seconds(process.pid)
                status = await queries.status(STREAM)
    return [
        Figure(f"{STANDING:,} queries added", added, "s"),
        Figure("a matcher's CPU, of an event and its hits", spent / max(status.events, 1) * 1e6, "us"),
        Figure("hits of an event, written", status.hits / max(status.events, 1), ""),
        Figure("from written to its hit read, p50", percentile(waits, 50), "ms"),
        Figure("from written to its hit read, p99", percentile(waits, 99), "ms"),
    ]


async def _delays(manager: StreamManager, log: Log) -> list[float]:
    writer = await manager.create_writer(SCOPE, STREAM)
    written: dict[str, float] = {}
    waits: list[float] = []
    stop = asyncio.Event()

    async def read() -> None:
        async for event in manager.read_events(SCOPE, HITS):
            if b'"query":"marked"' in event.data:
                mark = msgspec.json.decode(event.data)["event"]["message"]
                waits.append(time.perf_counter() - written.pop(mark))
                if stop.is_set() and not written:
                    return

    tasks = [asyncio.create_task(read()), asyncio.create_task(_write_until(stop, writer, log))]
    end = time.perf_counter() + SECONDS + 10  # until the matcher is there
    while time.perf_counter() < end:
        mark = os.urandom(8).hex()
        written[mark] = time.perf_counter()
        writer.write_event(log.event(message=mark, level="marked"))
        await asyncio.sleep(0.1)
    stop.set()
    last = os.urandom(8).hex()
    written[last] = time.perf_counter()
    writer.write_event(log.event(message=last, level="marked"))
    await asyncio.gather(*tasks)
    return waits[100:]


class running:
    """Run a command's process in a `with` block."""

    def __init__(self, uri: str, *command: str) -> None:
        environment = {**os.environ, "NADI_CONTROLLER": uri}
        self._process = subprocess.Popen([sys.executable, "-m", "nadi.cli.app", *command], env=environment)

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
