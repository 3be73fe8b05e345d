"""At most once in Spark: no event is handed out and no row written twice, despite kills at any step."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from nadi.errors import ConflictError
from nadi.spark.options.parsed import WriteOptions
from nadi.spark.options.table import Use
from nadi.spark.reading.streaming import StreamReader
from nadi.spark.sink import BatchPlan, BatchWriter, StreamWriter
from tests.support.waiting import until

from .queries import Home, Query
from .scaled import scale_somehow

pytestmark = pytest.mark.spark
SCHEMA = StructType([StructField("event", BinaryType())])


def write(home: Home, stream: str, first: int, last: int) -> None:
    with home.manager.create_writer("home", stream) as writer:
        for number in range(first, last):
            writer.write_event(b"%d" % number, str(number % 7))


class Runs:
    """A query killed between any two steps, with its offset log and commit log, while its former process still runs."""

    def __init__(self, home: Home, stream: str, **more: str) -> None:
        self.query = Query(home, stream, groupId=f"{stream}-group", delivery="at-most-once", **more)
        self.got: list[bytes] = []
        self.ends: list[dict[str, Any]] = []
        self.done = 0
        self.former: StreamReader | None = None

    def trigger(self, dies_at: str | None) -> bool:
        """Run a batch like Spark; return False if there is nothing to read."""
        reader = self.query.reader
        start = self.ends[self.done - 1] if self.done else reader.initialOffset()
        if len(self.ends) == self.done:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                return False
            self.ends.append(end)
            if self.done and dies_at != "planned":
                reader.commit(start)
        if dies_at in (None, "handed out", "read", "half read"):
            tasks = list(reader.partitions(start, self.ends[self.done]))
            for task in tasks[: len(tasks) // 2 if dies_at == "half read" else 0 if dies_at == "handed out" else None]:
                self.got += [event for rows in reader.read(task) for event in rows.column(0).to_pylist()]
        if dies_at is None:
            self.done += 1
        else:
            self.former, self.query.reader = reader, StreamReader(self.query.options)
        return True


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_source_hands_out_no_event_twice_despite_kills(home: Home, seed: int) -> None:
    chance, stream = random.Random(seed), f"once-{seed}"
    home.manager.create_stream("home", stream, 2)
    runs = Runs(home, stream, maxOffsetsPerTrigger=str(chance.randrange(5, 40)))
    written = 0
    for _ in range(25):
        more = chance.randrange(0, 30)
        write(home, stream, written, written + more)
        written += more
        if chance.random() < 0.2:
            scale_somehow(home.manager, stream, chance)
        try:
            runs.trigger(chance.choice([None, None, "planned", "handed out", "half read", "read"]))
        except ConflictError:  # its former self was faster
            runs.query.reader = StreamReader(runs.query.options)
        if chance.random() < 0.1 and runs.done > 1:  # an older copy of its checkpoint
            runs.done -= 1
            del runs.ends[runs.done :]
            runs.query.reader = StreamReader(runs.query.options)
        if chance.random() < 0.1:  # its checkpoint is lost
            runs.done = 0
            runs.ends.clear()
            runs.query.reader = StreamReader(runs.query.options)
    while runs.trigger(None):
        pass
    counts = Counter(runs.got)
    assert max(counts.values()) == 1
    assert len(counts) > written / 4
    write(home, stream, written, written + 10)
    while runs.trigger(None):
        pass
    assert {b"%d" % number for number in range(written, written + 10)} <= set(runs.got)


def test_of_two_concurrent_runs_one_continues(home: Home) -> None:
    home.manager.create_stream("home", "two-runs", 1)
    write(home, "two-runs", 0, 30)
    first, second = (Runs(home, "two-runs", maxOffsetsPerTrigger="10") for _ in range(2))
    first.trigger(None)
    second.trigger(None)
    second.trigger(None)
    with pytest.raises(ConflictError, match="home/"):
        first.trigger(None)
    assert Counter(first.got + second.got) == Counter(b"%d" % number for number in range(20))


def test_source_without_failures_hands_out_each_event_once(home: Home) -> None:
    home.manager.create_stream("home", "smooth", 3)
    write(home, "smooth", 0, 500)
    query = Query(home, "smooth", groupId="smooth", delivery="at-most-once", maxOffsetsPerTrigger="60")
    assert Counter(query.run()) == Counter(b"%d" % number for number in range(500))
    assert home.manager.reader_group_manager("home").lag("smooth")[0].lag_bytes == 0


def test_source_refuses_a_second_attempt_but_not_a_second_action(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.manager.create_stream("home", "attempts", 1)
    write(home, "attempts", 0, 10)
    reader = Query(home, "attempts", groupId="attempts", delivery="at-most-once").reader
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    def attempt(stage: int, number: int) -> int:
        (task,) = reader.partitions(start, end)
        monkeypatch.setattr("nadi.spark.intents.attempt_of_task", lambda: (0, stage, number))
        return sum(rows.num_rows for rows in reader.read(task))

    assert [attempt(5, 1), attempt(5, 2), attempt(6, 3), attempt(6, 4), attempt(6, 3)] == [10, 0, 10, 0, 10]
    assert [attempt(5, 2), attempt(5, 1)] == [0, 10], "of a stage that another one has followed"


def rows(*numbers: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"event": [b"%d" % number for number in numbers]})])


def numbers(home: Home, stream: str) -> list[int]:
    return sorted(int(event.data) for event in home.events(stream))


def test_sink_skips_batch_started_by_another_run(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.manager.create_stream("home", "sink", 1)
    given = {"controller": home.uri, "scope": "home", "stream": "sink", "delivery": "at-most-once"}
    options = WriteOptions.from_spark(given, Use.WRITE_STREAM)
    first, second = StreamWriter(options, SCHEMA), StreamWriter(options, SCHEMA)

    def task(writer: StreamWriter, batch: int, part: int, attempt: int, *events: int) -> None:
        monkeypatch.setattr("nadi.spark.sink.batch_of_task", lambda: ("query", batch))
        monkeypatch.setattr("nadi.spark.intents.attempt_of_task", lambda: (part, batch, attempt))
        writer.write(rows(*events))

    task(first, 0, 0, 1, 1, 2)
    task(first, 0, 1, 2, 3)
    task(first, 0, 1, 3, 3)  # another attempt
    task(second, 0, 0, 1, 1, 2)  # it is run again, otherwise divided
    task(second, 0, 2, 2, 3, 4)
    task(second, 1, 0, 3, 5)
    task(first, 1, 0, 3, 5)  # it was not dead
    task(first, 0, 4, 9, 4)
    assert numbers(home, "sink") == [1, 2, 3, 5]
    second.commit([None], 1)
    second.abort([None], 1)


def test_application_write_starts_once(home: Home) -> None:
    home.manager.create_stream("home", "application", 1)

    def written(version: int, *events: int) -> None:
        given = {"controller": home.uri, "scope": "home", "stream": "application", "delivery": "at-most-once"}
        given |= {"txnAppId": "sums", "txnVersion": str(version)}
        writer = BatchWriter(WriteOptions.from_spark(given, Use.WRITE), SCHEMA, BatchPlan())
        writer.commit([writer.write(rows(*events))])

    for version, event in ((0, 1), (0, 1), (2, 2), (1, 3), (2, 2), (3, 4)):
        written(version, event)
    assert numbers(home, "application") == [1, 2, 4]


DRIVER = """
    import os, sys
    from nadi.spark import tuned
    from pyspark.sql import SparkSession

    uri, folder, source, sink = sys.argv[1:]
    spark = tuned(SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")).getOrCreate()
    home = {"controller": uri, "scope": "home"}
    rows = (
        spark.readStream.format("nadi")
        .options(**home, stream="killed-in", groupId="killed", delivery=source, maxOffsetsPerTrigger=40)
        .load()
    )

    def note(batch, number):
        assert batch.count() == batch.select("event").count(), "two actions of one batch"
        with open(f"{folder}/noted", "ab", buffering=0) as file:
            for row in batch.collect():
                file.write(bytes(row.event) + b"\\n")

    rows.writeStream.foreachBatch(note).option("checkpointLocation", f"{folder}/noted-checkpoint").start()
    (
        spark.readStream.format("nadi").options(**home, stream="killed-in", maxOffsetsPerTrigger=40).load()
        .select("event").writeStream.format("nadi").options(**home, stream="killed-out", delivery=sink)
        .option("checkpointLocation", f"{folder}/written-checkpoint").start()
    )
    spark.streams.awaitAnyTermination()  # none ends, unless it fails
"""


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(600)
def test_queries_killed_at_random_repeat_nothing(home: Home, tmp_path: Path) -> None:
    for stream in ("killed-in", "killed-out"):
        home.manager.create_stream("home", stream, 2)
    program, chance, written = tmp_path / "driver.py", random.Random(4), 0
    program.write_text(textwrap.dedent(DRIVER))
    noted = tmp_path / "noted"
    noted.touch()
    command = [sys.executable, str(program), home.uri, str(tmp_path), "at-most-once", "at-most-once"]

    def lines() -> list[bytes]:
        return noted.read_bytes().split()

    for kill in range(4):
        driver = subprocess.Popen(command, start_new_session=True)
        try:
            before = len(lines()), len(numbers(home, "killed-out"))
            for _ in range(10):
                write(home, "killed-in", written, written + 50)
                written += 50
            until(lambda before=before: len(lines()) > before[0], 120)  # type: ignore[misc]
            until(lambda before=before: len(numbers(home, "killed-out")) > before[1], 120)  # type: ignore[misc]
            time.sleep(chance.random() * 2)
            if kill == 3:
                write(home, "killed-in", written, written + 10)
                last = set(range(written, written + 10))
                until(lambda last=last: last <= set(map(int, lines())), 120)  # type: ignore[misc]
                until(lambda last=last: last <= set(numbers(home, "killed-out")), 120)  # type: ignore[misc]
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    for found in (Counter(int(line) for line in lines()), Counter(numbers(home, "killed-out"))):
        print(f"{written + 10} events, {len(found)} came")
        assert max(found.values()) == 1
        assert len(found) > written / 4
