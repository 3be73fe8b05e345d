"""Counts a segment store's work, for its metrics.

One object serves all containers of a store, so that no counter decreases when a container leaves. Nothing is counted
per event: only per frame, per received block, per read or per background job. Everything runs in the loop's thread.

`LoadMeter` measures the load of one container's segments. `count` takes what a durable frame appended: two additions
per run of appends to a segment. About once a second the next call folds this into rates, for all segments at once,
without a task or a timer. After a long gap, the counts still belong to the second after the last fold, so that a
burst before a pause isn't spread over the pause.

Only segments of users' streams are measured. Bytes for a transaction's segment, or for a large event, count for the
parent as they arrive (each 8 MiB piece of a large event as one event); the merge adds nothing. A segment is forgotten
when it is deleted, or after the longest window without an append. At most LOAD_SEGMENTS segments are measured; further
ones have no load until a measured one has been idle for ten seconds.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from nadi import limits
from nadi.limits import LOAD_KEY_POSITIONS, LOAD_KEYS_SEGMENTS, LOAD_KEYS_WINDOW_S
from nadi.model.load import WINDOWS_S, KeySample, SegmentLoad
from nadi.naming import TRANSACTION_DELIMITER, TRANSIENT_DELIMITER, segment_of
from nadi.observe.metrics import Histogram
from nadi.observe.traces import LINKS_MOST, Tracing, Value

if TYPE_CHECKING:
    import numpy as np
    from opentelemetry.trace import SpanContext

QUICK_S = (*(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025), *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0))
SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Arrival(NamedTuple):
    """A block of appends that arrived together: its time, the number of appends stored, and the request."""

    at: float
    appends: int
    block: Any


class Stages:
    """The times, by the monotonic clock, at which a frame reached each stage: taken, built, durable, answered. Time
    spent syncing separate files before the frame is built counts as its sync."""

    __slots__ = ("answered", "blobs_s", "built", "clock", "durable", "taken")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.taken = self.built = self.durable = self.answered = clock()
        self.blobs_s = 0.0

    async def time_blobs(self, writing: Awaitable[object]) -> None:
        began = self.clock()
        await writing
        self.blobs_s = self.clock() - began

    @property
    def building_s(self) -> float:
        return self.built - self.taken - self.blobs_s

    @property
    def sync_s(self) -> float:
        return self.durable - self.built + self.blobs_s


class StoreCounters:
    """The counters of one store. If set, `on_frame` is called with each answered frame and `on_read` with each read;
    see `tracing`."""

    def __init__(self) -> None:
        self.queue, self.frame, self.sync, self.total = (Histogram(QUICK_S) for _ in range(4))
        self.appends = self.refused_appends = self.events = self.append_bytes = 0
        self.frames = self.frame_bytes = 0
        self.throttles = 0
        self.log_waits, self.log_wait_s = 0, 0.0
        self.recoveries = 0
        self.reads = self.read_bytes = 0  # from memory
        self.fetched_reads = self.fetched_bytes = 0
        self.tiered_chunks = self.tiered_bytes = 0
        self.compacted_chunks = self.compacted_bytes = 0
        self.deleted_chunks = self.tier2_errors = 0
        self.checkpoints, self.snapshots = Histogram(SLOW_S), Histogram(SLOW_S)
        self.checkpoint_errors = self.snapshot_errors = 0
        self.on_frame: Callable[[int, int, Stages, Sequence[Arrival]], None] | None = None
        self.on_read: Callable[[int, str, int, int, float, float | None], None] | None = None

    def record_frame(self, container: int, sequence: int, stages: Stages, arrivals: Sequence[Arrival]) -> None:
        taken_at, answered, appends = stages.taken, stages.clock(), 0
        stages.answered = answered
        for at, count, _ in arrivals:
            if count:
                self.queue.add(taken_at - at, count)
                self.total.add(answered - at, count)
                appends += count
        if appends:
            self.frame.add(stages.building_s, appends)
            self.sync.add(stages.sync_s, appends)
            self.appends += appends
        if self.on_frame is not None:
            self.on_frame(container, sequence, stages, arrivals)

    def count_frame(self, events: int, append_bytes: int, parts: Sequence[bytes]) -> None:
        self.frames += 1
        self.frame_bytes += sum(map(len, parts))
        self.events += events
        self.append_bytes += append_bytes

    async def waiting_for_log(self, settling: Awaitable[None], clock: Callable[[], float]) -> None:
        began = clock()
        await settling
        self.log_waits += 1
        self.log_wait_s += clock() - began

    def count_move(self, size_bytes: int, *, was_in_log: bool) -> None:
        if was_in_log:
            self.tiered_chunks += 1
            self.tiered_bytes += size_bytes
        else:
            self.compacted_chunks += 1
            self.compacted_bytes += size_bytes


BLOCKS_MOST = 64  # spans per frame; a flood of small blocks isn't worth more


class StoreTracing:
    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def frame(self, container: int, sequence: int, stages: Stages, arrivals: Sequence[Arrival]) -> None:
        """Record a frame: a span for each of its blocks, with the frame's and the log's spans under the first."""
        stored = [arrival for arrival in arrivals if arrival.appends][:BLOCKS_MOST]
        if not stored:
            return
        blocks = [self._block(container, arrival, stages.answered) for arrival in stored]
        about: dict[str, Value] = {"nadi.container": container, "nadi.frame": sequence}
        frame = self._tracing.span(
            "nadi.frame",
            blocks[0],
            stages.taken,
            stages.durable,
            {**about, "nadi.blocks": len(arrivals)},
            links=blocks[1:LINKS_MOST],
        )
        self._tracing.span("nadi.log", frame, stages.durable - stages.sync_s, stages.durable, about)

    def _block(self, container: int, arrival: Arrival, ended_s: float) -> SpanContext:
        appends = arrival.block.appends
        first, roots = (
            appends[0],
            [self._tracing.of_block(append.writer, append.last) for append in appends[:LINKS_MOST]],
        )
        about: dict[str, Value] = {
            "nadi.segment": first.session.segment,
            "nadi.writer_id": first.writer.hex(),
            "nadi.event_number": first.last,
            "nadi.container": container,
            "nadi.appends": len(appends),
            "nadi.events": sum(append.events for append in appends),
            "nadi.bytes": sum(append.size_bytes for append in appends),
        }
        return self._tracing.span("nadi.append", roots[0], arrival.at, ended_s, about, kind="server", links=roots[1:])

    def read(
        self, request_id: int, segment: str, offset: int, size_bytes: int, began_s: float, fetched_s: float | None
    ) -> None:
        """Record a read. fetched_s: when its bytes were fetched, if they weren't in memory."""
        ended_s, root = self._tracing.time_s(), self._tracing.of_read(request_id, segment, offset)
        about: dict[str, Value] = {"nadi.segment": segment, "nadi.offset": offset, "nadi.bytes": size_bytes}
        source = "memory" if fetched_s is None else "storage"
        span = self._tracing.span("nadi.read", root, began_s, ended_s, {**about, "nadi.source": source}, kind="server")
        if fetched_s is not None:
            self._tracing.span("nadi.fetch", span, began_s, fetched_s, about)


FOLD_S = 1.0
_LEAST_S = FOLD_S / 2  # the shortest time that is folded
_LATE_S = FOLD_S + _LEAST_S  # the latest time that counts are folded at: `_LEAST_S` after the newest row began
_IDLE_S = WINDOWS_S[1]
_UNMEASURED = 0  # the row shared by everything that isn't measured
_COMBINED_S = 2.0
_COMBINED_POSITIONS = LOAD_KEY_POSITIONS // 2
_OMITTED = KeySample((), ())
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


@dataclass(slots=True)
class _Reports:
    """Reports that arrived within `_COMBINED_S`. parts: of each report its positions, and the events per position."""

    began_s: float
    parts: list[tuple[array[float], float]] = field(default_factory=list)
    count: int = 0  # of positions

    def add(self, positions: array[float], weight: float) -> None:
        self.parts.append((positions, weight))
        self.count += len(positions)
        if self.count > _COMBINED_POSITIONS:
            fewest, weights = fewer(*combined(self.parts), _COMBINED_POSITIONS // 2)
            self.parts, self.count = [(array("d", fewest), float(weights[0]))], len(fewest)


def combined(parts: Iterable[tuple[array[float], float]]) -> tuple[Numbers, Numbers]:
    """Return the positions of all parts, and the weight of each position."""
    import numpy as np

    positions, weights = zip(*[(np.array(part), np.full(len(part), weight)) for part, weight in parts], strict=True)
    return np.concatenate(positions), np.concatenate(weights)


class KeySamples:
    def __init__(self) -> None:
        self._reports: dict[str, deque[_Reports]] = {}

    def add(self, segment: str, positions: Sequence[float], events: int, now_s: float) -> None:
        """Add a writer's report. With LOAD_KEYS_SEGMENTS segments sampled, reports of other segments are ignored."""
        reports = self._reports.get(segment)
        if reports is None:
            if len(self._reports) >= LOAD_KEYS_SEGMENTS:
                return
            reports = self._reports[segment] = deque()
        if not reports or now_s - reports[-1].began_s >= _COMBINED_S:
            _forget(reports, now_s)
            reports.append(_Reports(now_s))
        reports[-1].add(array("d", positions), events / len(positions))

    def has(self, segment: str, now_s: float) -> bool:
        """Return whether there was a report in the last ten seconds."""
        reports = self._reports.get(segment)
        return bool(reports and now_s - reports[-1].began_s <= LOAD_KEYS_WINDOW_S)

    def of(self, segment: str, now_s: float) -> KeySample | None:
        """Return the sample of a segment's keys; None without a report in the last ten seconds."""
        reports = self._reports.get(segment)
        if reports is None:
            return None
        _forget(reports, now_s)
        if not reports:
            return None
        positions, weights = combined(chain.from_iterable(each.parts for each in reports))
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
    """Return `count` positions of equal weight, at equal steps through the distribution of the given positions.

    >>> import numpy as np
    >>> fewer(np.array([0.5, 0.25, 0.75]), np.array([2.0, 1.0, 1.0]), 4)
    (array([0.25, 0.5 , 0.5 , 0.75]), array([1., 1., 1., 1.]))
    """
    import numpy as np

    order = np.argsort(positions, kind="stable")
    reached = np.cumsum(weights[order])
    step = reached[-1] / count
    chosen = order[np.searchsorted(reached, (np.arange(count) + 0.5) * step)]
    return positions[chosen], np.full(count, step)


class LoadMeter:
    """Measures the load of a container's segments. clock: monotonic, in seconds. Row `_UNMEASURED` of each list and
    array collects everything that isn't measured."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._names = [""]
        self._rows: dict[str, int] = {}  # by segment, including transactions and unmeasured segments
        self._events, self._bytes = [0], [0]  # counted since the last fold
        self._new_starts_s: list[float] = []  # start times of the newest rows, which the arrays don't have yet
        self._folded_s = self._due_s = clock()
        self._refused = 0  # segments turned away since the last fold
        self._samples = KeySamples()

    @cached_property
    def _means(self) -> Numbers:
        """Events and bytes per second, by window and row. A server imports numpy after its first second."""
        import numpy as np

        return np.zeros((2, len(WINDOWS_S), 1))

    @cached_property
    def _times(self) -> Numbers:
        """Per row: its start, its last fold, and its last fold with new counts."""
        import numpy as np

        return np.zeros((3, 1))

    def count(self, appended: Iterable[tuple[str, int, int]], now_s: float) -> None:
        """Count durable appends: (segment, events, bytes) for each run."""
        if now_s >= self._due_s:
            self._fold(now_s)
        rows, events, sizes = self._rows, self._events, self._bytes
        for segment, count, size in appended:
            row = rows.get(segment)
            if row is None:
                row = self._admit(segment, now_s)
            events[row] += count
            sizes[row] += size

    def report(self, segment: str, positions: Sequence[float], events: int) -> None:
        """Add a writer's report: `positions` of the keys of some of its last `events` events. It counts if the segment,
        or a transaction's parent, is measured."""
        parent = measured_as(segment)
        if parent is not None and self._rows.get(parent):
            self._samples.add(parent, positions, events, self._clock())

    def forget(self, segment: str) -> None:
        row = self._rows.pop(segment, _UNMEASURED)
        if row != _UNMEASURED and self._names[row] == segment:
            self._extend()
            self._names[row] = ""  # the next fold removes the row
            self._events[row] = self._bytes[row] = 0
            self._times[2, row] = -math.inf
            self._samples.drop(segment)

    @property
    def is_full(self) -> bool:
        """Whether further segments aren't measured."""
        return len(self._names) > limits.LOAD_SEGMENTS

    def loads(
        self,
        after: str = "",
        most: int | None = None,
        needs_keys: Callable[[SegmentLoad], bool] = lambda load: True,
        omits: Callable[[str], bool] = lambda segment: False,
    ) -> list[SegmentLoad]:
        """Return the loads of the first `most` segments whose names follow `after`, in order, except segments that
        began less than half a second ago, and those that `omits` accepts. needs_keys: whether a load, here still
        without keys, needs their sample."""
        now_s = self._clock()
        if now_s - self._folded_s >= _LEAST_S:
            self._fold(now_s)
        ages_s = (self._times[1] - self._times[0]).tolist()  # at the last fold
        rows = ((self._names[row], row) for row, age_s in enumerate(ages_s) if age_s > 0 and self._names[row] > after)
        rows = (named for named in rows if not omits(named[0]))
        selected = sorted(rows) if most is None else heapq.nsmallest(most, rows)
        means = self._means[:, :, [row for _, row in selected]].transpose(2, 0, 1).tolist()
        loads = []
        for (name, row), (events, sizes) in zip(selected, means, strict=True):
            load = SegmentLoad(name, ages_s[row], tuple(events), tuple(sizes))
            if self._samples.has(name, now_s):
                load = replace(load, keys=self._samples.of(name, now_s) if needs_keys(load) else _OMITTED)
            loads.append(load)
        return loads

    def _admit(self, segment: str, now_s: float) -> int:
        if len(self._rows) >= 4 * limits.LOAD_SEGMENTS:
            self._forget_others()
        parent = measured_as(segment)
        row = _UNMEASURED if parent is None else self._rows.get(parent)
        if row is None and self.is_full:
            self._refused += 1
            row = _UNMEASURED
        elif row is None:
            assert parent is not None, "else it isn't measured"
            row = self._rows[parent] = len(self._names)
            self._names.append(parent)
            self._events.append(0)
            self._bytes.append(0)
            self._new_starts_s.append(now_s)
        self._rows[segment] = row
        return row

    def _extend(self) -> None:
        if self._new_starts_s:
            import numpy as np

            zeros = np.zeros((*self._means.shape[:2], len(self._new_starts_s)))
            self._means = np.concatenate([self._means, zeros], axis=2)
            self._times = np.concatenate([self._times, [self._new_starts_s] * 3], axis=1)
            self._new_starts_s = []

    def _fold(self, now_s: float) -> None:
        late_s, self._folded_s, self._due_s = self._folded_s + _LATE_S, now_s, now_s + FOLD_S
        if len(self._names) == 1:  # nothing is measured yet
            return
        import numpy as np

        if now_s > late_s:
            self._fold_at(late_s)
        self._fold_at(now_s)
        idle_s = now_s - self._times[2]
        kept: Mask = idle_s <= WINDOWS_S[-1]
        kept[_UNMEASURED] = True
        if self._refused:
            idle_s[_UNMEASURED] = 0.0
            longest = np.argsort(-idle_s, kind="stable")[: self._refused]
            kept[longest[idle_s[longest] >= _IDLE_S]] = False
        if not kept.all():
            self._means, self._times = self._means[:, :, kept], self._times[:, kept]
            rows = np.flatnonzero(kept).tolist()
            self._names = [self._names[row] for row in rows]
            self._events = [self._events[row] for row in rows]
            self._bytes = [self._bytes[row] for row in rows]
        if self._refused or not kept.all():
            self._refused = 0
            self._forget_others()
        self._samples.drop_old(now_s)

    def _fold_at(self, now_s: float) -> None:
        """Fold each row's counts since its last fold, as if they had arrived evenly. Skip rows folded less than
        `_LEAST_S` ago, so that a new row's first rate covers more than a moment and a clock set back changes
        nothing."""
        import numpy as np

        self._extend()
        self._events[_UNMEASURED] = self._bytes[_UNMEASURED] = 0
        began, folded, active = self._times
        passed = now_s - folded
        due = passed >= _LEAST_S
        if due.any():
            counted = np.array([self._events, self._bytes], np.float64)
            windows = np.array(WINDOWS_S)[:, np.newaxis]
            ages_s = np.where(due, now_s - began, 1.0)
            weight = np.expm1(-np.where(due, passed, 0.0) / windows) / np.expm1(-ages_s / windows)
            self._means += weight * ((counted / np.where(due, passed, 1.0))[:, np.newaxis, :] - self._means)
            folded[due] = now_s
            active[due & (counted > 0).any(axis=0)] = now_s
            self._events, self._bytes = np.where(due, 0, counted).astype(np.int64).tolist()

    def _forget_others(self) -> None:
        self._rows = {name: row for row, name in enumerate(self._names) if name}


def measured_as(segment: str) -> str | None:
    """Return the stream segment to which an append to `segment` counts; None for tables and internal segments.

    >>> measured_as("home/meters/0.#epoch.0#transaction.00000000000000010000000000000002")
    'home/meters/0.#epoch.0'
    >>> measured_as("home/_MARKmeters/0.#epoch.0")
    """
    parsed = segment_of(segment)
    if parsed is None or "_" in parsed.scope or "_" in parsed.name:  # users' scopes and streams have no underscore
        return None
    return segment.partition(TRANSACTION_DELIMITER)[0].partition(TRANSIENT_DELIMITER)[0]
