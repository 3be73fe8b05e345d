"""Where in the key space the load of segments falls: what writers report, merged over the last ten seconds.

A report says how many events passed, and where the keys of some of them are. Memory is limited whatever comes: reports
of two seconds are kept together, and become fewer positions of the same distribution when they are many.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from nadi.limits import LOAD_KEY_POSITIONS, LOAD_KEYS_SEGMENTS, LOAD_KEYS_WINDOW_S
from nadi.model.load import KeySample
from nadi.segmentstore.load.rates import Numbers

_TOGETHER_S = 2.0
_TOGETHER_POSITIONS = LOAD_KEY_POSITIONS // 2


@dataclass(slots=True)
class _Reports:
    """Those of two seconds."""

    began_s: float
    positions: Numbers
    weights: Numbers


class KeySamples:
    """By segment."""

    def __init__(self) -> None:
        self._reports: dict[str, deque[_Reports]] = {}

    def add(self, segment: str, positions: Numbers, events: int, now_s: float) -> None:
        """A writer's report. With LOAD_KEYS_SEGMENTS segments sampled, those of any other are ignored."""
        reports = self._reports.get(segment)
        if reports is None:
            if len(self._reports) >= LOAD_KEYS_SEGMENTS:
                return
            reports = self._reports[segment] = deque()
        weights = np.full(len(positions), events / len(positions))
        if not reports or now_s - reports[-1].began_s >= _TOGETHER_S:
            _forget(reports, now_s)
            reports.append(_Reports(now_s, positions, weights))
            return
        last = reports[-1]
        last.positions = np.concatenate([last.positions, positions])
        last.weights = np.concatenate([last.weights, weights])
        if len(last.positions) > _TOGETHER_POSITIONS:
            last.positions, last.weights = fewer(last.positions, last.weights, _TOGETHER_POSITIONS // 2)

    def of(self, segment: str, now_s: float) -> KeySample | None:
        """What is known of a segment's keys; None without a report in the last ten seconds."""
        reports = self._reports.get(segment)
        if reports is None:
            return None
        _forget(reports, now_s)
        if not reports:
            return None
        positions = np.concatenate([each.positions for each in reports])
        weights = np.concatenate([each.weights for each in reports])
        if len(positions) > LOAD_KEY_POSITIONS:
            positions, weights = fewer(positions, weights, LOAD_KEY_POSITIONS)
        return KeySample(tuple(positions.tolist()), tuple(weights.tolist()))

    def drop(self, segment: str) -> None:
        self._reports.pop(segment, None)

    def forget(self, now_s: float) -> None:
        """Drop what is too old."""
        for segment, reports in list(self._reports.items()):
            _forget(reports, now_s)
            if not reports:
                del self._reports[segment]


def _forget(reports: deque[_Reports], now_s: float) -> None:
    while reports and now_s - reports[0].began_s > LOAD_KEYS_WINDOW_S:
        reports.popleft()


def fewer(positions: Numbers, weights: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """That many positions of equal weight, at equal steps through the distribution of the given ones.

    >>> fewer(np.array([0.5, 0.25, 0.75]), np.array([2.0, 1.0, 1.0]), 4)
    (array([0.25, 0.5 , 0.5 , 0.75]), array([1., 1., 1., 1.]))
    """
    order = np.argsort(positions, kind="stable")
    reached = np.cumsum(weights[order])
    step = reached[-1] / count
    taken = order[np.searchsorted(reached, (np.arange(count) + 0.5) * step)]
    return positions[taken], np.full(count, step)
