"""One link of a chain whose drivers die at any step, lose their checkpoints, and are started twice: its output has
each event once, in order per key."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from nadi.errors import ConflictError
from nadi.spark.options.parsed import WriteOptions
from nadi.spark.options.table import Use
from nadi.spark.reading.streaming import StreamReader
from nadi.spark.sink import StreamWriter, TaskCommit

from .queries import Home, Query
from .scaled import scale_somehow

pytestmark = pytest.mark.spark
KEYS = 6
STEPS = ("plan", "run", "read", "write", "decide", "log")


class DiedError(Exception):
    """A driver was killed."""


async def dies(*_: object) -> None:
    raise DiedError


class Driver:
    """A query with a checkpoint: its offsets and the number of batches in the commit log."""

    def __init__(self, home: Home, name: str, number: int, room: int) -> None:
        given = {"groupId": name, "output": f"{name}-out", "startAt": "last-committed"}
        self.id, self.ends, self.batch = f"{name}-{number}", list[dict[str, Any]](), 0
        self._home, self._out = home, f"{name}-out"
        self._options = Query(home, name, **given, maxOffsetsPerTrigger=str(room)).options
        self._reader: StreamReader | None = None

    def trigger(self, monkeypatch: pytest.MonkeyPatch, end_at: str | None) -> bool:
        """Run a batch like Spark up to the step at which the driver is killed; return False if there is nothing to
        read."""
        try:
            return self._batch(monkeypatch, end_at)
        except DiedError:
            return True
        finally:
            if end_at is not None:
                self._reader = None

    def forget(self) -> None:
        """Restart it."""
        self._reader = None

    def _batch(self, monkeypatch: pytest.MonkeyPatch, end_at: str | None) -> bool:
        def at(step: str) -> None:
            if step == end_at:
                raise DiedError

        reader = self._reader = self._reader or StreamReader(self._options)
        start = self.ends[self.batch - 1] if self.batch else reader.initialOffset()
        if len(self.ends) == self.batch:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if self.batch and end == start:
                return False
            at("plan")
            self.ends.append(end)
            if self.batch:
                reader.commit(start)
        at("run")
        monkeypatch.setattr("nadi.spark.reading.streaming.batch_of_task", lambda: (self.id, self.batch))
        tasks = reader.partitions(start, self.ends[self.batch])
        events = [event for task in tasks for rows in reader.read(task) for event in rows.column(0).to_pylist()]
        at("read")
        with self._home.manager.create_transaction_writer("home", self._out) as writer:
            txn = writer.begin_txn(600_000)
            if events:
                txn.write_batch(events, [str(int(event) % KEYS) for event in events])
            txn.flush()
        at("write")
        given = {"controller": self._home.uri, "scope": "home", "stream": self._out}
        options = WriteOptions.from_spark(given, Use.WRITE_STREAM)
        with monkeypatch.context() as changed:
            if end_at == "decide":
                changed.setattr("nadi.spark.intents.commit_all", dies)
            sink = StreamWriter(options, StructType([StructField("event", BinaryType())]))
            sink.commit([TaskCommit(txn.txn_id, self.id)], self.batch)
        at("log")
        self.batch += 1
        return True


@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(30, 60))])
def test_chain_link_is_exact_despite_kills(home: Home, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance, name = random.Random(seed), f"link-{seed}"
    for stream in (name, f"{name}-out"):
        home.manager.create_stream("home", stream, 2)
    written = started = 0
    room = chance.randrange(3, 12)

    def new() -> Driver:
        nonlocal started
        started += 1
        return Driver(home, name, started, room)

    drivers = [new()]

    def trigger(driver: Driver, end_at: str | None) -> bool:
        try:
            return driver.trigger(monkeypatch, end_at)
        except ConflictError:  # another one has its place
            driver.forget()
            if chance.random() < 0.6:
                drivers.remove(driver)
                drivers.extend([] if drivers else [new()])
            return True

    for _ in range(60):
        if chance.random() < 0.4:
            with home.manager.create_writer("home", name) as writer:
                for number in range(written, written + chance.randrange(15)):
                    writer.write_event(b"%d" % number, str(number % KEYS))
                    written += 1
            if chance.random() < 0.3:
                scale_somehow(home.manager, name, chance)
        one = chance.randrange(len(drivers))
        if (what := chance.random()) < 0.08:
            drivers.append(new())
        elif what < 0.14 and len(drivers) > 1:
            drivers.pop(one)
        elif what < 0.2:
            drivers[one] = new()  # without its checkpoint
        trigger(chance.choice(drivers), chance.choice(STEPS) if chance.random() < 0.5 else None)
    drivers[:] = [new()]
    for _ in range(written + 100):
        if not trigger(drivers[0], None):
            break
    found = [int(event.data) for event in home.events(f"{name}-out")]
    assert sorted(found) == list(range(written))
    for key in range(KEYS):
        assert (mine := [number for number in found if number % KEYS == key]) == sorted(mine)
