"""A household's history as stream, lake and index: whatever happens to it, whoever is asked says the same.

A process writes readings, one keeps the lake level, two index. In each round something happens: a part is killed, or
stands still, or segments are split, merged or truncated. Then one cut is taken while the writer goes on, and each
engine is asked about it, some also about an earlier one. The ledger is what the writer was acknowledged: each meter's
readings are in order, so how many there are before a cut says what they come to; and they are no fewer than were stored
when the cut was taken, and no more than had been begun. Every fourth round the writer rests, and they are as many as
were stored.

The stream is truncated where the table is; the table then has what the stream has lost. So the stream by itself, as
plain Python or a stream table reads it, and the index answer for what is left: of each meter the readings from the
first one on that wasn't before that cut.
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
# so that data moves to tier 2, and what was joined or replaced goes, while one looks on
_SERVER = {"NADI_LIMITS": "chunk_flush_age_s=0.5,chunk_flush_bytes=65536,storage_writer_tick_s=0.1"}
_LAKE = {"NADI_LIMITS": "lake_compact_every_s=5"}
_INDEXER = {"NADI_LIMITS": "search_tidy_s=1,search_retired_s=30"}
_REST = 4  # every so manieth round the writer rests
_MOST_SEGMENTS = 8

Say = Callable[[str], None]


class Asked(NamedTuple):
    """A cut, and how many readings each meter has before it."""

    cut: StreamCut
    counts: dict[str, int]


class History:
    """The store, the parts, and what is known of what they hold."""

    def __init__(self, folder: Path, seed: int, *, rate: float, with_spark: bool, say: Say) -> None:
        self.readings, self.chance, self.say = Readings(seed), random.Random(seed), say
        self._folder, self._open = folder, ExitStack()
        self.done: Counter[str] = Counter()
        self._asked: list[Asked] = []
        self._lost = dict.fromkeys(self.readings.meters, 0)  # of each meter, before the stream's head
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
        self.manager.create_stream(SCOPE, STREAM, 1)  # no fewer than with this many can it be merged to
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
        engines.defined(self.manager)
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

    # --- what happens -------------------------------------------------------------------------

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
        one = self.chance.choice(segments)
        middle = one.low + (one.high - one.low) * self.chance.uniform(0.3, 0.7)
        self.manager.scale_stream(SCOPE, STREAM, [one.segment_id], [(one.low, middle), (middle, one.high)])
        return True

    def _merge(self) -> bool:
        segments = sorted(self.manager.current_segments(SCOPE, STREAM), key=lambda one: one.low)
        if len(segments) < 2:
            return False
        first = self.chance.randrange(len(segments) - 1)
        old = segments[first : first + 2]
        ids = [one.segment_id for one in old]
        self.manager.scale_stream(SCOPE, STREAM, ids, [(old[0].low, old[1].high)])
        return True

    def _truncate(self) -> bool:
        """Behind the table: where it is now, or up to there at least."""
        cut = nadi.lake.status(self.manager, SCOPE, self.lake.name).cut
        if cut is None or cut == self.manager.stream_info(SCOPE, STREAM).head:
            return False
        for meter, total in self._python.ask(cut).items():
            self._lost[meter] += total.readings
        self.manager.truncate_stream(cut)
        return True

    def _lag(self) -> bool:
        """The indexers stand still while what they haven't come to is split, written to the table, and truncated."""
        with ExitStack() as still:
            for number in range(2):
                still.enter_context(self.parts[f"indexer {number}"].standing_still())
            written = self.progress().stored
            self._split()
            until(lambda: self.progress().stored > written + 1000, limit_s=120.0)
            until(lambda: self._in_table() > written + 500, limit_s=120.0)
            return self._truncate()

    def _in_table(self) -> int:
        return nadi.lake.status(self.manager, SCOPE, self.lake.name).rows or 0

    # --- what is asked ------------------------------------------------------------------------

    def ask(self, *, at_rest: bool = False) -> None:
        """Everybody about the stream's end now."""
        if at_rest:
            with self.writer_held() as stored:
                self._ask(stored)
        else:
            self._ask(None)

    @contextmanager
    def writer_held(self) -> Iterator[int]:
        """While the writer rests: how many are stored."""
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

    def _ask(self, stored: int | None) -> None:
        low = self.progress().stored
        cut = self.manager.stream_info(SCOPE, STREAM).tail
        high = self.progress().begun if stored is None else stored
        left = self._python.ask(cut)
        counts = {meter: self._lost[meter] + left.get(meter, Total(0, 0)).readings for meter in self.readings.meters}
        asked = Asked(cut, counts)
        _compare("python", left, self._left(asked))
        least, most = self.readings.counts(low), self.readings.counts(high)
        for meter, count in counts.items():
            assert least[meter] <= count <= most[meter], (
                f"of {meter} the stream has {count} readings; {least[meter]} were stored, {most[meter]} begun"
            )
        for engine in self._others:
            self._ask_one(engine, asked)
        self._ask_latest(asked)
        self._asked.append(asked)
        self._ask_earlier()
        self._look_at_table()

    def _ask_one(self, engine: Engine, asked: Asked) -> None:
        expected = self._whole(asked) if engine.is_whole else self._left(asked)
        _compare(engine.name, engine.ask(asked.cut), expected)

    def _ask_earlier(self) -> None:
        """Of what was asked about before: one engine that knows the whole, and the index."""
        whole = [engine for engine in self._others if engine.is_whole]
        for engine in (self.chance.choice(whole), self._index):
            self._ask_one(engine, self.chance.choice(self._asked))

    def _ask_latest(self, asked: Asked) -> None:
        found = self._latest.ask(asked.cut)
        last = [self.readings.of(meter, asked.counts[meter] - 1) for meter in self._left(asked)]
        expected = {one.meter: (one.n, one.wm) for one in last}
        _compare("latest", found, expected)

    def _look_at_table(self) -> None:
        """The table by itself is what table and stream are at the cut in its snapshot."""
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
        self._ask_one(self._polars, Asked(cut, counts))

    def _whole(self, asked: Asked) -> Answer:
        return {meter: self.readings.total(meter, count) for meter, count in asked.counts.items() if count}

    def _left(self, asked: Asked) -> Answer:
        between = self.readings.between
        found = {meter: between(meter, self._lost[meter], count) for meter, count in asked.counts.items()}
        return {meter: total for meter, total in found.items() if total.readings}

    # --- at the end ---------------------------------------------------------------------------

    def finish(self) -> None:
        """Everything once more at rest; each event is found once; all parts end well."""
        with self.writer_held() as stored:
            until(lambda: nadi.lake.status(self.manager, SCOPE, self.lake.name).behind_bytes == 0, limit_s=120.0)
            self._ask(stored)
            assert self._in_table() == stored
            self._find_each(self._asked[-1])
        for part in self.parts.values():
            if part.name != "writer":
                part.stop()

    def _find_each(self, asked: Asked) -> None:
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
            assert sorted(found[meter]) == list(range(self._lost[meter], count)), f"of {meter} not each is found once"


def tell(folder: Path, seed: int, rounds: int, *, rate: float, pause_s: float, with_spark: bool, say: Say) -> History:
    """Have so many rounds happen; return what came of it. AssertionError at the first answer that is another."""
    history = History(folder, seed, rate=rate, with_spark=with_spark, say=say)
    try:
        until(lambda: history.progress().stored, limit_s=180.0)
        history.ask()
        deck: list[str] = []
        for number in range(1, rounds + 1):
            deck = deck or history.chance.sample(DEEDS, len(DEEDS))
            deed = deck.pop()
            history.befall(deed)
            at_rest = number % _REST == 0
            history.ask(at_rest=at_rest)
            said = "at rest" if at_rest else "while it was written"
            say(f"round {number}: {deed}; {history.progress().stored:,} readings; asked {said}")
            time.sleep(history.chance.uniform(0.0, pause_s))
        history.finish()
    except BaseException:
        for part in history.parts.values():
            say(f"--- {part.name} said at last:\n{part.said(1500)}")
        raise
    finally:
        history.close()
    return history


def has_spark() -> bool:
    """Whether Spark is there, and reads lakes."""
    return find_spec("pyspark") is not None and find_spec("nadi.spark.reading.union_batch") is not None


def _compare(who: str, found: Mapping[str, object], expected: Mapping[str, object]) -> None:
    others = [name for name in sorted(found.keys() | expected.keys()) if found.get(name) != expected.get(name)]
    assert not others, f"{who}: " + ", ".join(f"{n} is {found.get(n)}, not {expected.get(n)}" for n in others)
