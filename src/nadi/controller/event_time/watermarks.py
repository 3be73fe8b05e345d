"""What follows from the marks of a stream's writers: the next watermarks, and which writers no longer count. `judge` is
pure; `watermark_rounds` carries it out.

A writer takes part once its time is past the previous watermark. A stalled one holds the next watermark back for as
long as the stream's configuration allows (not at all by default) unless it was removed; then it is dropped.

The last watermark is that of the least time that a writer has noted. Others come before it for earlier times at which
writers made steps, if some bytes lie between one's cut and the next. The cut of a time lies at or after the first
position of each writer that it noted with that time or a later one, and at or after the previous cut. So the lower
bounds grow, the cuts never go back, and what writers noted up to `lower` lies before the cut. The floor lies at or
before the last step of each writer up to that time, so all events of a later time lie behind it.

A mark stream has one watermark per event, the newest last. Its attribute says where to start reading: at the entry
before the newest. An entry is added only where the stream was believed to end, so of two computed alike only one is
stored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter
from uuid import UUID

from nadi.controller.state.history import Cut, History
from nadi.controller.state.records import Step, WriterMark
from nadi.controller.state.segments import Segments
from nadi.errors import EpochGoneError, InvalidStreamCutError, ProtocolError, SegmentNotFoundError
from nadi.limits import KIB, READ_REPLY_MAX_BYTES, WATERMARKS_A_ROUND
from nadi.model.cutorder import earliest
from nadi.model.framing import HEADER, HEADER_BYTES
from nadi.model.streamcut import StreamCut
from nadi.model.watermark import SegmentPosition, Watermark, decode_watermark, encode_watermark
from nadi.naming import REVISION_MARK, segment_epoch
from nadi.wire import commands as wire

_STEP_BYTES = 4 * KIB  # from one watermark to the next of a round
_WORK_A_ROUND = 200_000  # positions that are compared for a stream's watermarks: 0.1 s


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about a stream: the watermarks to emit, the writers to drop, and those to wait for."""

    watermarks: tuple[Watermark, ...]
    dropped: tuple[str, ...]
    waited_for: tuple[str, ...]


def judge(
    marks: Mapping[str, WriterMark],
    previous: Watermark | None,
    history: History,
    *,
    timeout_ms: int,
    waited_ms: Mapping[str, int],
) -> Verdict:
    """The verdict on the marks, by writer. timeout_ms: how long to wait for a stalled writer; waited_ms: how long
    each has been waited for so far, if at all."""
    behind = {w: mark for w, mark in marks.items() if previous is not None and mark.time <= previous.lower}
    waited_for = tuple(w for w, mark in behind.items() if mark.alive and waited_ms.get(w, 0) < timeout_ms)
    dropped = tuple(writer for writer in behind if writer not in waited_for)
    taking_part = [mark for writer, mark in marks.items() if writer not in behind]
    if waited_for or not taking_part:
        return Verdict((), dropped, waited_for)
    return Verdict(tuple(_made(taking_part, previous, history)), dropped, waited_for)


def _made(marks: Sequence[WriterMark], previous: Watermark | None, history: History) -> Iterator[Watermark]:
    last = min(mark.time for mark in marks)
    first = previous.lower if previous is not None else None
    times = sorted(
        {time for mark in marks for time, _ in mark.steps if time < last and (first is None or time > first)}
    )
    cost = sum(len(mark.position) or 1 for mark in marks)
    most = min(WATERMARKS_A_ROUND, _WORK_A_ROUND // cost) - 1
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
    """The last step of that time, or else the first of a later one; the mark is the last step of all."""
    steps = (*mark.steps, (mark.time, mark.position))
    passed = bisect_right(steps, time, key=itemgetter(0))
    return steps[passed - 1] if passed and steps[passed - 1][0] == time else steps[passed]


def _floor(marks: Sequence[WriterMark], time: int, history: History) -> Cut:
    """A cut that all events of later times lie behind; empty where that is unknown."""
    passed = [next((position for at, position in reversed(mark.steps) if at <= time), {}) for mark in marks]
    try:
        if not all(map(history.is_valid_cut, passed)):
            return {}
        known = history.segments
        ranges = {segment: (known[segment].low, known[segment].high) for position in passed for segment in position}
        cuts = [StreamCut("", "", position) for position in passed]
        return reduce(lambda one, other: earliest(one, other, ranges), cuts).positions
    except (InvalidStreamCutError, EpochGoneError):
        return {}


def joined(positions: Iterable[Cut], history: History) -> tuple[SegmentPosition, ...]:
    """The first cut, among those with the segments of one epoch, that lies at or after all of the positions.

    Its epoch is the newest to which a segment of the positions belongs: segments of several may belong to epochs
    between which their keys were joined and split again.
    """
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
_FEW_BYTES = 64 * KIB


@dataclass(frozen=True, slots=True)
class Entry:
    """A watermark and where in the mark stream it begins and ends."""

    start: int
    end: int
    watermark: Watermark


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the entries begin and end, what the attribute says (NO_VERSION: nothing), and the newest entry."""

    start: int
    end: int
    mark: int
    newest: Entry | None


class MarkStream:
    """segment: the name of its only segment."""

    def __init__(self, segments: Segments, segment: str) -> None:
        self._segments = segments
        self._segment = segment

    async def extent(self) -> Extent:
        command = wire.GetStreamSegmentInfo(self._segments.request_id(), self._segment, "")
        info = await self._segments.ask(command, wire.StreamSegmentInfo)
        if not info.exists:
            raise SegmentNotFoundError(self._segment)
        asked = wire.GetSegmentAttribute(self._segments.request_id(), self._segment, REVISION_MARK, "")
        mark = (await self._segments.ask(asked, wire.SegmentAttribute)).value
        start, end = info.start_offset, info.write_offset
        newest = None
        async for entry in self.entries(mark if start <= mark < end else start, end):
            newest = entry
        return Extent(start, end, mark, newest)

    async def entries(self, start: int, end: int) -> AsyncGenerator[Entry, None]:
        """The entries between two offsets at which entries start; ProtocolError if anything else is there."""
        held = bytearray()
        at = offset = start
        while offset < end:
            count = min(end - offset, _FEW_BYTES if offset == start else READ_REPLY_MAX_BYTES)
            command = wire.ReadSegment(self._segment, offset, count, "", self._segments.request_id())
            data = (await self._segments.ask(command, wire.SegmentRead)).data
            if not data:
                raise ProtocolError(f"{self._segment} has no bytes at offset {offset:,}: it ends before {end:,}")
            held += data
            offset += len(data)
            while len(held) >= HEADER_BYTES:
                kind, length = HEADER.unpack_from(held)
                if kind != 0 or length < 0:
                    raise ProtocolError(f"no entry begins at offset {at:,} of {self._segment}")
                size = HEADER_BYTES + length
                if len(held) < size:
                    break
                yield Entry(at, at + size, decode_watermark(bytes(held[HEADER_BYTES:size])))
                at += size
                del held[:size]

    async def add(self, watermark: Watermark, extent: Extent) -> Extent | None:
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
        entry = Entry(extent.end, extent.end + HEADER_BYTES + len(data), watermark)
        return Extent(extent.start, entry.end, before, entry)
