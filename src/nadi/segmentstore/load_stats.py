"""What passes into the segments of one container.

`count` gets what a durable frame appended: two additions for each run of appends to a segment. About once a second
this is folded into rates, for all segments at once, by whichever call comes next; there is no task and no timer. If
none comes for long, what was counted still belongs to the second after the last fold, since a later `count` would have
folded it: so a burst before a pause isn't spread over the pause.

Only segments of users' streams are measured. What goes into a transaction's segment, or a large event's, counts for
its parent as it passes (each piece of a large event, of 8 MiB, as an event); the merge adds nothing.

A segment is forgotten when it is deleted, or after the longest window without an append. At most LOAD_SEGMENTS are
measured: others' loads are absent until one has been idle for ten seconds, which then makes room.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nadi import limits
from nadi.limits import LOAD_KEY_POSITIONS, LOAD_KEYS_SEGMENTS, LOAD_KEYS_WINDOW_S
from nadi.model.load import WINDOWS_S, KeySample, SegmentLoad
from nadi.naming import TRANSACTION_DELIMITER, TRANSIENT_DELIMITER, segment_of

FOLD_S = 1.0
_LEAST_S = FOLD_S / 2  # counted before a fold
_LATE_S = FOLD_S + _LEAST_S  # the latest fold of what was counted: `_LEAST_S` after the youngest began
_IDLE_S = WINDOWS_S[1]
_UNMEASURED = 0  # the row of all that isn't measured
_TOGETHER_S = 2.0
_TOGETHER_POSITIONS = LOAD_KEY_POSITIONS // 2
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
_FEW = 16
_WINDOWS = np.array(WINDOWS_S)[:, np.newaxis]


class Rates:
    """Rows of means. All times are in seconds on one monotonic clock."""

    def __init__(self) -> None:
        self.count = 0
        self._means = np.zeros((2, len(WINDOWS_S), _FEW))
        self._times = np.zeros((3, _FEW))  # of each row: its start, its last fold, and the last that brought something

    @property
    def means(self) -> Numbers:
        """Per second: of events and bytes, for each window, of each row."""
        return self._means[:, :, : self.count]

    @property
    def ages_s(self) -> Numbers:
        """For how long each row had been counted at its last fold; 0 before the first."""
        began, folded, _ = self._times[:, : self.count]
        return np.asarray(folded - began)

    def idle_s(self, now_s: float) -> Numbers:
        return np.asarray(now_s - self._times[2, : self.count])

    def begin(self, now_s: float) -> int:
        """Add a row; return its number."""
        row = self.count
        if row == self._times.shape[1]:
            self._means = np.concatenate([self._means, np.zeros_like(self._means)], axis=2)
            self._times = np.concatenate([self._times, np.zeros_like(self._times)], axis=1)
        self._means[:, :, row] = 0.0
        self._times[:, row] = now_s
        self.count += 1
        return row

    def end(self, row: int) -> None:
        """From now on the row has always been idle."""
        self._times[2, row] = -np.inf

    def fold(self, counted: Numbers, now_s: float, least_s: float) -> Mask:
        """Fold in what was counted for each row since its last fold, as if it had come evenly. counted: events and
        bytes, of each row. Returns which rows were folded: those whose last fold was at least `least_s` ago, so that a
        young row's first rate isn't that of a moment, and a clock set back changes nothing."""
        began, folded, active = self._times[:, : self.count]
        passed = now_s - folded
        due: Mask = passed >= least_s
        if not due.any():
            return due
        weight = np.expm1(-np.where(due, passed, 0.0) / _WINDOWS) / np.expm1(
            -np.where(due, now_s - began, 1.0) / _WINDOWS
        )
        rate = counted / np.where(due, passed, 1.0)
        means = self.means
        means += weight * (rate[:, np.newaxis, :] - means)
        folded[due] = now_s
        active[due & (counted > 0).any(axis=0)] = now_s
        return due

    def keep(self, kept: Mask) -> None:
        """Drop all other rows; the kept ones, at least one, are numbered anew, in the same order."""
        self._means, self._times = self.means[:, :, kept], self._times[:, : self.count][:, kept]
        self.count = self._times.shape[1]


@dataclass(slots=True)
class _Reports:
    began_s: float
    positions: Numbers
    weights: Numbers


class KeySamples:
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

    def drop_old(self, now_s: float) -> None:
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


class LoadMeter:
    """clock: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rates = Rates()
        self._rates.begin(0.0)
        self._names = [""]
        self._rows: dict[str, int] = {}  # by segment, also of transactions and of what isn't measured
        self._events, self._bytes = [0], [0]  # counted since the last fold
        self._folded_s = self._due_s = clock()
        self._refused = 0  # segments since the last fold, for which there was no room
        self._samples = KeySamples()

    def count(self, appended: Iterable[tuple[str, int, int]], now_s: float) -> None:
        """Appends have become durable: of each run the segment, events and bytes."""
        if now_s >= self._due_s:
            self._fold(now_s)
        rows, events, sizes = self._rows, self._events, self._bytes
        for segment, count, size in appended:
            row = rows.get(segment)
            if row is None:
                row = self._admit(segment, now_s)
            events[row] += count
            sizes[row] += size

    def report(self, segment: str, positions: Numbers, events: int) -> None:
        """A writer says where its keys are: `positions` of the keys of some of its last `events` events there. It
        counts if the segment, or a transaction's parent, is being measured."""
        parent = measured_as(segment)
        if parent is not None and self._rows.get(parent):
            self._samples.add(parent, positions, events, self._clock())

    def forget(self, segment: str) -> None:
        row = self._rows.pop(segment, _UNMEASURED)
        if row != _UNMEASURED and self._names[row] == segment:
            self._names[row] = ""  # the row goes with the next fold
            self._events[row] = self._bytes[row] = 0
            self._rates.end(row)
            self._samples.drop(segment)

    def loads(self, after: str = "", most: int | None = None) -> list[SegmentLoad]:
        """The loads of the first `most` segments whose names come after that one, in order; segments that began less
        than half a second ago are absent."""
        now_s = self._clock()
        if now_s - self._folded_s >= _LEAST_S:
            self._fold(now_s)
        ages_s = self._rates.ages_s.tolist()
        rows = ((name, row) for row, name in enumerate(self._names) if name > after and ages_s[row] > 0)
        found = sorted(rows) if most is None else heapq.nsmallest(most, rows)
        means = self._rates.means[:, :, [row for _, row in found]].transpose(2, 0, 1).tolist()
        return [
            SegmentLoad(name, ages_s[row], tuple(events), tuple(sizes), self._samples.of(name, now_s))
            for (name, row), (events, sizes) in zip(found, means, strict=True)
        ]

    def _admit(self, segment: str, now_s: float) -> int:
        if len(self._rows) >= 4 * limits.LOAD_SEGMENTS:
            self._forget_others()
        parent = measured_as(segment)
        row = _UNMEASURED if parent is None else self._rows.get(parent)
        if row is None and len(self._names) > limits.LOAD_SEGMENTS:
            self._refused += 1
            row = _UNMEASURED
        elif row is None:
            assert parent is not None, "else it isn't measured"
            row = self._rows[parent] = self._rates.begin(now_s)
            self._names.append(parent)
            self._events.append(0)
            self._bytes.append(0)
        self._rows[segment] = row
        return row

    def _fold(self, now_s: float) -> None:
        late_s = self._folded_s + _LATE_S
        if now_s > late_s:
            self._fold_at(late_s)
        self._fold_at(now_s)
        self._folded_s, self._due_s = now_s, now_s + FOLD_S
        idle_s = self._rates.idle_s(now_s)
        kept: Mask = idle_s <= WINDOWS_S[-1]
        kept[_UNMEASURED] = True
        if self._refused:
            idle_s[_UNMEASURED] = 0.0
            longest = np.argsort(-idle_s, kind="stable")[: self._refused]
            kept[longest[idle_s[longest] >= _IDLE_S]] = False
        if not kept.all():
            self._keep(kept)
        if self._refused or not kept.all():
            self._refused = 0
            self._forget_others()
        self._samples.drop_old(now_s)

    def _fold_at(self, now_s: float) -> None:
        self._events[_UNMEASURED] = self._bytes[_UNMEASURED] = 0
        counted = np.array([self._events, self._bytes], np.float64)
        due = self._rates.fold(counted, now_s, _LEAST_S)
        self._events, self._bytes = np.where(due, 0, counted).astype(np.int64).tolist()

    def _keep(self, kept: Mask) -> None:
        rows = np.flatnonzero(kept).tolist()
        self._rates.keep(kept)
        self._names = [self._names[row] for row in rows]
        self._events = [self._events[row] for row in rows]
        self._bytes = [self._bytes[row] for row in rows]

    def _forget_others(self) -> None:
        """Look up anew what has no row of its own."""
        self._rows = {name: row for row, name in enumerate(self._names) if name}


def measured_as(segment: str) -> str | None:
    """The stream segment whose load an append to this one is; None for tables, and for what isn't a user's.

    >>> measured_as("home/meters/0.#epoch.0#transaction.00000000000000010000000000000002")
    'home/meters/0.#epoch.0'
    >>> measured_as("home/_MARKmeters/0.#epoch.0")
    """
    found = segment_of(segment)
    if found is None or "_" in found.scope or "_" in found.name:  # users' names of scopes and streams have none
        return None
    return segment.partition(TRANSACTION_DELIMITER)[0].partition(TRANSIENT_DELIMITER)[0]
