"""Executors follow a stream's segments: their target number, the loop, and Spark's own executors."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import nadi
from nadi.errors import InvalidArgumentError, StreamNotFoundError, UnavailableError
from nadi.model.keyspace import equal_ranges
from nadi.spark import follow_segments, tuned
from nadi.spark.executor_scaling import ExecutorScaler, Size
from tests.spark.places.guide import examples


def until(is_so: Callable[[], bool], what: str, limit_s: float = 60) -> None:
    give_up = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def test_target_size_follows_segments() -> None:
    size = Size(least=2, most=6, segments_per_executor=2, idle_s=60)
    # more at once; fewer only when more were last needed a minute ago
    assert [size.after(1, 0), size.after(7, 1), size.after(100, 2), size.after(9, 3)] == [2, 4, 6, 6]
    assert [size.after(5, 30), size.after(5, 61), size.after(5, 62), size.after(5, 63)] == [6, 6, 5, 3]
    assert size.after(8, 64) == 4
    assert Size(1, 8, 1, idle_s=0).after(3, 0) == 3


def test_short_rise_restarts_the_wait() -> None:
    size = Size(1, 8, 1, idle_s=10)
    assert [size.after(4, 0), size.after(1, 1), size.after(3, 9), size.after(1, 10)] == [4, 4, 4, 3]
    assert [size.after(1, 18), size.after(1, 19)] == [3, 1]


class Segments:
    """A manager that reports that many segments, or fails."""

    def __init__(self) -> None:
        self.count = 2
        self.error: Exception | None = None

    def current_segments(self, scope: str, stream: str) -> list[int]:
        if self.error is not None:
            raise self.error
        return list(range(self.count))


class Room:
    """Executors that start at once; busy ones are not released."""

    def __init__(self) -> None:
        self.count, self.busy, self.stopped = 1, 0, False

    def running(self) -> int:
        return self.count

    def want(self, count: int) -> None:
        self.count = max(self.count, count)

    def release(self, count: int) -> None:
        self.count = max(self.busy, self.count - count)

    def is_over(self) -> bool:
        return self.stopped


def following(segments: Segments, room: Room) -> ExecutorScaler:
    return ExecutorScaler(cast("Any", segments), "home", ["a", "b"], cast("Any", room), Size(1, 8, 1, 0), 0.01)


def test_loop_requests_more_and_releases_idle_executors() -> None:
    segments, room = Segments(), Room()
    with following(segments, room):
        assert room.count == 4  # of two streams, when it returns
        room.busy, segments.count = 3, 1
        until(lambda: room.count == 3, "the idle one goes")
        room.busy = 0
        until(lambda: room.count == 2, "the others go when they are idle")
        segments.error = UnavailableError("away for a moment")
        time.sleep(0.05)
        segments.error, segments.count = None, 3
        until(lambda: room.count == 6, "it resumes once nadi responds")


def test_error_that_ends_the_loop_is_raised_by_close() -> None:
    segments, room = Segments(), Room()
    loop = following(segments, room)
    segments.error = StreamNotFoundError("home", "a")
    until(lambda: not loop.is_running, "it ends")
    with pytest.raises(StreamNotFoundError):
        loop.close()
    loop.close()  # again, and nothing
    with pytest.raises(ZeroDivisionError):  # what failed in the block says more
        lose_the_stream_and_divide(room)
    segments = Segments()
    loop = following(segments, room)
    room.stopped, segments.error = True, RuntimeError("no gateway")  # what Spark's objects say after its end
    until(lambda: not loop.is_running, "it ends with Spark")
    loop.close()


def lose_the_stream_and_divide(room: Room) -> None:
    segments = Segments()
    with following(segments, room) as loop:
        segments.error = StreamNotFoundError("home", "a")
        until(lambda: not loop.is_running, "it ends")
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"streams": []}, "streams"),
        ({"streams": ["s"] * 101}, "streams"),
        ({"max_executors": 0}, "max_executors"),
        ({"min_executors": 3, "max_executors": 2}, "min_executors"),
        ({"segments_per_executor": 0}, "segments_per_executor"),
        ({"idle_s": -1}, "idle_s"),
        ({"period_s": 0}, "period_s"),
        ({}, "Spark Connect"),
    ],
)
def test_invalid_arguments_are_rejected(options: dict[str, Any], named: str) -> None:
    given = {"streams": "s", "max_executors": 4, **options}
    with pytest.raises(InvalidArgumentError, match=named):
        follow_segments(object(), cast("Any", Segments()), "home", **given)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A standalone master and two workers with a core each, in processes of this machine."""
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    if (shared := SparkSession.getActiveSession()) is not None:
        shared.stop()
    builder = tuned(SparkSession.builder.master("local-cluster[2,1,600]").appName("nadi executors"))
    builder.config("spark.executor.cores", "1").config("spark.executor.memory", "512m")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_spark_executors_follow_a_stream(cluster: Any, tmp_path: Path) -> None:
    known = cluster.sparkContext._jsc.sc()

    def executors() -> int:
        return int(known.getExecutorIds().size())

    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters", 1)

        class Query:
            """The query that the guide's example waits for."""

            def awaitTermination(self) -> None:
                until(lambda: executors() == 1, "one segment, one executor", 120)
                scale(manager, 3)
                until(lambda: executors() == 2, "a segment more than executors", 120)
                # work continues while they are released
                assert cluster.range(0, 30, 1, 6).rdd.map(lambda row: row.id).sum() == 435
                scale(manager, 1)
                until(lambda: executors() == 1, "one segment again", 120)
                assert cluster.range(0, 30, 1, 6).rdd.map(lambda row: row.id).sum() == 435

        (example,) = examples("python", "follow_segments")
        for printed, here in (
            ("tcp://nadi.example:9090", server.controller_uri),
            ("idle_s=60", "idle_s=0.5, period_s=0.2"),
        ):
            assert printed in example
            example = example.replace(printed, here)
        exec(compile(example, "spark-clusters.md", "exec"), {"nadi": nadi, "spark": cluster, "query": Query()})
        scale(manager, 2)
        time.sleep(0.5)
        assert executors() == 1, "a closed loop asks for nothing"
        with follow_segments(cluster, manager, "home", "meters", max_executors=2, period_s=0.1) as loop:
            cluster.stop()
            until(lambda: not loop.is_running, "it ends with Spark")


def scale(manager: nadi.StreamManager, count: int) -> None:
    old = [piece.segment_id for piece in manager.current_segments("home", "meters")]
    manager.scale_stream("home", "meters", old, equal_ranges(count))
