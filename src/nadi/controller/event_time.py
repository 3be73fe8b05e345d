"""Event time: the marks of each writer, the watermarks derived from them, and the cut at a point in time.

A mark states that all of a writer's events up to a time precede a position. It comes from the writer itself, or from
the commit of one of its transactions; a writer's time and position never decrease. Marks are deleted with their stream.

`decide` derives watermarks from marks without side effects; `WatermarkRounds` carries the result out. A writer takes
part once its time is past the previous watermark. A stalled one delays the next watermark for as long as the stream's
configuration allows (by default not at all), unless it was removed; then it is dropped. The last watermark has the
lowest time that a participating writer has noted; others precede it for steps at earlier times. The cut of a watermark
is at or after each writer's first position noted with that time or a later one, and at or after the previous cut. So
lower bounds increase, cuts never go back, and whatever writers noted up to `lower` precedes the cut. The floor is at or
before each writer's last step up to that time, so all events with later times follow it.
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
from nadi.throttled_log import ProblemLog
from nadi.wire import commands as wire
from nadi.wire.time_index import ARRIVAL, is_earliest

_STEP_BYTES = 4 * limits.KIB  # minimum distance between the watermarks of a round
_WORK_A_ROUND = 200_000  # positions compared for a stream's watermarks: 0.1 s


@dataclass(frozen=True, slots=True)
class WatermarkDecision:
    """A decision about a stream: the watermarks to emit, the writers to drop, and the writers to wait for."""

    watermarks: tuple[Watermark, ...]
    dropped: tuple[str, ...]
    waited_for: tuple[str, ...]


def decide(
    marks: Mapping[str, WriterMark],
    previous: Watermark | None,
    history: EpochHistory,
    *,
    timeout_ms: int,
    waited_ms: Mapping[str, int],
) -> WatermarkDecision:
    """Derive watermarks from the marks by writer. timeout_ms: how long to wait for a stalled writer; waited_ms: how
    long each stalled writer was waited for so far."""
    stalled = {w: mark for w, mark in marks.items() if previous is not None and mark.time <= previous.lower}
    waited_for = tuple(w for w, mark in stalled.items() if mark.alive and waited_ms.get(w, 0) < timeout_ms)
    dropped = tuple(writer for writer in stalled if writer not in waited_for)
    taking_part = [mark for writer, mark in marks.items() if writer not in stalled]
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
    passed: Cut = {}  # by writers whose later positions don't name these segments
    for time in [*times, last]:
        reached = [_reached(mark, time) for mark in marks]
        before = previous.positions() if previous is not None else {}
        cut = joined([*(position for _, position in reached), before, passed], history)
        if time < last and sum(position.offset - before.get(position.segment_id, 0) for position in cut) < _STEP_BYTES:
            passed = {position.segment_id: position.offset for position in cut}
            continue
        upper = max(at for at, _ in reached)
        floor = _floor(marks, time, history)
        if previous is not None:
            upper, floor = max(upper, previous.upper), floor or previous.floor
        previous = Watermark(time, upper, cut, floor)
        yield previous


def _reached(mark: WriterMark, time: int) -> Step:
    """Return the last step at that time, or else the first later one; the mark itself is the last step."""
    steps = (*mark.steps, (mark.time, mark.position))
    passed = bisect_right(steps, time, key=itemgetter(0))
    return steps[passed - 1] if passed and steps[passed - 1][0] == time else steps[passed]


def _floor(marks: Sequence[WriterMark], time: int, history: EpochHistory) -> Cut:
    """Return a cut that precedes all events with later times; empty if unknown."""
    passed = [next((position for at, position in reversed(mark.steps) if at <= time), {}) for mark in marks]
    try:
        if not all(map(history.is_valid_cut, passed)):
            return {}
        known = history.segments
        ranges = {segment: (known[segment].low, known[segment].high) for position in passed for segment in position}
        cuts = [StreamCut("", "", position) for position in passed]
        return reduce(lambda first, second: earliest(first, second, ranges), cuts).positions
    except (errors.InvalidStreamCutError, errors.EpochExpiredError):
        return {}


def joined(positions: Iterable[Cut], history: EpochHistory) -> tuple[SegmentPosition, ...]:
    """Return the first cut at or after all of the positions that consists of the segments of one epoch: the newest
    epoch of any of their segments, as key ranges may have been merged and split again in between."""
    furthest: dict[int, int] = {}
    for position in positions:
        for segment, offset in position.items():
            furthest[segment] = max(furthest.get(segment, 0), offset)
    newest = max(map(segment_epoch, furthest), default=0)
    newest = max(newest, history.first)  # forgotten epochs precede all others
    return tuple(
        SegmentPosition(piece.id, piece.low, piece.high, furthest.get(piece.id, 0)) for piece in history.epoch(newest)
    )


_WRITER = UUID("6e616469-2d77-8174-8572-6d61726b7321").bytes  # shared by all controllers: one per mark stream
_FEW_BYTES = 64 * limits.KIB


@dataclass(frozen=True, slots=True)
class MarkEntry:
    """A watermark with its start and end offsets in the mark stream."""

    start: int
    end: int
    watermark: Watermark


@dataclass(frozen=True, slots=True)
class MarkRange:
    """The range of the entries, the attribute's value (NO_VERSION if unset), and the newest entry."""

    start: int
    end: int
    mark: int
    newest: MarkEntry | None


class MarkStream:
    """A stream of watermarks, one per event, the newest last. Its attribute is the offset where reading should start:
    the entry before the newest. An entry is added only at the expected end, so of two identical ones only one is
    stored. segment: the name of its only segment."""

    def __init__(self, segments: Segments, segment: str) -> None:
        self._segments = segments
        self._segment = segment

    async def extent(self) -> MarkRange:
        command = wire.GetStreamSegmentInfo(self._segments.request_id(), self._segment, "")
        info = await self._segments.ask(command, wire.StreamSegmentInfo)
        if not info.exists:
            raise errors.SegmentNotFoundError(self._segment)
        query = wire.GetSegmentAttribute(self._segments.request_id(), self._segment, REVISION_MARK, "")
        mark = (await self._segments.ask(query, wire.SegmentAttribute)).value
        start, end = info.start_offset, info.write_offset
        newest = None
        async for entry in self.entries(mark if start <= mark < end else start, end):
            newest = entry
        return MarkRange(start, end, mark, newest)

    async def entries(self, start: int, end: int) -> AsyncGenerator[MarkEntry, None]:
        """Yield the entries between two offsets of entries; ProtocolError if anything else is found."""
        buffer = bytearray()
        at = offset = start
        while offset < end:
            count = min(end - offset, _FEW_BYTES if offset == start else limits.READ_REPLY_MAX_BYTES)
            command = wire.ReadSegment(self._segment, offset, count, "", self._segments.request_id())
            data = (await self._segments.ask(command, wire.SegmentRead)).data
            if not data:
                raise errors.ProtocolError(f"{self._segment} ends at offset {offset:,}, before its end at {end:,}")
            buffer += data
            offset += len(data)
            while len(buffer) >= HEADER_BYTES:
                kind, length = HEADER.unpack_from(buffer)
                if kind != 0 or length < 0:
                    raise errors.ProtocolError(f"{self._segment} has an invalid entry at offset {at:,}")
                size = HEADER_BYTES + length
                if len(buffer) < size:
                    break
                yield MarkEntry(at, at + size, decode_watermark(bytes(buffer[HEADER_BYTES:size])))
                at += size
                del buffer[:size]

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
    """The writer has already noted a later time."""


def check_writer(writer: str) -> None:
    if not 0 < len(writer) <= limits.NAME_MAX_CHARS:
        raise errors.InvalidArgumentError(
            f"the writer id has {len(writer):,} characters: give 1 to {limits.NAME_MAX_CHARS}"
        )


async def note(
    flow: Workflows, name: StreamName, writer: str, time: int, position: Cut, steps: Sequence[Step] | None = None
) -> bool:
    """Record a mark; InvalidTimeError or InvalidStreamCutError if it precedes the writer's last. Return whether it has
    enough steps for watermarks to be made at once."""
    check_writer(writer)
    new = [(time, dict(position))] if steps is None else [step for step in steps if step[1]]
    if len(new) > limits.TIME_STEPS_MAX or any(a > b for a, b in pairwise([*(at for at, _ in new), time])):
        raise errors.InvalidArgumentError(
            f"the steps of writer {writer} are out of order or too many: note up to {limits.TIME_STEPS_MAX} in order"
        )
    await flow.metadata.stream(name)
    history = await flow.metadata.history(name)
    if any(history.is_unknown(segment) for _, at in [(time, position), *new] for segment in at):
        raise errors.InvalidStreamCutError(f"the position of writer {writer} has a segment that {name} never had")
    is_first, retained = False, new

    async def noted(previous: WriterMark | None) -> WriterMark:
        nonlocal is_first, retained
        is_first, retained = previous is None, new
        if previous is not None:
            if time < previous.time:
                raise InvalidTimeError(f"writer {writer} has already noted a later time, {previous.time}, than {time}")
            for segment, offset in previous.position.items():
                if position.get(segment, offset) < offset:
                    raise errors.InvalidStreamCutError(
                        f"writer {writer} has already noted offset {offset:,} of segment {segment}: it can't go back"
                    )
            retained = [*previous.steps, *new]
        if len(retained) > 2 * limits.TIME_STEPS_MAX:  # another writer delays watermarks
            retained = [*retained[:-1:2], retained[-1]]
        return WriterMark(time, dict(position), steps=tuple(retained))

    table = flow.metadata.marks(name)
    await table.change(writer, f"the mark of writer {writer} in {name}", noted)
    if not name.stream.startswith("_") and (is_first or await flow.metadata.timed.get(name.key) is None):
        # after the mark is stored, since a round that finds no marks unlists the stream and checks once more
        await flow.metadata.timed.put(name.key, ListedMark(), ANY_VERSION)
    if await flow.metadata.find_stream(name) is None:  # deleted meanwhile, perhaps before the mark was stored
        await table.remove([writer])
        await table.delete(must_be_empty=True)
        raise errors.StreamNotFoundError(*name)
    return len(retained) > limits.TIME_STEPS_MAX


async def remove_writer(flow: Workflows, name: StreamName, writer: str) -> None:
    """Stop the writer from delaying watermarks; its last mark still counts until a watermark passes it."""
    await flow.metadata.stream(name)
    if not 0 < len(writer) <= limits.NAME_MAX_CHARS:
        raise errors.WriterNotFoundError(name.key, writer)

    async def removed(mark: WriterMark | None) -> WriterMark:
        if mark is None:
            raise errors.WriterNotFoundError(name.key, writer)
        return replace(mark, alive=False)

    await flow.metadata.marks(name).change(writer, f"the mark of writer {writer} in {name}", removed)


async def note_commits(
    flow: Workflows, name: StreamName, transactions: Mapping[str, TransactionRecord], positions: Mapping[str, Cut]
) -> None:
    """Note the commit times of transactions, the latest per writer, at the positions where they were merged."""
    latest: dict[str, tuple[int, str]] = {}
    for text, txn in transactions.items():
        if txn.writer_id and txn.commit_time is not None:
            latest[txn.writer_id] = max(latest.get(txn.writer_id, (txn.commit_time, text)), (txn.commit_time, text))
    for writer, (time, text) in latest.items():
        try:
            await note(flow, name, writer, time, positions[text])
        except errors.InvalidArgumentError as error:  # the commit is valid; only its time adds nothing
            log.info("the commit time of transaction %s of %s is ignored: %s", text, name, error)


_EPOCHS_SURE = 2
_TRIES = 5  # while truncations delete the segments in question


async def cut_at(flow: Workflows, name: StreamName, at: int, clock: int = ARRIVAL) -> Cut:
    """Return the cut at a time: nothing before it has that time or a later one; the head if the time precedes it. By
    ARRIVAL it is the tail for a future time, and otherwise always the same until it is truncated. By an EARLIEST clock
    it is the cut after which no event has an earlier time."""
    for _ in range(_TRIES):
        head = (await flow.metadata.stream(name)).value.head
        history = await flow.metadata.history(name)
        try:
            search = _TimeCutSearch(flow, name, history, head, at, clock)
            return await (search.cut_by_event_time() if is_earliest(clock) else search.cut())
        except errors.SegmentNotFoundError:
            if (await flow.metadata.stream(name)).value.head == head:
                raise
    raise errors.UnavailableError(f"{name} is being truncated repeatedly: try again")


class _TimeCutSearch:
    """A search for the cut at a point in time. Segments before the head may be deleted and count as sealed. It proceeds
    like a reader: from the segments of an epoch, past those sealed by then, to their successors. A segment that
    couldn't be read yet, because a scale was in progress, is in the cut at -1. Replaced segments took events slightly
    after their scale was planned, so the search starts at the newest epoch of that time, goes back while a replaced
    segment was still open, and one epoch further, because committing older transactions makes two epochs at once, whose
    segments are not sealed in epoch order."""

    def __init__(
        self, flow: Workflows, name: StreamName, history: EpochHistory, head: Cut, at: int, clock: int
    ) -> None:
        self._segments, self._name, self._history, self._at, self._clock = flow.segments, name, history, at, clock
        self._head, self._is_before_head = head, history.passed(head)
        self._located: dict[int, tuple[int, bool]] = {}  # by segment: its offset then, and whether it was sealed

    async def cut(self) -> Cut:
        frontier = Frontier((piece.as_range for piece in self._history.epoch(await self._first_epoch())), ())
        pending = list(frontier.active)
        while pending:
            await self._ask(pending)
            sealed = [segment for segment in pending if self._located[segment][1]]
            pending = []
            for segment in sealed:
                successors = [new.as_range for new, _ in self._history.successors(segment)]
                if successors:
                    pending += [entered.segment_id for entered in frontier.complete(segment, successors)]
        return frontier.positions({segment: offset for segment, (offset, _) in self._located.items()})

    async def cut_by_event_time(self) -> Cut:
        """Return the first cut of one epoch's segments that precedes no earlier event."""
        first, last = self._lowest_epoch(), self._history.newest
        ids = {segment.id for epoch in range(first, last + 1) for segment in self._history.epoch(epoch)}
        await self._ask(ids)
        reached = {
            segment: self._located[segment][0]
            for segment in ids
            if self._located[segment][0] > self._head.get(segment, 0)
        }
        positions = [reached, self._head or {segment.id: 0 for segment in self._history.epoch(first)}]
        return {position.segment_id: position.offset for position in joined(positions, self._history)}

    def _lowest_epoch(self) -> int:
        return min(self._history.span(self._head).values()) if self._head else self._history.first

    async def _first_epoch(self) -> int:
        """Return an epoch before which nothing has that time or a later one."""
        lowest = self._lowest_epoch()
        if self._clock != ARRIVAL:
            return lowest
        epoch = first = self._history.epoch_at(self._at)
        sure = 0
        while epoch > lowest and sure < _EPOCHS_SURE:
            replaced = self._history.change(epoch).removed
            await self._ask(replaced)
            epoch -= 1
            if all(self._located[segment][1] for segment in replaced):
                sure += 1
            else:
                first, sure = epoch, 0
        return max(first, lowest)

    async def _ask(self, segments: Iterable[int]) -> None:
        async def locate(segment: int) -> None:
            if self._is_before_head(segment):
                self._located[segment] = 0, True
            else:
                offset, was_sealed = await self._segments.locate_moment(
                    self._name.segment(segment), self._at, self._clock
                )
                self._located[segment] = max(offset, self._head.get(segment, 0)), was_sealed

        await together(locate(segment) for segment in segments if segment not in self._located)


_PASSED_STEPS = 8  # of a writer, retained for the time being
Marks = dict[str, Versioned[WriterMark]]  # by writer


class WatermarkRounds:
    """Makes watermarks every few seconds for streams whose writers note times; these are listed in a table until none
    of their writers counts any more. Changes are conditional on the state read. An unreachable store delays only the
    streams whose marks it has, and costs each round one timeout. A restart restarts a stalled writer's timeout."""

    def __init__(self, flow: Workflows) -> None:
        self._flow = flow
        self._table = flow.metadata.timed
        self._token = b""  # where the next round continues
        self._waiting: dict[str, dict[str, tuple[int, int]]] = {}  # stream: writer: its mark's version, since when
        self._problems = ProblemLog(log, "no watermarks are made for %s")

    async def round(self) -> None:
        remaining = limits.WATERMARK_STREAMS_A_ROUND
        unreachable: dict[str, errors.UnavailableError] = {}  # unreachable stores of this round
        while remaining > 0:
            page, self._token = await self._table.page(self._token, remaining)
            if not page:
                self._token = b""
                break
            remaining -= len(page)
            for key, _ in page:
                name = StreamName.of(key)
                try:
                    await self.check_stream(name, unreachable)
                    self._problems.settled(key)
                except errors.UnavailableError:
                    raise  # the store with the records is unreachable, for all streams
                except Exception as error:
                    if await self._flow.metadata.find_stream(name) is not None:  # else it was deleted meanwhile
                        self._problems.report(key, error)
        if unreachable:
            raise next(iter(unreachable.values()))

    async def check_stream(
        self, name: StreamName, unreachable: dict[str, errors.UnavailableError] | None = None
    ) -> None:
        """Make the watermarks of a stream that are due. unreachable: the stores' errors, by location."""
        unreachable = {} if unreachable is None else unreachable
        metadata = self._flow.metadata
        record = await metadata.find_stream(name)
        marks = await self._marks(name) if record is not None else {}
        if record is None or not marks:
            await self._unlist(name)
            return
        history = await metadata.history(name)
        mark_segment = (await metadata.stream(name.mark)).value.segments[0].id
        location = self._flow.segments.place_of(name.mark.segment(mark_segment))
        if location in unreachable:
            return
        try:
            await self._decide(name, record.value, history, marks, mark_segment)
        except errors.UnavailableError as error:
            unreachable[location] = error

    async def _decide(
        self, name: StreamName, stream: StreamRecord, history: EpochHistory, marks: Marks, mark_segment: int
    ) -> None:
        table = self._flow.metadata.marks(name)
        mark_stream = MarkStream(self._flow.segments, name.mark.segment(mark_segment))
        extent = await mark_stream.extent()
        now_ms, waiting = self._flow.clock.monotonic_ms(), self._waiting.get(name.key, {})
        since_ms = {w: since for w, (version, since) in waiting.items() if w in marks and marks[w].version == version}
        decision = decide(
            {writer: mark.value for writer, mark in marks.items()},
            extent.newest.watermark if extent.newest is not None else None,
            history,
            timeout_ms=stream.config.timestamp_aggregation_timeout_ms,
            waited_ms={writer: now_ms - since for writer, since in since_ms.items()},
        )
        self._waiting.pop(name.key, None)
        if decision.waited_for:
            self._waiting[name.key] = {w: (marks[w].version, since_ms.get(w, now_ms)) for w in decision.waited_for}
        later: MarkRange | None = extent
        for watermark in decision.watermarks:
            if later is None:  # another was stored meanwhile, by an attempt without a reply
                break
            later = await mark_stream.add(watermark, later)
        if decision.watermarks and later is not None:
            staying = {writer: mark for writer, mark in marks.items() if writer not in decision.dropped}
            await self._forget_steps(table, staying, decision.watermarks[-1].lower)
            if stream.head:
                await self._trim(name, stream.head, history, mark_stream, later)
        for writer in decision.dropped:
            await table.remove_if((writer, marks[writer].version))
        if len(decision.dropped) == len(marks):
            await self._unlist(name)

    async def _forget_steps(self, table: RecordTable[WriterMark], marks: Marks, lower: int) -> None:
        """Delete steps that no later watermark needs: each writer's steps before its last one up to that time."""
        for writer, (mark, version) in marks.items():
            passed = sum(time <= lower for time, _ in mark.steps)
            if passed > _PASSED_STEPS:
                with suppress(errors.ConditionFailedError):  # noted a time meanwhile: left to the next round
                    await table.put(writer, replace(mark, steps=mark.steps[passed - 1 :]), version)

    async def _marks(self, name: StreamName) -> Marks:
        marks: Marks = {}
        async for writer, mark in self._flow.metadata.marks(name).scan():
            if len(marks) == (most := limits.WATERMARK_WRITERS_MAX):
                raise errors.InvalidArgumentError(
                    f"more than {most:,} writers note times in {name}: give writers stable ids"
                )
            marks[writer] = mark
        return marks

    async def _unlist(self, name: StreamName) -> None:
        """Unlist the stream, unless a mark is stored at the same time."""
        self._waiting.pop(name.key, None)
        await self._table.remove([name.key])
        first, _ = await self._flow.metadata.marks(name).page(count=1)
        if first and await self._flow.metadata.find_stream(name) is not None:
            await self._table.put(name.key, ListedMark(), ANY_VERSION)

    async def _trim(
        self, name: StreamName, head: Cut, history: EpochHistory, marks: MarkStream, extent: MarkRange
    ) -> None:
        """Truncate watermarks that no reader of the stream's remaining data can need: all but the last of those whose
        cut is before the stream's head."""
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
