"""A household's history as stream, lake and index: in spite of faults, all engines return the same answers.

One process writes readings, one runs the lake, two run indexers. Each round has one fault: a process is killed or
paused, or segments are split, merged or truncated. Then one cut is taken while the writer continues, and each engine is
queried about it, some also about an earlier one. The ledger is the writer's acknowledgements: each meter's readings are
in order, so their number before a cut determines their sum. That number is at least what was stored when the cut was
taken, and at most what had been started. Every fourth round the writer pauses, and the number is exactly what was
stored.

The stream is truncated at the table's position; the table keeps the truncated readings. So engines that read only the
stream (plain Python, a stream table), and the index, answer for the remaining readings: of each meter from the first
one after that cut.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import nadi
import nadi.lake
from nadi import search
from nadi.lake.table.catalogs import load_table, open_catalog
from nadi.model.streamcut import StreamCut
from nadi.testing import RestartableServer
from tests.history import engines
from tests.history.engines import Answer, Engine
from tests.history.parts import Part
from tests.history.readings import COLUMNS, FIELDS, Readings, Total
from tests.history.writer_main import SCOPE, STREAM, Progress, progress_in
from tests.support.waiting import until

DEEDS = ("lake", "indexer 0", "indexer 1", "server", "writer", "split", "merge", "truncate", "lag")
# data moves to tier 2, and merged or replaced files are deleted, during the test
_SERVER = {"NADI_LIMITS": "chunk_flush_age_s=0.5,chunk_flush_bytes=65536,storage_writer_tick_s=0.1"}
_LAKE = {"NADI_LIMITS": "lake_compact_every_s=5"}
_INDEXER = {"NADI_LIMITS": "search_tidy_s=1,search_retired_s=30"}
_PAUSE_EVERY = 4  # the writer pauses in every fourth round
_MOST_SEGMENTS = 8

Say = Callable[[str], None]


class Query(NamedTuple):
    """Cut of a query, and the number of readings of each meter before it."""

    cut: StreamCut
    counts: dict[str, int]


class History:
    """Server, processes, and their expected contents."""

    def __init__(self, folder: Path, seed: int, *, rate: float, with_spark: bool, say: Say) -> None:
        self.readings, self.chance, self.say = Readings(seed), random.Random(seed), say
        self._folder, self._open = folder, ExitStack()
        self.done: Counter[str] = Counter()
        self._queries: list[Query] = []
        self._truncated = dict.fromkeys(self.readings.meters, 0)  # readings of each meter before the stream's head
        try:
            self._start(seed, rate, with_spark)
        except BaseException:
            self.close()
            raise

    def _start(self, seed: int, rate: float, with_spark: bool) -> None:
        (self._folder / "writer").mkdir(parents=True)
        self._server = RestartableServer(self._folder / "store", environment=_SERVER)
        self._open.callback(self._server.close)
        uri = self._server.controller_uri
        self.manager = self._open.enter_context(nadi.StreamManager(uri))
        self.manager.create_scope(SCOPE)
        self.manager.create_stream(SCOPE, STREAM, 1)  # the minimum number of segments for merges
        self.manager.scale_stream(SCOPE, STREAM, [0], [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
        self.lake = nadi.lake.define(
            self.manager,
            SCOPE,
            STREAM,
            table="home.meters",
            catalog={
                "type": "sql",
                "uri": f"sqlite:///{self._folder}/catalog.db",
                "warehouse": f"file://{self._folder}/lake",
            },
            value_format="json",
            value_schema=COLUMNS,
            partition="day(at), bucket(2, meter)",
            every_s=0.5,
            compact_files=6,
            keep_snapshots_s=60.0,
        )
        search.indexes(self.manager, SCOPE).create(STREAM, FIELDS, where=str(self._folder / "shards"))
        engines.define_table(self.manager)
        known = {"NADI_CONTROLLER": uri}
        index = ["nadi", "search", "run", SCOPE, STREAM]
        main = ["tests.history.writer_main", uri, str(self._folder / "writer"), str(seed), str(rate)]
        parts = [
            Part("writer", main, self._folder, known),
            Part("lake", ["nadi", "lake", "run", SCOPE, STREAM], self._folder, known | _LAKE),
            *(Part(f"indexer {number}", index, self._folder, known | _INDEXER) for number in range(2)),
        ]
        self.parts = {part.name: part for part in parts}
        for part in parts:
            self._open.callback(part.close)
        self._python = engines.Python(self.manager, self.readings)
        self._index = engines.Index(self.manager, self._folder / "cache")
        self._latest = engines.Latest(self.manager)
        self._polars = engines.Polars(self.manager)
        self._others: list[Engine] = [
            engines.DuckDB(self.manager),
            self._polars,
            engines.Rows(self.manager),
            self._index,
        ]
        self._open.callback(self._index.close)
        if with_spark:
            spark = engines.Spark(uri)
            self._open.callback(spark.close)
            self._others.append(spark)

    def close(self) -> None:
        self._open.close()

    # --- faults -------------------------------------------------------------------------------

    def befall(self, deed: str) -> None:
        self.check()
        if deed == "server":
            self._server.restart()
        elif deed in self.parts:
            self.parts[deed].kill()
        elif not self._changes[deed]():
            self.say(f"{deed}: not now")
            return
        self.done[deed] += 1

    @property
    def _changes(self) -> dict[str, Callable[[], bool]]:
        return {"split": self._split, "merge": self._merge, "truncate": self._truncate, "lag": self._lag}

    def check(self) -> None:
        for part in self.parts.values():
            part.check()

    def _split(self) -> bool:
        segments = self.manager.current_segments(SCOPE, STREAM)
        if len(segments) >= _MOST_SEGMENTS:
            return False
        segment = self.chance.choice(segments)
        middle = segment.low + (segment.high - segment.low) * self.chance.uniform(0.3, 0.7)
        ranges = [(segment.low, middle), (middle, segment.high)]
        self.manager.scale_stream(SCOPE, STREAM, [segment.segment_id], ranges)
        return True

    def _merge(self) -> bool:
        segments = sorted(self.manager.current_segments(SCOPE, STREAM), key=lambda segment: segment.low)
        if len(segments) < 2:
            return False
        first = self.chance.randrange(len(segments) - 1)
        old = segments[first : first + 2]
        ids = [segment.segment_id for segment in old]
        self.manager.scale_stream(SCOPE, STREAM, ids, [(old[0].low, old[1].high)])
        return True

    def _truncate(self) -> bool:
        """Truncate at the table's current position."""
        cut = nadi.lake.status(self.manager, SCOPE, self.lake.name).cut
        if cut is None or cut == self.manager.stream_info(SCOPE, STREAM).head:
            return False
        for meter, total in self._python.query(cut).items():
            self._truncated[meter] += total.readings
        self.manager.truncate_stream(cut)
        return True

    def _lag(self) -> bool:
        """Pause the indexers while unindexed segments are split, written to the table, and truncated."""
        with ExitStack() as paused:
            for number in range(2):
                paused.enter_context(self.parts[f"indexer {number}"].paused())
            written = self.progress().stored
            self._split()
            until(lambda: self.progress().stored > written + 1000, limit_s=120.0)
            until(lambda: self._in_table() > written + 500, limit_s=120.0)
            return self._truncate()

    def _in_table(self) -> int:
        return nadi.lake.status(self.manager, SCOPE, self.lake.name).rows or 0

    # --- queries ------------------------------------------------------------------------------

    def query(self, *, at_rest: bool = False) -> None:
        """Query all engines about the stream's current end."""
        if at_rest:
            with self.writer_held() as stored:
                self._query_all(stored)
        else:
            self._query_all(None)

    @contextmanager
    def writer_held(self) -> Iterator[int]:
        """Pause the writer, and yield the number of stored readings."""
        hold = self._folder / "writer" / "hold"
        hold.touch()
        try:
            until(lambda: self.progress().is_held, limit_s=120.0)
            yield self.progress().stored
        finally:
            hold.unlink()

    def progress(self) -> Progress:
        self.parts["writer"].check()
        return progress_in(self._folder / "writer")

    def _query_all(self, stored: int | None) -> None:
        low = self.progress().stored
        cut = self.manager.stream_info(SCOPE, STREAM).tail
        high = self.progress().begun if stored is None else stored
        left = self._python.query(cut)
        counts = {
            meter: self._truncated[meter] + left.get(meter, Total(0, 0)).readings for meter in self.readings.meters
        }
        asked = Query(cut, counts)
        _compare("python", left, self._remaining(asked))
        least, most = self.readings.counts(low), self.readings.counts(high)
        for meter, count in counts.items():
            assert least[meter] <= count <= most[meter], (
                f"{meter}: the stream has {count} readings, {least[meter]} were stored, {most[meter]} started"
            )
        for engine in self._others:
            self._query_engine(engine, asked)
        self._query_latest(asked)
        self._queries.append(asked)
        self._query_earlier()
        self._check_table()

    def _query_engine(self, engine: Engine, asked: Query) -> None:
        expected = self._whole(asked) if engine.is_whole else self._remaining(asked)
        _compare(engine.name, engine.query(asked.cut), expected)

    def _query_earlier(self) -> None:
        """Query the index and one engine with the whole history about earlier cuts."""
        whole = [engine for engine in self._others if engine.is_whole]
        for engine in (self.chance.choice(whole), self._index):
            self._query_engine(engine, self.chance.choice(self._queries))

    def _query_latest(self, asked: Query) -> None:
        found = self._latest.query(asked.cut)
        last = [self.readings.of(meter, asked.counts[meter] - 1) for meter in self._remaining(asked)]
        expected = {reading.meter: (reading.n, reading.wm) for reading in last}
        _compare("latest", found, expected)

    def _check_table(self) -> None:
        """The table alone equals table and stream at the cut in its snapshot."""
        table = load_table(open_catalog(self.lake.catalog), self.lake.table)
        snapshot = None if table is None else table.current_snapshot()
        if table is None or snapshot is None:
            return
        rows = table.scan(selected_fields=("meter", "wm")).to_arrow().group_by("meter")
        found = {
            row["meter"]: Total(row["wm_count"], row["wm_sum"])
            for row in rows.aggregate([("wm", "count"), ("wm", "sum")]).to_pylist()
        }
        _compare("table", found, {meter: self.readings.total(meter, one.readings) for meter, one in found.items()})
        assert snapshot.summary is not None
        cut = StreamCut.from_text(snapshot.summary.additional_properties["nadi.cut"])
        counts = dict.fromkeys(self.readings.meters, 0) | {meter: total.readings for meter, total in found.items()}
        self._query_engine(self._polars, Query(cut, counts))

    def _whole(self, asked: Query) -> Answer:
        return {meter: self.readings.total(meter, count) for meter, count in asked.counts.items() if count}

    def _remaining(self, asked: Query) -> Answer:
        between = self.readings.between
        found = {meter: between(meter, self._truncated[meter], count) for meter, count in asked.counts.items()}
        return {meter: total for meter, total in found.items() if total.readings}

    # --- end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Query everything with the writer paused, find each event once, and stop all processes cleanly."""
        with self.writer_held() as stored:
            until(lambda: nadi.lake.status(self.manager, SCOPE, self.lake.name).lag_bytes == 0, limit_s=120.0)
            self._query_all(stored)
            assert self._in_table() == stored
            self._find_each(self._queries[-1])
        for part in self.parts.values():
            if part.name != "writer":
                part.stop()

    def _find_each(self, asked: Query) -> None:
        found: dict[str, list[int]] = defaultdict(list)
        after = None
        while True:
            page = self._index.search.query(order="oldest", limit=1000, until=asked.cut, after=after)
            for hit in page.hits:
                reading = json.loads(hit.data)
                found[reading["meter"]].append(reading["n"])
            after = page.next
            if after is None:
                break
        for meter, count in asked.counts.items():
            assert sorted(found[meter]) == list(range(self._truncated[meter], count)), (
                f"{meter}: missing or duplicate hits"
            )


def run_history(
    folder: Path, seed: int, rounds: int, *, rate: float, pause_s: float, with_spark: bool, say: Say
) -> History:
    """Run a number of rounds. AssertionError: an answer differs."""
    history = History(folder, seed, rate=rate, with_spark=with_spark, say=say)
    try:
        until(lambda: history.progress().stored, limit_s=180.0)
        history.query()
        deck: list[str] = []
        for number in range(1, rounds + 1):
            deck = deck or history.chance.sample(DEEDS, len(DEEDS))
            deed = deck.pop()
            history.befall(deed)
            at_rest = number % _PAUSE_EVERY == 0
            history.query(at_rest=at_rest)
            state = "paused" if at_rest else "writing"
            say(f"round {number}: {deed}; {history.progress().stored:,} readings; {state}")
            time.sleep(history.chance.uniform(0.0, pause_s))
        history.finish()
    except BaseException:
        for part in history.parts.values():
            say(f"--- end of the log of {part.name}:\n{part.log_tail(1500)}")
        raise
    finally:
        history.close()
    return history


def has_spark() -> bool:
    """Return whether Spark is installed, and reads lakes."""
    return find_spec("pyspark") is not None and find_spec("nadi.spark.reading.union_batch") is not None


def _compare(engine: str, actual: Mapping[str, object], expected: Mapping[str, object]) -> None:
    different = [name for name in sorted(actual.keys() | expected.keys()) if actual.get(name) != expected.get(name)]
    assert not different, f"{engine}: " + ", ".join(f"{n} is {actual.get(n)}, not {expected.get(n)}" for n in different)
