"""Statistics of a trial: clients' waiting times for takeovers and handovers, and each client's longest stall."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from tests.cluster.foreign_clients.probes import Gaps
from tests.cluster.processes.faults import Moved

_POLL_S = 0.05
_SURELY_S = 0.5  # no server can have taken over so soon after a kill: detecting a death takes three seconds


def takeovers(moved: Iterable[Moved], gaps: Gaps) -> list[float]:
    """Return the seconds from each kill to the first acknowledgement of each of the killed server's containers.

    >>> takeovers([Moved(True, (1, 2), 10.0, 20.0)], {1: [(3.0, 3.1), (9.9, 13.5)], 2: [(9.9, 14.0), (15.0, 15.3)]})
    [3.5, 4.0]
    """
    waits = []
    for move in moved:
        if move.is_takeover:
            at = move.began + _SURELY_S
            ends = (end for number in move.containers for start, end in gaps.get(number, []) if start < at < end)
            waits += [end - move.began for end in ends]
    return waits


def hand_overs(moved: Iterable[Moved], gaps: Gaps) -> list[float]:
    """Return the longest time without an acknowledgement of each container that was handed over, during the handover.

    >>> hand_overs([Moved(False, (1,), 10.0, 12.0)], {1: [(9.0, 9.5), (10.1, 10.2), (10.8, 11.2)]})
    [0.4]
    """
    stalls = []
    for move in moved:
        if not move.is_takeover:
            for number in move.containers:
                inside = (end - start for start, end in gaps.get(number, []) if end > move.began and start < move.ended)
                stalls.append(round(max(inside, default=0.0), 3))
    return stalls


def longest(gaps: Gaps) -> float:
    """Return the longest time without an acknowledgement of any container, in seconds.

    >>> longest({1: [(3.0, 3.5)], 2: [(9.0, 9.25), (15.0, 15.25)]}), longest({})
    (0.5, 0.0)
    """
    return max((end - start for container_gaps in gaps.values() for start, end in container_gaps), default=0.0)


def spread(values: Sequence[float]) -> str:
    """Return percentiles in words.

    >>> spread([0.1, 0.3, 0.2])
    'p50 0.20, p99 0.30, most 0.30 s of 3'
    """
    if not values:
        return "none"
    ordered = sorted(values)
    late = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return f"p50 {statistics.median(ordered):.2f}, p99 {late:.2f}, most {ordered[-1]:.2f} s of {len(ordered)}"


class Stalls:
    """Watches the clients' progress, and records the longest time without progress of each, and the machine's load.

    progress: returns, by name, numbers that only grow.
    """

    def __init__(self, progress: Callable[[], Mapping[str, float]]) -> None:
        self.longest: dict[str, float] = {}
        self.loads: list[float] = []
        self._progress = progress
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        before: dict[str, tuple[float, float]] = {}
        while not self._over.wait(_POLL_S):
            now = time.monotonic()
            self.loads.append(os.getloadavg()[0])
            for name, value in self._progress().items():
                then, since = before.get(name, (value, now))
                if value != then:
                    since = now
                before[name] = value, since
                self.longest[name] = max(self.longest.get(name, 0.0), now - since)
