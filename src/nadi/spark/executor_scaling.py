"""Executors that follow streams: as many as their segments need, more when they split, fewer when they merge.

A loop beside a program's queries asks nadi's controller how many segments there are now, and Spark for that many
executors. It gives back only idle ones, and only once fewer have sufficed for a while: a stream that scales down and up
again costs no start of an executor.
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
    """How many executors there should be: at once as many as segments need, fewer after `idle_s` of needing fewer."""

    def __init__(self, least: int, most: int, segments_per_executor: int, idle_s: float) -> None:
        self._least, self._most, self._each, self._idle_s = least, most, segments_per_executor, idle_s
        self._needed: list[tuple[float, int]] = []  # when last, and how many; each less than those before it

    def after(self, segments: int, now: float) -> int:
        needed = min(max(math.ceil(segments / self._each), self._least), self._most)
        while self._needed and self._needed[-1][1] <= needed:
            self._needed.pop()
        self._needed.append((now, needed))
        while len(self._needed) > 1 and self._needed[0][0] <= now - self._idle_s:
            self._needed.pop(0)
        return self._needed[0][1]


class ExecutorFollowing:
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
        self.wanted = 0  # executors, as of the last look
        self._error: BaseException | None = None
        self.look()
        self._thread = threading.Thread(target=self._run, name="nadi executors", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Count the segments, and ask Spark for what they need."""
        segments = sum(len(self._manager.current_segments(self._scope, stream)) for stream in self._streams)
        wanted = self._size.after(segments, time.monotonic())
        if wanted != self.wanted:
            _log.info("%d segments: %d executors instead of %d", segments, wanted, self.wanted)
        self.wanted = wanted
        self._executors.want(wanted)
        surplus = self._executors.running() - wanted
        if surplus > 0:
            self._executors.give_back(surplus)

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            try:
                self.look()
            except UnavailableError as error:
                _log.warning("executors stay as they are, for nadi does not answer: %s", error)
            except BaseException as error:
                if self._executors.is_over():
                    return
                _log.error("executors no longer follow the segments: %s", error)
                self._error = error
                return

    @property
    def is_running(self) -> bool:
        """Whether executors still follow; if not, `close` raises what ended it."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the loop; executors stay as they are. Raises what ended it before, such as a stream's deletion."""
        self._ended.set()
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> ExecutorFollowing:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except Exception:
            if kind is None:  # what failed in the block says more
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
) -> ExecutorFollowing:
    """Keep as many executors as the streams have segments, within limits; returns the loop that does, under way.

    spark: the driver's session, on a cluster, without Spark's dynamic allocation, which would want another number at
    the same time. On a standalone cluster, set `spark.executor.cores`, or each executor takes all cores of its worker.
    manager: the connection that tells of the segments; it must stay open until the loop is closed.
    streams: one or up to 100 that the session's queries read; their segments are added up.
    segments_per_executor: how many an executor reads, usually its cores. A query's `max_partitions` limits its tasks.
    idle_s: seconds for which fewer executors must have sufficed before idle ones are given back.
    period_s: seconds between two looks at the segments.

    A look that nadi does not answer changes nothing. Whatever else goes wrong ends the loop, and `close` raises it.

    Raises InvalidArgumentError if Spark can't be asked for executors here (in `local` mode, through Spark Connect), or
    for limits that contradict each other; StreamNotFoundError.

        from nadi.spark import follow_segments

        with (
            nadi.StreamManager("tcp://streams.example:9090") as manager,
            follow_segments(spark, manager, "home", "meters", max_executors=8),
        ):
            query.awaitTermination()
    """
    names = [streams] if isinstance(streams, str) else list(streams)
    if not 0 < len(names) <= SPARK_FOLLOWED_STREAMS:
        raise InvalidArgumentError(f"streams: 1 to {SPARK_FOLLOWED_STREAMS} of them, not {len(names)}")
    if not 1 <= min_executors <= max_executors:
        raise InvalidArgumentError(
            f"min_executors must be 1 or more and max_executors no less, not {min_executors} and {max_executors}"
        )
    if segments_per_executor < 1:
        raise InvalidArgumentError(f"segments_per_executor must be 1 or more, not {segments_per_executor}")
    for name, seconds, least in (("idle_s", idle_s, 0), ("period_s", period_s, 0.1)):
        if not least <= seconds < math.inf:
            raise InvalidArgumentError(f"{name} must be {least} seconds or more, not {seconds}")
    size = Size(min_executors, max_executors, segments_per_executor, idle_s)
    return ExecutorFollowing(manager, scope, names, SparkExecutors(spark), size, period_s)


class SparkExecutors:
    """Those of a session, by its scheduler: standalone, YARN and Kubernetes alike."""

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
            raise InvalidArgumentError(
                f"spark: master {self._context.master} has no executors to request, a cluster's has"
            )
        if self._context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
            raise InvalidArgumentError(
                "spark: set spark.dynamicAllocation.enabled to false for executors to follow segments"
            )

    def running(self) -> int:
        return len(self._active())

    def want(self, count: int) -> None:
        """Start more if there are fewer."""
        nowhere = self._context._jvm.PythonUtils.toScalaMap({})  # no host is better than another
        self._context._jsc.sc().requestTotalExecutors(count, 0, nowhere)

    def give_back(self, count: int) -> None:
        """End so many that run no task, or as many as there are of these."""
        for executor in sorted(self._active(), key=int, reverse=True):  # the oldest have most in their caches
            if count == 0:
                return
            some = self._context._jvm.PythonUtils.toSeq([executor])
            # without a new target, not counted as failures, and refused while it runs a task
            count -= self._backend.killExecutors(some, False, False, False).size()

    def is_over(self) -> bool:
        """Whether Spark has stopped."""
        return self._context._jsc is None

    def _active(self) -> list[str]:
        known = self._backend.getExecutorIds()
        ids = [str(known.apply(number)) for number in range(known.size())]
        return [executor for executor in ids if self._backend.isExecutorActive(executor)]
