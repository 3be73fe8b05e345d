"""How many workers a function has: by how fast events come, how fast a worker handles them, and how many wait. Pure.

Two questions with different answers, so that a number that suffices stays:

- *More*, at once, when the function is behind: what waits would take over `BEHIND_S` at the rate at which events were
  handled, for `SURE_S` in a row. There become as many workers as the events that come need, and those that wait to be
  handled within `CATCH_UP_S`, at the rate that each worker was measured to reach.
- *Fewer* only after `idle_s` in which fewer would always have sufficed: which handle what comes while they work for
  `BUSY_MOST` of their time, even if the most active segments are all with one of them.

Rates are means over `RATE_S`. All instances of a function (several `nadi function run`, on one machine or many) see the
same readers in the group, and plan by the same rule without asking each other: of too many, the last by name go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from nadi.process.worker import Recent

RATE_S, SURE_S = 10.0, 2.0
BEHIND_S, CATCH_UP_S = 5.0, 10.0
BUSY_MOST = 0.75
_ALIKE = 1.1  # a busiest worker with so much more than the least possible is as good


@dataclass(frozen=True, slots=True)
class Ends:
    """Of a segment: up to where it is recorded as handled, and up to where it is written."""

    handled: int
    written: int


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What this instance's workers have done since it started, all together."""

    busy_s: float = 0.0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """What an instance does next: `start` so many workers, and `stop` these."""

    start: int = 0
    stop: tuple[str, ...] = ()


class WorkerPlan:
    """Of one instance, for all: from `least` to `most` workers."""

    def __init__(self, least: int, most: int, idle_s: float) -> None:
        self._least, self._most, self._idle_s = least, most, idle_s
        self._looks = Recent[tuple[Mapping[str, Ends], WorkDone]](RATE_S)  # since the number of workers changed
        self._count = 0
        self._behind_since: float | None = None
        self._needed: deque[tuple[float, int]] = deque()  # in the last `idle_s`, without what later ones reach

    def change(
        self,
        now: float,
        segments: Mapping[str, Ends],
        work: WorkDone,
        own: Collection[str],
        others: Collection[str],
        *,
        is_starting: bool = False,
    ) -> WorkerChange:
        """What to do at `now` seconds, with these segments, these workers here and those elsewhere. is_starting: some
        have yet to begin, and the number stays as it is.

        >>> plan = WorkerPlan(0, 3, idle_s=60.0)
        >>> waiting = {"0": Ends(0, 1000), "1": Ends(0, 1000)}
        >>> plan.change(0.0, waiting, Work(), [], [])
        Change(start=1, stop=())
        """
        everyone = sorted({*own, *others})
        if len(everyone) != self._count or is_starting:
            if len(everyone) > self._count:
                self._after_a_while(now, len(everyone))
            self._count, self._behind_since = len(everyone), None
            self._looks.items.clear()
        self._looks.add(now, (segments, work))
        wanted = min(max(self._wanted(now, is_starting=is_starting), self._least), self._most)
        if len(everyone) <= wanted:
            return WorkerChange(start=wanted - len(everyone))
        return WorkerChange(stop=tuple(name for name in everyone[wanted:] if name in own))

    def _wanted(self, now: float, *, is_starting: bool) -> int:
        (began, (before, work_before)), (_, (segments, work)) = self._looks.items[0], self._looks.items[-1]
        seconds, count = now - began, self._count
        waiting = {name: ends.written - ends.handled for name, ends in segments.items()}
        if count == 0:
            return int(any(waiting.values()))
        came = {name: max(ends.written - before.get(name, ends).written, 0) for name, ends in segments.items()}
        if not any(waiting.values()) and not any(came.values()):
            return self._after_a_while(now, 0)
        if is_starting or seconds < SURE_S:
            return count
        handled = sum(max(ends.handled - before.get(name, ends).handled, 0) for name, ends in segments.items())
        demand = [came[name] / seconds + waiting[name] / CATCH_UP_S for name in segments]
        if sum(waiting.values()) * seconds <= BEHIND_S * handled:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        elif now - self._behind_since >= SURE_S:
            self._after_a_while(now, count)
            return max(count, workers_behind(demand, handled / seconds / count))
        busy_s, size_bytes = work.busy_s - work_before.busy_s, work.size_bytes - work_before.size_bytes
        return self._after_a_while(now, workers_at_ease(demand, size_bytes / busy_s if busy_s else 0.0))

    def _after_a_while(self, now: float, needed: int) -> int:
        """Return the number that there is, or, if fewer have sufficed for `idle_s`, the most of those."""
        while self._needed and self._needed[0][0] <= now - self._idle_s:
            self._needed.popleft()
        while self._needed and self._needed[-1][1] <= needed:
            self._needed.pop()
        self._needed.append((now, needed))
        return min(self._needed[0][1], self._count)


def workers_behind(demand: Sequence[float], per_worker: float) -> int:
    """Return how many workers handle so many bytes a second of each segment, if each handles `per_worker`, and the
    segments are shared evenly; no more than are of use.

    >>> workers_behind([400.0, 400.0, 400.0], 500.0)
    3
    >>> workers_behind([2000.0, 10.0, 10.0], 500.0)  # the first segment is with one worker, whatever there are
    1
    """
    of_use = workers_at_ease(demand, per_worker)
    return min(of_use, max(1, -int(-sum(demand) // per_worker))) if per_worker else of_use


def workers_at_ease(demand: Sequence[float], per_worker: float) -> int:
    """Return the fewest workers of which none is busy for over `BUSY_MOST` of its time, however the segments are shared
    among them; if the busiest can't be spared that, as many as ease it.

    >>> workers_at_ease([400.0, 400.0, 400.0], 1200.0)
    2
    >>> workers_at_ease([100.0, 100.0, 100.0], 1200.0)
    1
    """
    sums = list(accumulate(sorted(demand, reverse=True)))
    if not sums:
        return 0
    enough = max(BUSY_MOST * per_worker, _ALIKE * sums[0])
    return next(count for count in range(1, len(sums) + 1) if sums[-(-len(sums) // count) - 1] <= enough)
