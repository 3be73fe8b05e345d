"""All streams of one query, with a QueryProgress each: their discovery, the end of each batch, the ranges of its tasks.

A new stream's start is added to the offset, and its events are read from the next batch on: so a batch still follows
from its two offsets alone. A deleted stream is an error, or is dropped and named in the offset.

A query's first batch may be repeated: its end is in the checkpoint, its start isn't. So Spark requests the start of a
new query again. By then the tail and bookmarks may have moved, and the group may have belonged to another query: that
start may be after the batch's end.

`Lag` is the distance of a query from the tails of its streams, in bytes, events and seconds. Bytes are exact. Events
are estimated by the mean event size of the last 20 minutes, as measured by the server. The waiting time of the oldest
unread event comes from the segments' time indexes, to about a twentieth, by this machine's clock. A query that keeps up
sends no requests; another sends them once a second while it stands still.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import segment_ranges
from nadi.client.scan.pieces import ScanRange, pieces_of
from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts.cuts import SegmentSlice
from nadi.client.stream_cuts.timestamps import TAIL
from nadi.errors import (
    ConflictError,
    DamagedDataError,
    InvalidStreamCutError,
    NadiError,
    NotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
    TruncatedError,
)
from nadi.limits import (
    LAG_QUESTIONS,
    SPARK_LAG_EVERY_S,
    SPARK_STREAM_POLL_S,
    SPARK_STREAMS_AT_ONCE,
    TIME_INDEX_MOST_MS,
    TIME_INDEX_MS,
)
from nadi.model.cutorder import compare
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.spark.consumer_lag import combined
from nadi.spark.cutover import CutoverPlan
from nadi.spark.options.parsed import NO_LIMITS, Admission, ReadOptions
from nadi.spark.reading import plan
from nadi.spark.reading.admission import UNLIMITED, Capacity, Minimum, dealt, ends_in_time, shares
from nadi.spark.reading.group import BatchNotes, QueryGroup
from nadi.spark.reading.offsets import Offset, Offsets
from nadi.spark.reading.progress import END, QueryProgress, StreamView, slices_of
from nadi.wire import commands as wire
from nadi.wire.time_index import ARRIVAL

_NO_LAG = {"bytes": 0, "events": 0, "seconds": 0.0}
_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_GONE = (
    "it was deleted while a query read it, or the query's options no longer select it, and its unread events are "
    'lost. To continue with its other streams, add .option("failOnDataLoss", "false") to the read'
)


class Lag:
    def __init__(self, manager: StreamManager) -> None:
        self._manager = manager
        self._requested_at = 0.0
        self._known: tuple[Offsets, dict[str, StreamCut], dict[str, dict[str, Any]]] | None = None

    async def report(self, at: Offsets, ends: Mapping[str, StreamCut | None], *, is_one: bool) -> dict[str, Any] | None:
        """Return the tails of the query's streams as an offset, with the lag from `at` to them; None if unavailable.
        ends: the query's end in each stream whose tail it hasn't reached, None for the tail."""
        tails = {name: offset.cut for name, offset in at.streams.items()}
        lags = dict.fromkeys(tails, _NO_LAG)
        if ends:
            is_old = self._known is None or self._known[0] != at
            if is_old or time.monotonic() - self._requested_at >= SPARK_LAG_EVERY_S:
                try:
                    measured = {name: await self._lag_of(at.streams[name].cut, end) for name, end in ends.items()}
                except NadiError as error:  # the next batch reports it
                    _logger.warning("can't determine the lag of a query: %s", error)
                    return None
                tails |= {name: tail for name, (tail, _) in measured.items()}
                lags |= {name: lag for name, (_, lag) in measured.items()}
                self._requested_at, self._known = time.monotonic(), (at, tails, lags)
            assert self._known is not None
            _, tails, lags = self._known
        each = {name: {"cut": tails[name].as_text(), "lag": lags[name]} for name in sorted(tails)}
        return next(iter(each.values())) if is_one else {"streams": each, "lag": combined(lags.values())}

    async def _lag_of(self, cut: StreamCut, end: StreamCut | None) -> tuple[StreamCut, dict[str, Any]]:
        cuts = self._manager.cuts(cut.scope, cut.stream)
        tail = end or await cuts.tail()
        cut = await cuts.settled(cut)
        size = await cuts.bytes_between(cut, tail)
        if size == 0:
            return tail, _NO_LAG
        loads = await self._manager.segment_loads(cut.scope, cut.stream)
        events, passed = sum(load.events_per_s[-1] for load in loads), sum(load.bytes_per_s[-1] for load in loads)
        count = round(size * events / passed) if passed and events else None
        return tail, {"bytes": size, "events": count, "seconds": await _waited_s(stores_of(self._manager), cut)}


async def _waited_s(stores: SegmentStores, cut: StreamCut) -> float | None:
    """Return how long the oldest event after a cut has waited, by this machine's clock; None if that takes too many
    requests."""
    now_ms = time.time_ns() // 1_000_000
    late_ms, early_ms, step_ms = now_ms, now_ms - TIME_INDEX_MOST_MS, TIME_INDEX_MOST_MS
    remaining = LAG_QUESTIONS
    suspects = [(segment, max(offset, 0)) for segment, offset in cut.positions.items()]

    async def waiting_at(at_ms: int) -> list[tuple[int, int]]:
        names = [segment_name(cut.scope, cut.stream, segment) for segment, _ in suspects]
        requests = (
            stores.ask(wire.LocateMoment(0, name, max(at_ms, 0), ARRIVAL, ""), wire.MomentLocated) for name in names
        )
        replies = await asyncio.gather(*requests)
        return [suspect for suspect, reply in zip(suspects, replies, strict=True) if reply.offset > suspect[1]]

    while early_ms > 0 and (remaining := remaining - len(suspects)) >= 0 and (waiting := await waiting_at(early_ms)):
        suspects, late_ms, step_ms = waiting, early_ms, step_ms * 2
        early_ms = now_ms - step_ms
    while remaining >= 0 and late_ms - max(early_ms, 0) > max(TIME_INDEX_MS, (now_ms - late_ms) // 20):
        remaining -= len(suspects)
        middle_ms = (late_ms + max(early_ms, 0)) // 2
        if waiting := await waiting_at(middle_ms):
            suspects, late_ms = waiting, middle_ms
        else:
            early_ms = middle_ms
    return None if remaining < 0 else (now_ms - late_ms) / 1000


class QueryStreams:
    """The streams of one query, as they are discovered, and its progress in each."""

    def __init__(self, manager: StreamManager, options: ReadOptions) -> None:
        self._manager, self._options = manager, options
        self._progress: dict[str, QueryProgress] = {}
        self._names: list[str] = []
        self._checked_at: float | None = None
        group_id = options.group_id
        self._group = QueryGroup(manager, options.scope, group_id, options.delivery) if group_id is not None else None
        self._notes = BatchNotes(manager, options) if options.output is not None else None
        self._lag = Lag(manager)
        self._cutover = CutoverPlan.of(manager, options)
        self._cut_over_to: StreamCut | None = None
        self._at: Offsets | None = None  # the end of the latest batch
        self._began: Offsets | None = None  # the start of a new query that Spark was given
        self._handed_out: tuple[Offsets, Offsets, int] | None = None  # the latest batch's end, start, and number
        self._minimum = Minimum(options.admission)
        self._turn = 0
        self._is_closed = False  # ignore new streams

    async def begin(self) -> Offsets:
        await self._discover()
        committed = await self._committed() if self._options.starts_at_group else {}

        async def start(name: str) -> Offset:
            if name in committed:
                return Offset(committed[name])
            return Offset(await plan.start_of(self._manager, self._options.of_stream(name)))

        self._began = Offsets(await _each(self._names, start))
        return self._began

    async def begin_of(self, start: Offsets, end: Offsets) -> Offsets:
        """Return the start of the batch between two offsets: not `start` for a repeated first batch of a query, as
        Spark requested a start again, which may differ.

        ConflictError if another query has continued with the group, past the end of this batch.
        """
        if self._at is not None or start != self._began:
            return start
        noted = await self._notes.first(end) if self._notes is not None else None
        return noted or await self._first_again(start, end)

    async def next(self, start: Offsets, admission: Admission = NO_LIMITS) -> Offsets:
        """Return the end of a batch that starts at `start`; `start` itself if nothing or too little can be read.

        admission: its limits over all streams. StreamNotFoundError if one of the streams was deleted and mustn't be
        dropped.
        """
        await self._discover()
        self._check_same(start)
        if self._group is not None:
            await self._group.take(start)
        if self._cutover is not None:
            fixed = await self._at_cutover(self._cutover, start)
            if fixed is not None:
                self._at = fixed
                return fixed
        several = self._options.several
        selected = {name: offset for name, offset in start.streams.items() if several is None or several.takes(name)}
        capacity = Capacity(admission.max_bytes, admission.max_events, admission.max_segment_bytes)
        is_alone = len(selected) == 1 and admission.min_events is None

        async def reach(name: str) -> Offset | None:
            return await self._reach(name, selected[name], capacity if is_alone else UNLIMITED)

        reached = await _each(selected, reach)
        ends = {name: end for name, end in reached.items() if end is not None}
        waits = admission.min_events is not None and ends != selected and not self._is_closed
        if waits and not await self._is_enough(selected, ends):
            self._at = start
            return start
        if capacity.is_limited and not is_alone:
            ends |= await self._limited(selected, ends, capacity)
        ends |= await self._in_time(ends)
        dropped = [name for name in start.streams if name not in ends]
        for name in dropped:
            self._drop(name, start.streams[name])
        ends |= await self._new(start)
        self._at = start if ends == start.streams else Offsets(ends, tuple(sorted(dropped)))
        if self._at is not start:
            self._minimum.begin_batch()
        return self._at

    async def pieces(self, start: Offsets, end: Offsets) -> list[ScanRange]:
        """Return the ranges of the batch between two offsets, the second made by `next`."""
        self._check_same(end)
        if self._group is not None:
            await self._group.take(start)

        async def read(name: str) -> list[ScanRange]:
            begin, options = start.streams[name], self._options.of_stream(name)
            try:
                slices = await (await self._of(name)).slices(begin, end.streams[name])
                return pieces_of(name, await plan.narrowed(self._manager, options, slices))
            except StreamNotFoundError as error:
                if self._options.several is None:
                    raise
                self._drop(name, begin, error)
                return []

        names = [name for name, offset in end.streams.items() if start.streams.get(name, offset) != offset]
        return [piece for pieces in (await _each(names, read)).values() for piece in pieces]

    async def hand_out(self, start: Offsets, end: Offsets) -> tuple[Offsets, int]:
        """Move the query's group past a batch before any of its events is handed out. Return the batch's start, which
        is its end if an earlier run of the query handed it out, and a number that increases with each batch.

        ConflictError if another run has continued with the group.
        """
        assert self._group is not None, "at most once requires a group"
        if self._handed_out is None or self._handed_out[0] != end:
            await self._group.take(start)
            self._handed_out = end, *await self._group.hand_out(start, end)
        return self._handed_out[1:]

    async def commit(self, end: Offsets) -> None:
        """Commit everything before `end`, which Spark needs no longer."""
        if self._group is not None:
            await self._group.commit(end)

    async def latest(self) -> dict[str, Any] | None:
        """Return the tails of the streams, with the lag of the latest batch; None if unknown."""
        if self._at is None:
            return None
        known = {name: self._progress[name] for name in self._at.streams if name in self._progress}
        ends = {name: progress.ends_at for name, progress in known.items() if not progress.is_at_tail}
        ends |= dict.fromkeys(self._at.streams.keys() - known.keys())  # new streams
        report = await self._lag.report(self._at, ends, is_one=self._options.several is None)
        skipped = sum(progress.skipped_bytes for progress in self._progress.values())
        return report | {"skipped_bytes": skipped} if report is not None and skipped else report

    async def stop_at_tails(self) -> None:
        """Let no batch pass the current tails."""
        await self._discover()
        self._is_closed = True

        async def stop(name: str) -> None:
            tail = await plan.resolve(self._manager, self._options.of_stream(name), TAIL)
            await (await self._of(name)).limit_to("what is available now", tail)

        await _each(self._names, stop)

    # --- inside -----------------------------------------------------------------------------

    async def _committed(self) -> Mapping[str, StreamCut]:
        assert self._group is not None, "startAt requires a group"
        if self._notes is None:
            return await self._group.position()
        has_note = await self._notes.is_there()
        position = await self._group.position()
        if position:
            return await self._notes.last() or position
        if has_note:  # deleting the group means to start afresh
            await self._notes.discard()
        return {}

    async def _first_again(self, start: Offsets, end: Offsets) -> Offsets:
        """Return the start of the batch, in no stream after its end."""
        passed = {
            name: offset for name, offset in end.streams.items() if await self._is_passed(start, name, offset.cut)
        }
        if passed and self._options.starts_at_group:
            ends, starts = (", ".join(str(of[name].cut) for name in passed) for of in (end.streams, start.streams))
            raise ConflictError(
                f"this query's first batch, which is being repeated, ends at {ends}, but another query has continued "
                f"to {starts} in group {self._options.scope}/{self._options.group_id}. Start this query with a new "
                "checkpoint to continue instead"
            )
        return Offsets({**start.streams, **{name: Offset(offset.cut) for name, offset in passed.items()}})

    async def _is_passed(self, starts: Offsets, name: str, end: StreamCut) -> bool:
        """Return whether the start is after the end on any key, even in successors of the end's segments: a batch
        planned from there never ends like that."""
        start = starts.streams[name].cut if name in starts.streams else end
        if start == end:
            return False
        stores = stores_of(self._manager)
        try:
            ranges = [known for cut in (start, end) for known in await segment_ranges(stores, cut.scope, name, cut)]
        except (InvalidStreamCutError, NotFoundError, TruncatedError):  # reading the batch reports it
            return False
        return not compare(start, end, {known.segment_id: (known.low, known.high) for known in ranges}).is_at_or_before

    async def _discover(self) -> None:
        is_known = self._checked_at is not None and (self._options.several is None or self._options.several.names)
        if self._is_closed or is_known:
            return
        if self._checked_at is not None and time.monotonic() - self._checked_at < SPARK_STREAM_POLL_S:
            return
        try:
            self._names = await plan.streams_of(self._manager, self._options)
        except StreamNotFoundError as error:  # a named stream: if it is in the offset, it is dropped there
            assert self._options.several is not None
            if not self._options.skip_truncated:
                raise self._gone(error.stream) from error
            known = await self._manager.list_streams(self._options.scope)
            self._names = sorted(set(self._options.several.names).intersection(known))
        self._checked_at = time.monotonic()

    async def _at_cutover(self, cutover: CutoverPlan, start: Offsets) -> Offsets | None:
        (begin,) = start.streams.values()
        step = await cutover.step(begin.cut, begin.settled)
        if step.settles:
            return Offsets({self._options.stream: Offset(begin.cut, settled=cutover.name)})
        if step.limit != self._cut_over_to:
            await (await self._of(self._options.stream)).limit_to("cutover", step.limit)
            self._cut_over_to = step.limit
        return start if step.waits else None

    async def _of(self, name: str) -> QueryProgress:
        if name not in self._progress:
            options = await plan.with_slice(self._manager, self._options.of_stream(name))
            view = StreamView(self._manager, options.scope, name, options.on_damage)
            progress = QueryProgress(view, skip_truncated=options.skip_truncated)
            if options.end is not None:
                await progress.limit_to(END, await plan.resolve(self._manager, options, options.end, end=True))
            self._progress[name] = progress
        return self._progress[name]

    async def _reach(self, name: str, start: Offset, capacity: Capacity) -> Offset | None:
        """Return the end of a batch in one stream; None if the stream was deleted."""
        try:
            return await (await self._of(name)).next(start, capacity)
        except StreamNotFoundError:
            if self._options.several is None:
                raise
            return None

    async def _is_enough(self, starts: Mapping[str, Offset], ends: Mapping[str, Offset]) -> bool:
        async def take(name: str, piece: SegmentSlice, events: int) -> tuple[int, SegmentSlice]:
            return await (await self._of(name)).view.take(piece, events)

        slices = ((name, piece) for name, end in ends.items() for piece in slices_of(starts[name], end))
        return await self._minimum.is_reached(slices, take)

    async def _limited(
        self, starts: Mapping[str, Offset], ends: Mapping[str, Offset], capacity: Capacity
    ) -> Mapping[str, Offset]:
        """Return the ends of the streams with unread events, within the common capacity."""
        self._turn += 1
        limited: dict[str, Offset] = {}
        sizes = {
            name: size
            for name, end in ends.items()
            if (size := sum(piece.size_bytes for piece in slices_of(starts[name], end)))
        }
        assigned = sizes if capacity.size_bytes is None else shares(sizes, capacity.size_bytes)

        async def reach(name: str, events: int | None = None) -> None:
            end = await self._reach(
                name, starts[name], Capacity(max(1, assigned[name]), events, capacity.segment_bytes)
            )
            if end is not None:
                limited[name] = end

        async def take(name: str, events: int) -> int:
            await reach(name, events)
            return (await self._of(name)).events

        if capacity.events is None:
            await _each([name for name in sizes if assigned[name] < sizes[name] or capacity.segment_bytes], reach)
            return limited
        await dealt(sizes, capacity.events, self._turn, take)
        return {name: starts[name] for name in sizes} | limited

    async def _in_time(self, ends: Mapping[str, Offset]) -> dict[str, Offset]:
        """Return the ends of streams with event times, moved back to a common time if the batch leaves events
        unread."""
        if not any(plan.has_more for name, end in ends.items() for plan in self._progress[name].planned(end)):
            return {}
        try:
            timed = await _each(ends, lambda name: self._progress[name].timed(ends[name]))
            plans = {plan: time for plans in timed.values() for plan, time in plans.items()}
            moved = await ends_in_time(stores_of(self._manager), plans)
        except (StreamNotFoundError, SegmentNotFoundError, TruncatedError, DamagedDataError) as error:
            _logger.debug("a batch of scope %s keeps its planned end: %s", self._options.scope, error)
            return {}  # the batch's tasks will report it
        return {
            name: self._progress[name].lead_back({plan.segment_id: moved[plan] for plan in plans})
            for name, plans in timed.items()
            if any(moved[plan] != plan.end for plan in plans)
        }

    async def _new(self, start: Offsets) -> dict[str, Offset]:
        async def begin(name: str) -> Offset | None:
            try:
                own = self._options.starts.get(name)
                if own is not None:
                    return Offset(await plan.resolve(self._manager, self._options.of_stream(name), own))
                return Offset(await self._manager.cuts(self._options.scope, name).head())
            except NotFoundError:
                return None  # already deleted

        begins = await _each([name for name in self._names if name not in start.streams], begin)
        return {name: offset for name, offset in begins.items() if offset is not None}

    def _check_same(self, offsets: Offsets) -> None:
        """Raise InvalidStreamCutError if the checkpoint is of other streams."""
        options = self._options
        for name, offset in offsets.streams.items():
            if offset.cut.scope != options.scope or offset.cut.stream != name:
                raise _other(f"{offset.cut.scope}/{offset.cut.stream}", f"scope {options.scope}")
        if options.several is None and list(offsets.streams) != [options.stream]:
            raise _other(", ".join(sorted(offsets.streams)) or "no stream", f"{options.scope}/{options.stream}")

    def _gone(self, name: str) -> StreamNotFoundError:
        return StreamNotFoundError(self._options.scope, name, _GONE)

    def _drop(self, name: str, start: Offset, error: Exception | None = None) -> None:
        if not self._options.skip_truncated:
            raise self._gone(name) from error
        _logger.warning("a query dropped stream %s/%s at %s", self._options.scope, name, start.cut)


def _other(actual: str, expected: str) -> InvalidStreamCutError:
    return InvalidStreamCutError(
        f"this query's checkpoint is of {actual}, but the query reads {expected}: restore the options of the "
        "checkpoint, or use a new checkpoint"
    )


async def _each(names: Iterable[str], work: Callable[[str], Awaitable[_Result]]) -> dict[str, _Result]:
    """Do the work for each name, several at a time; raise the first error once all are done."""
    slots = asyncio.Semaphore(SPARK_STREAMS_AT_ONCE)
    ordered = list(names)

    async def limited(name: str) -> _Result:
        async with slots:
            return await work(name)

    results = await asyncio.gather(*map(limited, ordered), return_exceptions=True)
    by_name: dict[str, _Result] = {}
    for name, result in zip(ordered, results, strict=True):
        if isinstance(result, BaseException):
            raise result
        by_name[name] = result
    return by_name
