"""Event time: how far each writer of a stream has got, the watermarks made from that, and the cut of a moment.

A mark says that all of a writer's events up to a time lie before a position. It comes from the writer itself, or from
the commit of one of its transactions; a writer's time and position never go back. Marks are dropped with their stream.

`judge` makes watermarks of them, purely; `WatermarkRounds` carries it out. A writer takes part once its time is past
the previous watermark. A stalled one holds the next watermark back for as long as the stream's configuration allows
(not at all by default) unless it was removed; then it is dropped. The last watermark is that of the least time that a
writer has noted; others come before it for steps at earlier times. The cut of a time lies at or after the first
position of each writer that it noted with that time or a later one, and at or after the previous cut. So the lower
bounds grow, the cuts never go back, and what writers noted up to `lower` lies before the cut. The floor lies at or
before the last step of each writer up to that time, so all events of a later time lie behind it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import itemgetter
from uuid import UUID

from msgspec.structs import replace

from nadi import errors, limits
from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import Cut, EpochHistory
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import ListedMark, Step, StreamRecord, TransactionRecord, TruncateWork, WriterMark
from nadi.controller.state.segments import ANY_VERSION, RecordTable, Segments, Versioned, together
from nadi.model.cutorder import earliest
from nadi.model.framing import HEADER, HEADER_BYTES
from nadi.model.frontier import Frontier
from nadi.model.streamcut import StreamCut
from nadi.model.watermark import SegmentPosition, Watermark, decode_watermark, encode_watermark
from nadi.naming import REVISION_MARK, segment_epoch
from nadi.throttled_log import Complaints
from nadi.wire import commands as wire
from nadi.wire.time_index import ARRIVAL, is_earliest

_STEP_BYTES = 4 * limits.KIB  # from one watermark to the next of a round
_WORK_A_ROUND = 200_000  # positions that are compared for a stream's watermarks: 0.1 s


@dataclass(frozen=True, slots=True)
class WatermarkDecision:
    """What to do about a stream: the watermarks to emit, the writers to drop, and those to wait for."""

    watermarks: tuple[Watermark, ...]
    dropped: tuple[str, ...]
    waited_for: tuple[str, ...]


def judge(
    marks: Mapping[str, WriterMark],
    previous: Watermark | None,
    history: EpochHistory,
    *,
    timeout_ms: int,
    waited_ms: Mapping[str, int],
) -> WatermarkDecision:
    """The verdict on the marks, by writer. timeout_ms: how long to wait for a stalled writer; waited_ms: how long
    each has been waited for so far, if at all."""
    behind = {w: mark for w, mark in marks.items() if previous is not None and mark.time <= previous.lower}
    waited_for = tuple(w for w, mark in behind.items() if mark.alive and waited_ms.get(w, 0) < timeout_ms)
    dropped = tuple(writer for writer in behind if writer not in waited_for)
    taking_part = [mark for writer, mark in marks.items() if writer not in behind]
    if waited_for or not taking_part:
        return WatermarkDecision((), dropped, waited_for)
    return WatermarkDecision(tuple(_made(taking_part, previous, history)), dropped, waited_for)


def _made(marks: Sequence[WriterMark], previous: Watermark | None, history: EpochHistory) -> Iterator[Watermark]:
    last = min(mark.time for mark in marks)
    first = previous.lower if previous is not None else None
    times = sorted(
        {time for mark in marks for time, _ in mark.steps if time < last and (first is None or time > first)}
    )
    cost = sum(len(mark.position) or 1 for mark in marks)
    most = min(limits.WATERMARKS_A_ROUND, _WORK_A_ROUND // cost) - 1
    if len(times) > most:
        times = [times[number * len(times) // most] for number in range(most)] if most > 0 else []
    for time in [*times, last]:
        reached = [_reached(mark, time) for mark in marks]
        before = previous.positions() if previous is not None else {}
        cut = joined([*(position for _, position in reached), before], history)
        if time < last and sum(place.offset - before.get(place.segment_id, 0) for place in cut) < _STEP_BYTES:
            continue
        upper = max(at for at, _ in reached)
        floor = _floor(marks, time, history)
        if previous is not None:
            upper, floor = max(upper, previous.upper), floor or previous.floor
        previous = Watermark(time, upper, cut, floor)
        yield previous


def _reached(mark: WriterMark, time: int) -> Step:
    """The last step of that time, or else the first of a later one; the mark is the last of all."""
    steps = (*mark.steps, (mark.time, mark.position))
    passed = bisect_right(steps, time, key=itemgetter(0))
    return steps[passed - 1] if passed and steps[passed - 1][0] == time else steps[passed]


def _floor(marks: Sequence[WriterMark], time: int, history: EpochHistory) -> Cut:
    """A cut that all events of later times lie behind; empty where that is unknown."""
    passed = [next((position for at, position in reversed(mark.steps) if at <= time), {}) for mark in marks]
    try:
        if not all(map(history.is_valid_cut, passed)):
            return {}
        known = history.segments
        ranges = {segment: (known[segment].low, known[segment].high) for position in passed for segment in position}
        cuts = [StreamCut("", "", position) for position in passed]
        return reduce(lambda one, other: earliest(one, other, ranges), cuts).positions
    except (errors.InvalidStreamCutError, errors.EpochGoneError):
        return {}


def joined(positions: Iterable[Cut], history: EpochHistory) -> tuple[SegmentPosition, ...]:
    """The first cut, among those with the segments of one epoch, that lies at or after all of the positions: of the
    newest epoch to which a segment of theirs belongs, as keys may have been joined and split again in between."""
    furthest: dict[int, int] = {}
    for position in positions:
        for segment, offset in position.items():
            furthest[segment] = max(furthest.get(segment, 0), offset)
    newest = max(map(segment_epoch, furthest), default=0)
    newest = max(newest, history.first)  # what is forgotten lies before all others
    return tuple(
        SegmentPosition(piece.id, piece.low, piece.high, furthest.get(piece.id, 0)) for piece in history.epoch(newest)
    )


_WRITER = UUID("6e616469-2d77-8174-8572-6d61726b7321").bytes  # of all controllers: one attribute for each mark stream
_FEW_BYTES = 64 * limits.KIB


@dataclass(frozen=True, slots=True)
class MarkEntry:
    """A watermark and where in the mark stream it begins and ends."""

    start: int
    end: int
    watermark: Watermark


@dataclass(frozen=True, slots=True)
class MarkRange:
    """Where the entries begin and end, what the attribute says (NO_VERSION: nothing), and the newest entry."""

    start: int
    end: int
    mark: int
    newest: MarkEntry | None


class MarkStream:
    """Has one watermark per event, the newest last. Its attribute says where to start reading: at the entry before the
    newest. An entry is added only where the stream was believed to end, so of two computed alike only one is stored.
    segment: the name of its only segment."""

    def __init__(self, segments: Segments, segment: str) -> None:
        self._segments = segments
        self._segment = segment

    async def extent(self) -> MarkRange:
        command = wire.GetStreamSegmentInfo(self._segments.request_id(), self._segment, "")
        info = await self._segments.ask(command, wire.StreamSegmentInfo)
        if not info.exists:
            raise errors.SegmentNotFoundError(self._segment)
        asked = wire.GetSegmentAttribute(self._segments.request_id(), self._segment, REVISION_MARK, "")
        mark = (await self._segments.ask(asked, wire.SegmentAttribute)).value
        start, end = info.start_offset, info.write_offset
        newest = None
        async for entry in self.entries(mark if start <= mark < end else start, end):
            newest = entry
        return MarkRange(start, end, mark, newest)

    async def entries(self, start: int, end: int) -> AsyncGenerator[MarkEntry, None]:
        """The entries between two offsets at which entries start; ProtocolError if anything else is there."""
        held = bytearray()
        at = offset = start
        while offset < end:
            count = min(end - offset, _FEW_BYTES if offset == start else limits.READ_REPLY_MAX_BYTES)
            command = wire.ReadSegment(self._segment, offset, count, "", self._segments.request_id())
            data = (await self._segments.ask(command, wire.SegmentRead)).data
            if not data:
                raise errors.ProtocolError(f"{self._segment} has no bytes at offset {offset:,}: it ends before {end:,}")
            held += data
            offset += len(data)
            while len(held) >= HEADER_BYTES:
                kind, length = HEADER.unpack_from(held)
                if kind != 0 or length < 0:
                    raise errors.ProtocolError(f"no entry begins at offset {at:,} of {self._segment}")
                size = HEADER_BYTES + length
                if len(held) < size:
                    break
                yield MarkEntry(at, at + size, decode_watermark(bytes(held[HEADER_BYTES:size])))
                at += size
                del held[:size]

    async def add(self, watermark: Watermark, extent: MarkRange) -> MarkRange | None:
        """Store the watermark after the newest known one; return None if another was stored there meanwhile."""
        setup = wire.SetupAppend(self._segments.request_id(), _WRITER, self._segment, "")
        last = (await self._segments.ask(setup, wire.AppendSetup)).last_event_number
        data = memoryview(encode_watermark(watermark))
        append = wire.ConditionalAppend(_WRITER, max(last, 0) + 1, extent.end, 0, data, self._segments.request_id())
        reply = await self._segments.ask(
            append, wire.DataAppended, wire.ConditionalCheckFailed, wire.InvalidEventNumber
        )
        if not isinstance(reply, wire.DataAppended):
            return None
        before = extent.newest.start if extent.newest is not None else extent.start
        if before != extent.mark:
            change = wire.UpdateSegmentAttribute(
                self._segments.request_id(), self._segment, REVISION_MARK, before, extent.mark, ""
            )
            await self._segments.ask(change, wire.SegmentAttributeUpdated)
        entry = MarkEntry(extent.end, extent.end + HEADER_BYTES + len(data), watermark)
        return MarkRange(extent.start, entry.end, before, entry)


log = logging.getLogger(__name__)


class InvalidTimeError(errors.InvalidArgumentError):
    """The writer has noted a later time already."""


def check_writer(writer: str) -> None:
    if not 0 < len(writer) <= limits.NAME_MAX_CHARS:
        raise errors.InvalidArgumentError(
            f"a writer id has 1 to {limits.NAME_MAX_CHARS} characters, not {len(writer):,}"
        )


async def note(
    flow: Workflows, name: StreamName, writer: str, time: int, position: Cut, steps: Sequence[Step] | None = None
) -> bool:
    """Record a mark; InvalidTimeError or InvalidStreamCutError for one that lies before the writer's last. Return
    whether it has so many steps that watermarks should be made of them."""
    check_writer(writer)
    new = [(time, dict(position))] if steps is None else [step for step in steps if step[1]]
    if len(new) > limits.NOTED_STEPS_MAX or any(a > b for a, b in pairwise([*(at for at, _ in new), time])):
        raise errors.InvalidArgumentError(
            f"a writer notes up to {limits.NOTED_STEPS_MAX} steps, in order, before its time"
        )
    await flow.metadata.stream(name)
    history = await flow.metadata.history(name)
    if any(history.is_unknown(segment) for _, at in [(time, position), *new] for segment in at):
        raise errors.InvalidStreamCutError(f"the position of writer {writer} names a segment that {name} never had")
    is_first, kept = False, new

    async def noted(held: WriterMark | None) -> WriterMark:
        nonlocal is_first, kept
        is_first, kept = held is None, new
        if held is not None:
            if time < held.time:
                raise InvalidTimeError(f"writer {writer} has noted the time {held.time} already, which is after {time}")
            for segment, offset in held.position.items():
                if position.get(segment, offset) < offset:
                    raise errors.InvalidStreamCutError(
                        f"writer {writer} was at offset {offset:,} of segment {segment} already"
                    )
            kept = [*held.steps, *new]
        if len(kept) > 2 * limits.NOTED_STEPS_MAX:  # another writer keeps watermarks back
            kept = [*kept[:-1:2], kept[-1]]
        return WriterMark(time, dict(position), steps=tuple(kept))

    table = flow.metadata.marks(name)
    await table.change(writer, f"the mark of writer {writer} in {name}", noted)
    if not name.stream.startswith("_") and (is_first or await flow.metadata.timed.get(name.key) is None):
        # after the mark is stored: a round that finds none strikes the stream off, and looks once more
        await flow.metadata.timed.put(name.key, ListedMark(), ANY_VERSION)
    if await flow.metadata.find_stream(name) is None:  # deleted meanwhile, perhaps before the mark was stored
        await table.remove([writer])
        await table.drop(must_be_empty=True)
        raise errors.StreamNotFoundError(*name)
    return len(kept) > limits.NOTED_STEPS_MAX


async def remove_writer(flow: Workflows, name: StreamName, writer: str) -> None:
    """Stop the writer from holding the watermark back; its last mark still counts until it is passed."""
    await flow.metadata.stream(name)
    if not 0 < len(writer) <= limits.NAME_MAX_CHARS:
        raise errors.WriterNotFoundError(name.key, writer)

    async def removed(held: WriterMark | None) -> WriterMark:
        if held is None:
            raise errors.WriterNotFoundError(name.key, writer)
        return replace(held, alive=False)

    await flow.metadata.marks(name).change(writer, f"the mark of writer {writer} in {name}", removed)


async def note_commits(
    flow: Workflows, name: StreamName, transactions: Mapping[str, TransactionRecord], positions: Mapping[str, Cut]
) -> None:
    """Note the commit times of transactions that have one, the latest per writer, at where they were merged."""
    latest: dict[str, tuple[int, str]] = {}
    for text, txn in transactions.items():
        if txn.writer_id and txn.commit_time is not None:
            latest[txn.writer_id] = max(latest.get(txn.writer_id, (txn.commit_time, text)), (txn.commit_time, text))
    for writer, (time, text) in latest.items():
        try:
            await note(flow, name, writer, time, positions[text])
        except errors.InvalidArgumentError as error:  # the commit stands; only its time says nothing new
            log.info("the commit time of transaction %s of %s is ignored: %s", text, name, error)


_EPOCHS_SURE = 2
_TRIES = 5  # while truncations delete segments that are being asked for


async def cut_at(flow: Workflows, name: StreamName, at: int, clock: int = ARRIVAL) -> Cut:
    """The cut before which nothing of that time or later lies: the head if the time is before it. Of ARRIVAL it is the
    tail for a moment in the future, and otherwise always the same, until it is truncated away. Of an EARLIEST clock it
    is the cut behind which nothing of an earlier time lies."""
    for _ in range(_TRIES):
        head = (await flow.metadata.stream(name)).value.head
        history = await flow.metadata.history(name)
        try:
            look = _Look(flow, name, history, head, at, clock)
            return await (look.cut_behind() if is_earliest(clock) else look.cut())
        except errors.SegmentNotFoundError:
            if (await flow.metadata.stream(name)).value.head == head:
                raise
    raise errors.UnavailableError(f"{name} is being truncated again and again: try again")


class _Look:
    """One search for the cut of a moment. Segments before the head may be gone, and count as sealed long ago. It moves
    as a reader does: from the segments of an epoch, over those that were sealed by then, to their successors. A segment
    that can't start yet, because a scale was in progress, is in the cut at -1. Replaced segments took events a little
    longer than their scale was planned: so it starts at the newest epoch of that time, goes back while a replaced
    segment was still open, and one epoch further, because committing older transactions makes two epochs at once, whose
    segments are not sealed in epoch order."""

    def __init__(
        self, flow: Workflows, name: StreamName, history: EpochHistory, head: Cut, at: int, clock: int
    ) -> None:
        self._segments, self._name, self._history, self._at, self._clock = flow.segments, name, history, at, clock
        self._head, self._is_before_head = head, history.passed(head)
        self._found: dict[int, tuple[int, bool]] = {}  # segment: where it stood, and whether it was sealed

    async def cut(self) -> Cut:
        frontier = Frontier((piece.as_range for piece in self._history.epoch(await self._first_epoch())), ())
        look = list(frontier.active)
        while look:
            await self._ask(look)
            sealed = [segment for segment in look if self._found[segment][1]]
            look = []
            for segment in sealed:
                successors = [new.as_range for new, _ in self._history.successors(segment)]
                if successors:
                    look += [begun.segment_id for begun in frontier.complete(segment, successors)]
        return frontier.positions({segment: offset for segment, (offset, _) in self._found.items()})

    async def cut_behind(self) -> Cut:
        """The first cut of one epoch's segments behind which no earlier event lies."""
        first, last = self._lowest_epoch(), self._history.newest
        ids = {segment.id for epoch in range(first, last + 1) for segment in self._history.epoch(epoch)}
        await self._ask(ids)
        begun = {
            segment: self._found[segment][0] for segment in ids if self._found[segment][0] > self._head.get(segment, 0)
        }
        positions = [begun, self._head or {segment.id: 0 for segment in self._history.epoch(first)}]
        return {place.segment_id: place.offset for place in joined(positions, self._history)}

    def _lowest_epoch(self) -> int:
        return min(self._history.span(self._head).values()) if self._head else self._history.first

    async def _first_epoch(self) -> int:
        """An epoch before whose segments there is nothing of that time or later."""
        lowest = self._lowest_epoch()
        if self._clock != ARRIVAL:
            return lowest
        epoch = first = self._history.epoch_at(self._at)
        sure = 0
        while epoch > lowest and sure < _EPOCHS_SURE:
            replaced = self._history.change(epoch).removed
            await self._ask(replaced)
            epoch -= 1
            if all(self._found[segment][1] for segment in replaced):
                sure += 1
            else:
                first, sure = epoch, 0
        return max(first, lowest)

    async def _ask(self, segments: Iterable[int]) -> None:
        async def one(segment: int) -> None:
            if self._is_before_head(segment):
                self._found[segment] = 0, True
            else:
                offset, was_sealed = await self._segments.locate_moment(
                    self._name.segment(segment), self._at, self._clock
                )
                self._found[segment] = max(offset, self._head.get(segment, 0)), was_sealed

        await together(one(segment) for segment in segments if segment not in self._found)


_PASSED_STEPS = 8  # of a writer, that stay for the time being
Marks = dict[str, Versioned[WriterMark]]  # by writer


class WatermarkRounds:
    """Makes watermarks every few seconds, of the streams whose writers note times: these are kept in a table until none
    of their writers counts any more. Changes are conditional on what was read. A store that doesn't answer holds up the
    streams whose marks it has, and costs a round one wait. A restart gives a stalled writer the full timeout again."""

    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self._table = flow.metadata.timed
        self._token = b""  # where the next round continues
        self._waiting: dict[str, dict[str, tuple[int, int]]] = {}  # stream: writer: its mark's version, since when
        self._complaints = Complaints(log, "no watermarks are made for %s")

    async def round(self) -> None:
        left = limits.WATERMARK_STREAMS_A_ROUND
        away: dict[str, errors.UnavailableError] = {}  # by store: what came of asking it in this round
        while left > 0:
            found, self._token = await self._table.page(self._token, left)
            if not found:
                self._token = b""
                break
            left -= len(found)
            for key, _ in found:
                name = StreamName.of(key)
                try:
                    await self.look_at(name, away)
                    self._complaints.settled(key)
                except errors.UnavailableError:
                    raise  # what has the records is away, for all streams
                except Exception as error:
                    if await self._flow.metadata.find_stream(name) is not None:  # else it was deleted meanwhile
                        self._complaints.tell(key, error)
        if away:
            raise next(iter(away.values()))

    async def look_at(self, name: StreamName, away: dict[str, errors.UnavailableError] | None = None) -> None:
        """Make the watermarks of a stream that are due. away: the stores that don't answer, by place."""
        away = {} if away is None else away
        metadata = self._flow.metadata
        found = await metadata.find_stream(name)
        marks = await self._marks(name) if found is not None else {}
        if found is None or not marks:
            await self._strike_off(name)
            return
        history = await metadata.history(name)
        mark_segment = (await metadata.stream(name.mark)).value.segments[0].id
        place = self._flow.segments.place_of(name.mark.segment(mark_segment))
        if place in away:
            return
        try:
            await self._judge(name, found.value, history, marks, mark_segment)
        except errors.UnavailableError as error:
            away[place] = error

    async def _judge(
        self, name: StreamName, stream: StreamRecord, history: EpochHistory, marks: Marks, mark_segment: int
    ) -> None:
        table = self._flow.metadata.marks(name)
        mark_stream = MarkStream(self._flow.segments, name.mark.segment(mark_segment))
        extent = await mark_stream.extent()
        now_ms, before = self._flow.clock.monotonic_ms(), self._waiting.get(name.key, {})
        since_ms = {w: since for w, (version, since) in before.items() if w in marks and marks[w].version == version}
        verdict = judge(
            {writer: mark.value for writer, mark in marks.items()},
            extent.newest.watermark if extent.newest is not None else None,
            history,
            timeout_ms=stream.config.timestamp_aggregation_timeout_ms,
            waited_ms={writer: now_ms - since for writer, since in since_ms.items()},
        )
        self._waiting.pop(name.key, None)
        if verdict.waited_for:
            self._waiting[name.key] = {w: (marks[w].version, since_ms.get(w, now_ms)) for w in verdict.waited_for}
        later: MarkRange | None = extent
        for watermark in verdict.watermarks:
            if later is None:  # one was stored meanwhile, by a try without answer
                break
            later = await mark_stream.add(watermark, later)
        if verdict.watermarks and later is not None:
            staying = {writer: mark for writer, mark in marks.items() if writer not in verdict.dropped}
            await self._forget_steps(table, staying, verdict.watermarks[-1].lower)
            if stream.head:
                await self._trim(name, stream.head, history, mark_stream, later)
        for writer in verdict.dropped:
            await table.remove_if((writer, marks[writer].version))
        if len(verdict.dropped) == len(marks):
            await self._strike_off(name)

    async def _forget_steps(self, table: RecordTable[WriterMark], marks: Marks, lower: int) -> None:
        """Those that no later watermark needs: of each writer, all before its last up to that time."""
        for writer, (mark, version) in marks.items():
            passed = sum(time <= lower for time, _ in mark.steps)
            if passed > _PASSED_STEPS:
                with suppress(errors.ConditionFailedError):  # it noted a time meanwhile: the next round does it
                    await table.put(writer, replace(mark, steps=mark.steps[passed - 1 :]), version)

    async def _marks(self, name: StreamName) -> Marks:
        marks: Marks = {}
        async for writer, mark in self._flow.metadata.marks(name).scan():
            if len(marks) == (most := limits.WATERMARK_WRITERS_MAX):
                raise errors.InvalidArgumentError(
                    f"more than {most:,} writers note times in {name}: give them ids that they keep"
                )
            marks[writer] = mark
        return marks

    async def _strike_off(self, name: StreamName) -> None:
        """Stop the stream's rounds, unless a mark was stored before it was struck off."""
        self._waiting.pop(name.key, None)
        await self._table.remove([name.key])
        first, _ = await self._flow.metadata.marks(name).page(count=1)
        if first and await self._flow.metadata.find_stream(name) is not None:
            await self._table.put(name.key, ListedMark(), ANY_VERSION)

    async def _trim(
        self, name: StreamName, head: Cut, history: EpochHistory, marks: MarkStream, extent: MarkRange
    ) -> None:
        """Drop the watermarks that no reader of the stream's remaining data can need: of those whose cut lies before
        the stream's head, all but the last."""
        keep = extent.start
        async with aclosing(marks.entries(extent.start, extent.mark)) as entries:
            async for entry in entries:
                if not history.is_at_or_after(head, entry.watermark.positions()):
                    break
                keep = entry.start

        async def begin() -> TruncateWork | None:
            mark = await self._flow.metadata.open_stream(name.mark)
            segment = mark.segments[0].id
            return TruncateWork({segment: keep}, ()) if keep > mark.head.get(segment, 0) else None

        if keep > extent.start:
            with suppress(errors.StreamNotFoundError):  # deleted with its stream
                await self._flow.run(name.mark, begin)
