"""All streams of one query, one `QueryProgress` each: which there are, where each batch ends, what its tasks read.

A stream that appears is put into the offset where it begins, and read from the next batch on: what a batch reads still
follows from its two offsets alone. One that was deleted is an error, or is left behind and named in the offset.

A query's first batch may be run again: its end is in the checkpoint, its start is not. So Spark asks for the start of a
new query once more. By now the tail is another, a bookmark may be, and the group may
have been another query's: then that start may lie behind the batch's end.

`Lag` is how far a query is behind the tails of its streams, in bytes, events and seconds. Bytes are exact. Events are
these bytes by the mean size of the stream's events in the last 20 minutes, as the server measures it. For how long the
oldest unread event has waited is told by the segments' time indexes, to about a twentieth, by this machine's clock. A
query that keeps up asks for nothing; another asks once a second while it stands still.
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
    SPARK_LOOK_FOR_STREAMS_S,
    SPARK_STREAMS_AT_ONCE,
    TIME_INDEX_MOST_MS,
    TIME_INDEX_MS,
)
from nadi.model.cutorder import compare
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.spark.consumer_lag import together
from nadi.spark.cutover import CutoverPlan
from nadi.spark.options.parsed import NO_LIMITS, Admission, ReadOptions
from nadi.spark.reading import plan
from nadi.spark.reading.admission import ROOM_FOR_ALL, Minimum, Room, dealt, ends_in_time, shares
from nadi.spark.reading.group import BatchNotes, QueryGroup
from nadi.spark.reading.offsets import Offset, Offsets
from nadi.spark.reading.progress import END, QueryProgress, StreamView, slices_of
from nadi.wire import commands as wire
from nadi.wire.time_index import ARRIVAL

_NOT_BEHIND = {"bytes": 0, "events": 0, "seconds": 0.0}
_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_GONE = (
    "it was deleted under a query, or the query's options name it no more, and what the query had not read of it is "
    'lost. To go on with its other streams, add .option("failOnDataLoss", "false") to the read'
)


class Lag:
    def __init__(self, manager: StreamManager) -> None:
        self._manager = manager
        self._asked_at = 0.0
        self._known: tuple[Offsets, dict[str, StreamCut], dict[str, dict[str, Any]]] | None = None

    async def report(self, at: Offsets, ends: Mapping[str, StreamCut | None], *, is_one: bool) -> dict[str, Any] | None:
        """The tails of the query's streams as an offset, with what lies before them and after `at`. ends: where the
        query ends in each stream that it isn't at the tail of, None for the tail. None if it can't be known now."""
        tails = {name: one.cut for name, one in at.streams.items()}
        behind = dict.fromkeys(tails, _NOT_BEHIND)
        if ends:
            is_old = self._known is None or self._known[0] != at
            if is_old or time.monotonic() - self._asked_at >= SPARK_LAG_EVERY_S:
                try:
                    found = {name: await self._behind(at.streams[name].cut, end) for name, end in ends.items()}
                except NadiError as error:  # the next batch finds out what is wrong
                    _logger.warning("the lag of a query can't be told: %s", error)
                    return None
                tails |= {name: tail for name, (tail, _) in found.items()}
                behind |= {name: one for name, (_, one) in found.items()}
                self._asked_at, self._known = time.monotonic(), (at, tails, behind)
            assert self._known is not None
            _, tails, behind = self._known
        each = {name: {"cut": tails[name].as_text(), "behind": behind[name]} for name in sorted(tails)}
        return next(iter(each.values())) if is_one else {"streams": each, "behind": together(behind.values())}

    async def _behind(self, cut: StreamCut, end: StreamCut | None) -> tuple[StreamCut, dict[str, Any]]:
        cuts = self._manager.cuts(cut.scope, cut.stream)
        tail = end or await cuts.tail()
        cut = await cuts.settled(cut)
        size = await cuts.bytes_between(cut, tail)
        if size == 0:
            return tail, _NOT_BEHIND
        loads = await self._manager.segment_loads(cut.scope, cut.stream)
        events, passed = sum(load.events_per_s[-1] for load in loads), sum(load.bytes_per_s[-1] for load in loads)
        count = round(size * events / passed) if passed and events else None
        return tail, {"bytes": size, "events": count, "seconds": await _waited_s(stores_of(self._manager), cut)}


async def _waited_s(stores: SegmentStores, cut: StreamCut) -> float | None:
    """For how long the oldest event after a cut has waited, by this machine's clock; None if there are too many
    segments to ask."""
    now_ms = time.time_ns() // 1_000_000
    late_ms, early_ms, step_ms = now_ms, now_ms - TIME_INDEX_MOST_MS, TIME_INDEX_MOST_MS
    left = LAG_QUESTIONS
    suspects = [(segment, max(offset, 0)) for segment, offset in cut.positions.items()]

    async def waiting_at(at_ms: int) -> list[tuple[int, int]]:
        names = [segment_name(cut.scope, cut.stream, segment) for segment, _ in suspects]
        asked = (
            stores.ask(wire.LocateMoment(0, name, max(at_ms, 0), ARRIVAL, ""), wire.MomentLocated) for name in names
        )
        found = await asyncio.gather(*asked)
        return [one for one, reply in zip(suspects, found, strict=True) if reply.offset > one[1]]

    while early_ms > 0 and (left := left - len(suspects)) >= 0 and (found := await waiting_at(early_ms)):
        suspects, late_ms, step_ms = found, early_ms, step_ms * 2
        early_ms = now_ms - step_ms
    while left >= 0 and late_ms - max(early_ms, 0) > max(TIME_INDEX_MS, (now_ms - late_ms) // 20):
        left -= len(suspects)
        middle_ms = (late_ms + max(early_ms, 0)) // 2
        if found := await waiting_at(middle_ms):
            suspects, late_ms = found, middle_ms
        else:
            early_ms = middle_ms
    return None if left < 0 else (now_ms - late_ms) / 1000


class QueryStreams:
    """The streams of one query, as they are found, and how far it is in each."""

    def __init__(self, manager: StreamManager, options: ReadOptions) -> None:
        self._manager, self._options = manager, options
        self._progress: dict[str, QueryProgress] = {}
        self._names: list[str] = []
        self._looked_at: float | None = None
        group_id = options.group_id
        self._group = QueryGroup(manager, options.scope, group_id, options.delivery) if group_id is not None else None
        self._notes = BatchNotes(manager, options) if options.output is not None else None
        self._lag = Lag(manager)
        self._cutover = CutoverPlan.of(manager, options)
        self._cut_over_to: StreamCut | None = None
        self._at: Offsets | None = None  # where the latest batch ends
        self._began: Offsets | None = None  # what Spark was told as the start of a new query
        self._handed: tuple[Offsets, Offsets, int] | None = None  # the latest batch's end, its start, and its number
        self._minimum = Minimum(options.admission)
        self._turn = 0
        self._is_closed = False  # streams that appear are none of this query's

    async def begin(self) -> Offsets:
        await self._look()
        committed = await self._committed() if self._options.starts_at_group else {}

        async def start(name: str) -> Offset:
            if name in committed:
                return Offset(committed[name])
            return Offset(await plan.start_of(self._manager, self._options.of_stream(name)))

        self._began = Offsets(await _each(self._names, start))
        return self._began

    async def begin_of(self, start: Offsets, end: Offsets) -> Offsets:
        """Where the batch between two offsets begins: not at `start` if it is a query's first and is run again. Spark
        asks for a start once more then, and it may be another by now.

        ConflictError if another query has gone on with the group, past the end of this batch.
        """
        if self._at is not None or start != self._began:
            return start
        noted = await self._notes.first(end) if self._notes is not None else None
        return noted or await self._first_again(start, end)

    async def next(self, start: Offsets, admission: Admission = NO_LIMITS) -> Offsets:
        """Where a batch that starts at `start` ends now; `start` itself if nothing can be read, or too little.

        admission: how much it may hold, over all streams.
        StreamNotFoundError if one of the streams was deleted and that is not to be passed over.
        """
        await self._look()
        self._check_same(start)
        if self._group is not None:
            await self._group.take(start)
        if self._cutover is not None:
            fixed = await self._at_cutover(self._cutover, start)
            if fixed is not None:
                self._at = fixed
                return fixed
        several = self._options.several
        mine = {name: one for name, one in start.streams.items() if several is None or several.takes(name)}
        room = Room(admission.max_bytes, admission.max_events, admission.max_segment_bytes)
        is_alone = len(mine) == 1 and admission.min_events is None

        async def reach(name: str) -> Offset | None:
            return await self._reach(name, mine[name], room if is_alone else ROOM_FOR_ALL)

        found = await _each(mine, reach)
        ends = {name: end for name, end in found.items() if end is not None}
        waits = admission.min_events is not None and ends != mine and not self._is_closed
        if waits and not await self._is_enough(mine, ends):
            self._at = start
            return start
        if room.is_limited and not is_alone:
            ends |= await self._limited(mine, ends, room)
        ends |= await self._in_time(ends)
        left = [name for name in start.streams if name not in ends]
        for name in left:
            self._pass_over(name, start.streams[name])
        ends |= await self._new(start)
        self._at = start if ends == start.streams else Offsets(ends, tuple(sorted(left)))
        if self._at is not start:
            self._minimum.begin_batch()
        return self._at

    async def pieces(self, start: Offsets, end: Offsets) -> list[ScanRange]:
        """What the batch between two offsets reads, one of which `next` made from the other."""
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
                self._pass_over(name, begin, error)
                return []

        names = [name for name, one in end.streams.items() if start.streams.get(name, one) != one]
        return [piece for pieces in (await _each(names, read)).values() for piece in pieces]

    async def hand_out(self, start: Offsets, end: Offsets) -> tuple[Offsets, int]:
        """Put the query's group behind a batch before any of its events is handed out. Return where the batch begins
        now, at its end if it was handed out by an earlier run of the query, and a number that rises with each batch.

        ConflictError if another run has gone on with the group.
        """
        assert self._group is not None, "at most once needs it"
        if self._handed is None or self._handed[0] != end:
            await self._group.take(start)
            self._handed = end, *await self._group.hand_out(start, end)
        return self._handed[1:]

    async def commit(self, end: Offsets) -> None:
        """Spark needs nothing any more that lies before `end`."""
        if self._group is not None:
            await self._group.commit(end)

    async def latest(self) -> dict[str, Any] | None:
        """The tails of the streams, with what lies before them that the latest batch didn't reach; None if unknown."""
        if self._at is None:
            return None
        mine = {name: self._progress[name] for name in self._at.streams if name in self._progress}
        ends = {name: one.ends_at for name, one in mine.items() if not one.is_at_tail}
        ends |= dict.fromkeys(self._at.streams.keys() - mine.keys())  # it appeared just now
        found = await self._lag.report(self._at, ends, is_one=self._options.several is None)
        skipped = sum(one.skipped_bytes for one in self._progress.values())
        return found | {"skipped_bytes": skipped} if found is not None and skipped else found

    async def stop_at_tails(self) -> None:
        """No batch goes past what there is now."""
        await self._look()
        self._is_closed = True

        async def stop(name: str) -> None:
            tail = await plan.resolve(self._manager, self._options.of_stream(name), TAIL)
            await (await self._of(name)).limit_to("what is available now", tail)

        await _each(self._names, stop)

    # --- inside -----------------------------------------------------------------------------

    async def _committed(self) -> Mapping[str, StreamCut]:
        assert self._group is not None, "startAt needs it"
        if self._notes is None:
            return await self._group.position()
        has_note = await self._notes.is_there()
        position = await self._group.position()
        if position:
            return await self._notes.last() or position
        if has_note:  # whoever deletes the group wants to start anew
            await self._notes.forget()
        return {}

    async def _first_again(self, start: Offsets, end: Offsets) -> Offsets:
        """The start of the batch, not behind its end in any stream."""
        passed = {name: one for name, one in end.streams.items() if await self._is_passed(start, name, one.cut)}
        if passed and self._options.starts_at_group:
            ends, places = (", ".join(str(of[name].cut) for name in passed) for of in (end.streams, start.streams))
            raise ConflictError(
                f"this query's first batch, which is run again, ends at {ends}, and another query has gone on to "
                f"{places} in its place, in group {self._options.scope}/{self._options.group_id}. Start this one with "
                "a new checkpoint, if it is to go on instead"
            )
        return Offsets({**start.streams, **{name: Offset(one.cut) for name, one in passed.items()}})

    async def _is_passed(self, starts: Offsets, name: str, end: StreamCut) -> bool:
        """Whether the start lies behind the end on any key, if only in the successors of the end's segments: a batch
        that was planned from there never ends so."""
        start = starts.streams[name].cut if name in starts.streams else end
        if start == end:
            return False
        stores = stores_of(self._manager)
        try:
            found = [one for cut in (start, end) for one in await segment_ranges(stores, cut.scope, name, cut)]
        except (InvalidStreamCutError, NotFoundError, TruncatedError):  # who reads the batch says so
            return False
        return not compare(start, end, {one.segment_id: (one.low, one.high) for one in found}).is_at_or_before

    async def _look(self) -> None:
        is_known = self._looked_at is not None and (self._options.several is None or self._options.several.names)
        if self._is_closed or is_known:
            return
        if self._looked_at is not None and time.monotonic() - self._looked_at < SPARK_LOOK_FOR_STREAMS_S:
            return
        try:
            self._names = await plan.streams_of(self._manager, self._options)
        except StreamNotFoundError as error:  # one that is named: if the query knew it, the offset says so
            assert self._options.several is not None
            if not self._options.skip_truncated:
                raise self._gone(error.stream) from error
            known = await self._manager.list_streams(self._options.scope)
            self._names = sorted(set(self._options.several.names).intersection(known))
        self._looked_at = time.monotonic()

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

    async def _reach(self, name: str, start: Offset, room: Room) -> Offset | None:
        """Where a batch ends in one stream; None if it was deleted."""
        try:
            return await (await self._of(name)).next(start, room)
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
        self, starts: Mapping[str, Offset], ends: Mapping[str, Offset], room: Room
    ) -> Mapping[str, Offset]:
        """The ends of those streams that have something, within the room for them all."""
        self._turn += 1
        found: dict[str, Offset] = {}
        sizes = {
            name: size
            for name, end in ends.items()
            if (size := sum(piece.size_bytes for piece in slices_of(starts[name], end)))
        }
        given = sizes if room.size_bytes is None else shares(sizes, room.size_bytes)

        async def reach(name: str, events: int | None = None) -> None:
            end = await self._reach(name, starts[name], Room(max(1, given[name]), events, room.segment_bytes))
            if end is not None:
                found[name] = end

        async def take(name: str, events: int) -> int:
            await reach(name, events)
            return (await self._of(name)).events

        if room.events is None:
            await _each([name for name in sizes if given[name] < sizes[name] or room.segment_bytes], reach)
            return found
        await dealt(sizes, room.events, self._turn, take)
        return {name: starts[name] for name in sizes} | found

    async def _in_time(self, ends: Mapping[str, Offset]) -> dict[str, Offset]:
        """The ends of those streams whose events have a time, led back to one time if the batch leaves some behind."""
        if not any(plan.has_more for name, end in ends.items() for plan in self._progress[name].planned(end)):
            return {}
        try:
            timed = await _each(ends, lambda name: self._progress[name].timed(ends[name]))
            plans = {plan: time for some in timed.values() for plan, time in some.items()}
            led = await ends_in_time(stores_of(self._manager), plans)
        except (StreamNotFoundError, SegmentNotFoundError, TruncatedError, DamagedDataError) as error:
            _logger.debug("a batch of scope %s ends where it was to: %s", self._options.scope, error)
            return {}  # the batch's tasks run into the same
        return {
            name: self._progress[name].lead_back({plan.segment_id: led[plan] for plan in some})
            for name, some in timed.items()
            if any(led[plan] != plan.end for plan in some)
        }

    async def _new(self, start: Offsets) -> dict[str, Offset]:
        async def begin(name: str) -> Offset | None:
            try:
                own = self._options.starts.get(name)
                if own is not None:
                    return Offset(await plan.resolve(self._manager, self._options.of_stream(name), own))
                return Offset(await self._manager.cuts(self._options.scope, name).head())
            except NotFoundError:
                return None  # gone again

        found = await _each([name for name in self._names if name not in start.streams], begin)
        return {name: one for name, one in found.items() if one is not None}

    def _check_same(self, offsets: Offsets) -> None:
        """InvalidStreamCutError for a checkpoint of other streams."""
        options = self._options
        for name, one in offsets.streams.items():
            if one.cut.scope != options.scope or one.cut.stream != name:
                raise _other(f"{one.cut.scope}/{one.cut.stream}", f"scope {options.scope}")
        if options.several is None and list(offsets.streams) != [options.stream]:
            raise _other(", ".join(sorted(offsets.streams)) or "no stream", f"{options.scope}/{options.stream}")

    def _gone(self, name: str) -> StreamNotFoundError:
        return StreamNotFoundError(self._options.scope, name, _GONE)

    def _pass_over(self, name: str, start: Offset, error: Exception | None = None) -> None:
        if not self._options.skip_truncated:
            raise self._gone(name) from error
        _logger.warning("stream %s/%s left a query, which was at %s", self._options.scope, name, start.cut)


def _other(found: str, wanted: str) -> InvalidStreamCutError:
    return InvalidStreamCutError(
        f"this query's checkpoint is of {found}, and the query reads {wanted}: give it the options that its checkpoint "
        "was made with, or a new checkpoint"
    )


async def _each(names: Iterable[str], work: Callable[[str], Awaitable[_Result]]) -> dict[str, _Result]:
    """The work for each name, some at one time; the first error once all are done."""
    turns = asyncio.Semaphore(SPARK_STREAMS_AT_ONCE)
    wanted = list(names)

    async def one(name: str) -> _Result:
        async with turns:
            return await work(name)

    results = await asyncio.gather(*map(one, wanted), return_exceptions=True)
    found: dict[str, _Result] = {}
    for name, result in zip(wanted, results, strict=True):
        if isinstance(result, BaseException):
            raise result
        found[name] = result
    return found
