"""Adjust executors to streams: as many as their segments need, more after splits, fewer after merges.

A loop in the program of the queries polls nadi's controller for the number of segments and requests that many executors
from Spark. It releases only idle ones, and only after fewer have been sufficient for a while, so a stream that scales
down and up again starts no executors.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nadi.errors import InvalidArgumentError, UnavailableError
from nadi.limits import SPARK_FOLLOWED_STREAMS

if TYPE_CHECKING:
    from nadi.client import StreamManager

_log = logging.getLogger(__name__)


class Size:
    """The target number of executors: increased at once, decreased after `idle_s` of needing fewer."""

    def __init__(self, least: int, most: int, segments_per_executor: int, idle_s: float) -> None:
        self._least, self._most, self._each, self._idle_s = least, most, segments_per_executor, idle_s
        self._needed: list[tuple[float, int]] = []  # (time of the last need, number), in decreasing numbers

    def after(self, segments: int, now: float) -> int:
        needed = min(max(math.ceil(segments / self._each), self._least), self._most)
        while self._needed and self._needed[-1][1] <= needed:
            self._needed.pop()
        self._needed.append((now, needed))
        while len(self._needed) > 1 and self._needed[0][0] <= now - self._idle_s:
            self._needed.pop(0)
        return self._needed[0][1]


class ExecutorScaler:
    """The loop that `follow_segments` started. It ends with `close`, its `with` block or Spark."""

    def __init__(
        self,
        manager: StreamManager,
        scope: str,
        streams: Sequence[str],
        executors: SparkExecutors,
        size: Size,
        period_s: float,
    ) -> None:
        self._manager, self._scope, self._streams = manager, scope, streams
        self._executors, self._size, self._period_s = executors, size, period_s
        self._ended = threading.Event()
        self.wanted = 0  # executors, at the last poll
        self._error: BaseException | None = None
        self.poll()
        self._thread = threading.Thread(target=self._run, name="nadi executors", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        """Count the segments, and request the executors that they need."""
        segments = sum(len(self._manager.current_segments(self._scope, stream)) for stream in self._streams)
        wanted = self._size.after(segments, time.monotonic())
        if wanted != self.wanted:
            _log.info("%d segments: %d executors instead of %d", segments, wanted, self.wanted)
        self.wanted = wanted
        self._executors.want(wanted)
        surplus = self._executors.running() - wanted
        if surplus > 0:
            self._executors.release(surplus)

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            try:
                self.poll()
            except UnavailableError as error:
                _log.warning("the number of executors stays unchanged, as nadi doesn't respond: %s", error)
            except BaseException as error:
                if self._executors.is_over():
                    return
                _log.error("executors no longer follow the segments: %s", error)
                self._error = error
                return

    @property
    def is_running(self) -> bool:
        """Whether the loop runs; if not, `close` raises the error that ended it."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the loop; executors stay as they are. Raises the error that ended it earlier, such as a deleted
        stream."""
        self._ended.set()
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> ExecutorScaler:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except Exception:
            if kind is None:  # the block's error takes precedence
                raise


def follow_segments(
    spark: Any,
    manager: StreamManager,
    scope: str,
    streams: str | Sequence[str],
    *,
    min_executors: int = 1,
    max_executors: int,
    segments_per_executor: int = 1,
    idle_s: float = 60.0,
    period_s: float = 5.0,
) -> ExecutorScaler:
    """Keep as many executors as the streams have segments, within limits; return the running loop.

    spark: the driver's session on a cluster, without Spark's dynamic allocation, which would request another number. On
    a standalone cluster, set `spark.executor.cores`, or each executor takes all cores of its worker. manager: the
    connection for the segments; keep it open until the loop is closed. streams: one or up to 100 streams of the
    session's queries; their segments are added up. segments_per_executor: usually an executor's cores. A query's
    `max_partitions` limits its tasks. idle_s: seconds for which fewer executors have to be sufficient before idle ones
    are released. period_s: seconds between two polls.

    A poll without a response changes nothing. Any other error ends the loop, and `close` raises it.

    Raises InvalidArgumentError if executors can't be requested here (in `local` mode, through Spark Connect), or for
    contradictory limits; StreamNotFoundError.

        from nadi.spark import follow_segments

        with (
            nadi.StreamManager("tcp://streams.example:9090") as manager,
            follow_segments(spark, manager, "home", "meters", max_executors=8),
        ):
            query.awaitTermination()
    """
    names = [streams] if isinstance(streams, str) else list(streams)
    if not 0 < len(names) <= SPARK_FOLLOWED_STREAMS:
        raise InvalidArgumentError(f"streams: give 1 to {SPARK_FOLLOWED_STREAMS} of them, not {len(names)}")
    if not 1 <= min_executors <= max_executors:
        raise InvalidArgumentError(
            f"min_executors must be from 1 to max_executors, not {min_executors} of {max_executors}"
        )
    if segments_per_executor < 1:
        raise InvalidArgumentError(f"segments_per_executor must be 1 or more, not {segments_per_executor}")
    for name, seconds, least in (("idle_s", idle_s, 0), ("period_s", period_s, 0.1)):
        if not least <= seconds < math.inf:
            raise InvalidArgumentError(f"{name} must be {least} seconds or more, not {seconds}")
    size = Size(min_executors, max_executors, segments_per_executor, idle_s)
    return ExecutorScaler(manager, scope, names, SparkExecutors(spark), size, period_s)


class SparkExecutors:
    """The executors of a session, for any scheduler: standalone, YARN and Kubernetes."""

    def __init__(self, spark: Any) -> None:
        if not hasattr(spark, "_jsc"):
            raise InvalidArgumentError(
                "spark: only a program in the driver can request executors; this session is a client of Spark Connect"
            )
        self._context = spark.sparkContext
        self._backend = self._context._jsc.sc().schedulerBackend()
        kind, ancestors = self._backend.getClass(), ""
        while kind is not None:
            ancestors, kind = f"{ancestors} {kind.getName()}", kind.getSuperclass()
        if "CoarseGrained" not in ancestors:
            raise InvalidArgumentError(f"spark: master {self._context.master} can't provide executors: use a cluster")
        if self._context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
            raise InvalidArgumentError(
                "spark: set spark.dynamicAllocation.enabled to false for executors to follow segments"
            )

    def running(self) -> int:
        return len(self._active())

    def want(self, count: int) -> None:
        """Request executors if there are fewer."""
        no_preference = self._context._jvm.PythonUtils.toScalaMap({})  # no preferred hosts
        self._context._jsc.sc().requestTotalExecutors(count, 0, no_preference)

    def release(self, count: int) -> None:
        """End up to `count` executors that run no task."""
        for executor in sorted(self._active(), key=int, reverse=True):  # the oldest have the fullest caches
            if count == 0:
                return
            ids = self._context._jvm.PythonUtils.toSeq([executor])
            # without a new target, not counted as failures, and refused while it runs a task
            count -= self._backend.killExecutors(ids, False, False, False).size()

    def is_over(self) -> bool:
        """Whether Spark has stopped."""
        return self._context._jsc is None

    def _active(self) -> list[str]:
        known = self._backend.getExecutorIds()
        ids = [str(known.apply(number)) for number in range(known.size())]
        return [executor for executor in ids if self._backend.isExecutorActive(executor)]
