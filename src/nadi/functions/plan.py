"""Plans a function's number of workers from the rate of events, the workers' speed and the backlog. Pure.

Growing and shrinking have different rules, so that a sufficient number is stable:

- *More*, at once, if the backlog has been over `BEHIND_S` for `SURE_S`, at the rate at which events were handled. The
number becomes that needed for new events and to handle the backlog within `CATCH_UP_S`, at each worker's measured
speed. - *Fewer* only after `idle_s` in which fewer would always have sufficed: they would be busy at most `BUSY_MOST`
of their time, even if one worker had all of the most active segments.

Rates are means over `RATE_S`. All instances of a function (several `nadi function run`, on one machine or many) see the
same readers in the group, and plan by the same rule without communication: of too many, the last by name stop.
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
_ALIKE = 1.1  # tolerated load of the busiest worker, relative to the minimum


@dataclass(frozen=True, slots=True)
class Ends:
    """A segment's positions: recorded as handled, and written."""

    handled: int
    written: int


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The work of this instance's workers since it started."""

    busy_s: float = 0.0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """The next action of an instance: `start` a number of workers, and `stop` the named ones."""

    start: int = 0
    stop: tuple[str, ...] = ()


class WorkerPlan:
    """The plan of one instance: from `least` to `most` workers over all instances."""

    def __init__(self, least: int, most: int, idle_s: float) -> None:
        self._least, self._most, self._idle_s = least, most, idle_s
        self._polls = Recent[tuple[Mapping[str, Ends], WorkDone]](RATE_S)  # polls since the number of workers changed
        self._count = 0
        self._behind_since: float | None = None
        self._needed: deque[tuple[float, int]] = deque()  # of the last `idle_s`; entries below a later one are dropped

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
        """Return the action at `now` seconds, given the segments, this instance's and other workers.
        is_starting: some workers have yet to start, so the number stays.

        >>> plan = WorkerPlan(0, 3, idle_s=60.0)
        >>> waiting = {"0": Ends(0, 1000), "1": Ends(0, 1000)}
        >>> plan.change(0.0, waiting, WorkDone(), [], [])
        WorkerChange(start=1, stop=())
        """
        everyone = sorted({*own, *others})
        if len(everyone) != self._count or is_starting:
            if len(everyone) > self._count:
                self._delayed(now, len(everyone))
            self._count, self._behind_since = len(everyone), None
            self._polls.items.clear()
        self._polls.add(now, (segments, work))
        target = min(max(self._target(now, is_starting=is_starting), self._least), self._most)
        if len(everyone) <= target:
            return WorkerChange(start=target - len(everyone))
        return WorkerChange(stop=tuple(name for name in everyone[target:] if name in own))

    def _target(self, now: float, *, is_starting: bool) -> int:
        (since, (before, work_before)), (_, (segments, work)) = self._polls.items[0], self._polls.items[-1]
        seconds, count = now - since, self._count
        waiting = {name: ends.written - ends.handled for name, ends in segments.items()}
        if count == 0:
            return int(any(waiting.values()))
        arrived = {name: max(ends.written - before.get(name, ends).written, 0) for name, ends in segments.items()}
        if not any(waiting.values()) and not any(arrived.values()):
            return self._delayed(now, 0)
        if is_starting or seconds < SURE_S:
            return count
        handled = sum(max(ends.handled - before.get(name, ends).handled, 0) for name, ends in segments.items())
        demand = [arrived[name] / seconds + waiting[name] / CATCH_UP_S for name in segments]
        if sum(waiting.values()) * seconds <= BEHIND_S * handled:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        elif now - self._behind_since >= SURE_S:
            self._delayed(now, count)
            return max(count, workers_behind(demand, handled / seconds / count))
        busy_s, size_bytes = work.busy_s - work_before.busy_s, work.size_bytes - work_before.size_bytes
        return self._delayed(now, workers_at_ease(demand, size_bytes / busy_s if busy_s else 0.0))

    def _delayed(self, now: float, needed: int) -> int:
        """Return the current number, or, if fewer have sufficed for `idle_s`, the largest of these."""
        while self._needed and self._needed[0][0] <= now - self._idle_s:
            self._needed.popleft()
        while self._needed and self._needed[-1][1] <= needed:
            self._needed.pop()
        self._needed.append((now, needed))
        return min(self._needed[0][1], self._count)


def workers_behind(demand: Sequence[float], per_worker: float) -> int:
    """Return how many workers handle this demand (bytes per second by segment), if each handles `per_worker` and
    segments are shared evenly; at most as many as can be used.

    >>> workers_behind([400.0, 400.0, 400.0], 500.0)
    3
    >>> workers_behind([2000.0, 10.0, 10.0], 500.0)  # one worker has the first segment in any case
    1
    """
    of_use = workers_at_ease(demand, per_worker)
    return min(of_use, max(1, -int(-sum(demand) // per_worker))) if per_worker else of_use


def workers_at_ease(demand: Sequence[float], per_worker: float) -> int:
    """Return the fewest workers that are all busy at most `BUSY_MOST` of the time, however the segments are
    shared; if that is impossible, the number that relieves the busiest.

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
