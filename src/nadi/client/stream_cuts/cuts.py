"""Create, check, compare and measure stream cuts: `manager.cuts(scope, stream)`.

The end of a sealed segment and the start of its successors are the same boundary, so cuts are settled before they are
compared: advanced past finished segments like a reader. Every cut made here is legal as defined by
`nadi.model.frontier`. Events are counted from their headers, block by block.

A cut `n` events before another: events can only be walked forwards, because each header contains the event's size. So
the search starts some bytes before the end, where the store locates the next event (LocateOffset) and lists the sizes
of the events from there on (ListEventSizes), without their bytes; if these are too few, it starts further back.

Events of different segments are ordered only by time. So the last events of each segment are found, and the latest of
these are chosen by the segments' time indexes; within the indexes' resolution of about ten seconds, each segment
contributes an equal share. If all segments of an epoch have too few, the segments of the previous epoch are added, and
all events behind them are included. Such a cut is legal, because an epoch's segments together cover all keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime

from nadi.client.control.arguments import check_strings, checked
from nadi.client.reading.boundary import check_boundary, check_cut, frontier_at, segment_ranges, segments_between
from nadi.client.reading.damage import SKIP
from nadi.client.reading.segment_range import event_places, read_segment_range
from nadi.client.reading.watermarks import cut_after, cut_before
from nadi.client.segments.info import SegmentInfo, map_concurrently, segment_info, stream_info
from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts.arrival_times import UNKNOWN, arrival_times
from nadi.client.stream_cuts.bookmark_store import Bookmarks
from nadi.client.stream_cuts.segment_ends import SegmentEnds, pass_finished
from nadi.client.stream_cuts.timestamps import (
    HEAD,
    TAIL,
    event_moment,
    is_moment,
    moment_ms,
    moment_of,
    time_ms,
    time_us,
)
from nadi.errors import (
    BookmarkNotFoundError,
    EpochExpiredError,
    InvalidArgumentError,
    InvalidStreamCutError,
    PastEndError,
    SegmentNotFoundError,
    TruncatedError,
)
from nadi.limits import EVENT_TIME_MAX, EVENT_TIME_MIN, KIB
from nadi.model import cutorder
from nadi.model.cutorder import CutOrder, KeyRanges
from nadi.model.event_time import EventTime
from nadi.model.frontier import Frontier
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch, segment_name
from nadi.wire import commands as wire
from nadi.wire.time_index import Numbers, clock_of, earliest_of

_FIRST_REACH_BYTES = 4 * KIB
_USUAL_EVENT_BYTES = 256
_REACH_FACTOR = 4  # how much further back to start after finding too few events
_SAME_TIME_MS = 10_000  # resolution of the time index
_TO_ITS_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _LastEvents:
    """The last events of a segment before `end`: their offsets and upper bounds of their arrival times."""

    offsets: Numbers
    arrival_times: Numbers
    end: int

    def start_of(self, count: int) -> int:
        return int(self.offsets[-count]) if count else self.end


async def cut_before_events(stores: SegmentStores, head: StreamCut, cut: StreamCut, events: int) -> StreamCut:
    """Return the cut `events` events before the settled `cut`; `head` if there are fewer."""
    last_events: dict[int, _LastEvents] = {}
    level = dict(cut.positions)
    epoch = max(map(segment_epoch, level))
    first_epoch = min(map(segment_epoch, head.positions))
    while True:
        try:
            new = {segment: end for segment, end in level.items() if end >= 0 and segment not in last_events}
            ends = await map_concurrently(new.items(), lambda item: _last_of(stores, cut, *item, events))
            last_events |= dict(zip(new, ends, strict=True))
        except SegmentNotFoundError:  # truncated away, so the remaining data begins at the head
            return head
        missing = events - sum(len(last.offsets) for segment, last in last_events.items() if segment not in level)
        here = {segment: last_events[segment] for segment in level if segment in last_events}
        if sum(len(last.offsets) for last in here.values()) >= missing:
            starts = {segment: here[segment].start_of(count) for segment, count in _shares(here, missing).items()}
            return StreamCut(cut.scope, cut.stream, {segment: starts.get(segment, -1) for segment in level})
        if epoch <= first_epoch:
            return head
        epoch -= 1
        try:
            pieces = await stores.controller.epoch_segments(cut.scope, cut.stream, epoch)
        except EpochExpiredError:
            return head
        level = {piece.segment_id: cut.positions.get(piece.segment_id, _TO_ITS_END) for piece in pieces}


async def _last_of(stores: SegmentStores, cut: StreamCut, segment: int, end: int, most: int) -> _LastEvents:
    import numpy as np

    name = segment_name(cut.scope, cut.stream, segment)
    info = await segment_info(stores, name)
    start, end = info.start_offset, max(min(end, info.write_offset), info.start_offset)
    reach = max(_FIRST_REACH_BYTES, most * _USUAL_EVENT_BYTES)
    while True:
        begin = start
        if end - reach > start:
            begin = (await stores.ask(wire.LocateOffset(0, name, end - reach, ""), wire.OffsetLocated)).offset
        parts: list[Numbers] = []
        async with aclosing(event_places(stores, name, begin, end, SKIP)) as places:
            async for page in places:
                parts.append(page.offsets())
        offsets = np.concatenate(parts) if parts else np.empty(0, np.int64)
        if len(offsets) >= most or begin <= start:
            offsets = offsets[-most:]
            times = np.maximum.accumulate(await arrival_times(stores, name, offsets, end))
            return _LastEvents(offsets, times, end)
        reach *= _REACH_FACTOR


def _shares(last_events: Mapping[int, _LastEvents], total: int) -> dict[int, int]:
    """Return how many of its last events each segment contributes, `total` in all.

    >>> import numpy as np
    >>> def last(*times):
    ...     return _LastEvents(np.arange(len(times)), np.array(times), len(times))
    >>> _shares({0: last(5_000, 60_000, 61_000), 1: last(62_000, 62_001), 2: last(7_000)}, 3)
    {0: 2, 1: 1, 2: 0}
    """
    import numpy as np

    segments = list(last_events)
    counts = [len(last_events[segment].offsets) for segment in segments]
    owner = np.repeat(np.arange(len(segments)), counts)
    times = np.concatenate([last_events[segment].arrival_times for segment in segments])
    from_end = np.concatenate([np.arange(count)[::-1] for count in counts])
    age = (times.max(initial=0) - times) // _SAME_TIME_MS
    chosen = owner[np.lexsort((from_end, age))[:total]]
    return dict(zip(segments, np.bincount(chosen, minlength=len(segments)).tolist(), strict=True))


_TRIES = 5  # attempts when the stream is truncated during a read


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """The events of one segment from `start` to `end`, two event boundaries."""

    segment_id: int
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@checked()
class StreamCuts:
    """Operations on the stream cuts of one stream."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self.scope, self.stream = scope, stream
        self._stores = stores
        self._ends = SegmentEnds(stores, scope, stream)

    async def head(self) -> StreamCut:
        """Return the stream's current start, behind truncated data."""
        return (await stream_info(self._stores, self.scope, self.stream)).head

    async def tail(self) -> StreamCut:
        """Return the stream's current end."""
        return (await stream_info(self._stores, self.scope, self.stream)).tail

    async def at(self, moment: datetime | int) -> StreamCut:
        """Return the cut at an arrival time: a datetime with a time zone, or milliseconds since 1970.

        All events that the server received at that time or later are after the cut, and few earlier ones: in each
        segment none received more than 10 s before it, and less than 4 KiB received more than 1 s before it. The cut
        for a past time never changes; it is the tail for a future time, and the head for a time before all events.
        """
        return await self._stores.controller.cut_at(self.scope, self.stream, moment_ms(moment))

    async def named(self, text: str, *, end: bool = False) -> StreamCut:
        """Return the cut denoted by `head`, `tail`, a time (ISO 8601 with a zone, such as 2026-11-14T00:00+01:00), the
        text of a cut, or the name of a bookmark in the scope. Raises InvalidArgumentError if the text is empty.

        `event:` before a time, or before a date for its midnight in UTC, denotes the events' own time. end: the cut
        ends a range, so that all events before such an event time are before the cut (`after_event_time`).
        """
        if not isinstance(text, str) or not text:
            raise InvalidArgumentError(
                f"{text!r} is not a position: pass head, tail, a time, the text of a cut or a bookmark"
            )
        if text in (HEAD, TAIL):
            return await (self.head() if text == HEAD else self.tail())
        if (time := event_moment(text)) is not None:
            if not end:
                return await self.at_event_time(time)
            return await self.after_event_time(time) or await self.tail()
        if is_moment(text):
            return await self.at(moment_of(text))
        try:
            cut = StreamCut.from_text(text)
        except InvalidStreamCutError:
            try:
                cut = (await Bookmarks(self._stores, self.scope).get(text)).cut
            except BookmarkNotFoundError:
                advice = "check its spelling; a time needs a clock and a zone, such as 2026-11-30T00:00Z"
                raise BookmarkNotFoundError(self.scope, text, advice) from None
        check_cut(cut, self.scope, self.stream)
        await check_boundary(self._stores, cut)
        return cut

    async def after(self, cut: StreamCut, events: int) -> StreamCut:
        """Return the cut `events` events after `cut`, or the tail if there are fewer.

        The cut's segments contribute equal shares; if one has too few, the others contribute more, and successors
        follow once all events before them are included. The result never changes, provided that the stream has that
        many events.
        """
        if not isinstance(events, int) or events < 0:
            raise InvalidArgumentError(f"events must be 0 or more, not {events}: use `before` to go back")
        frontier, offsets = await self._settle(cut)
        infos = await self._ends.infos(offsets)
        while events and (unfinished := [s for s in sorted(offsets) if offsets[s] < infos[s].write_offset]):
            share, extra = divmod(events, len(unfinished))
            for number, segment in enumerate(unfinished):
                count = share + (number < extra)
                if count:
                    passed, offsets[segment] = await self._pass(segment, offsets[segment], infos[segment], count)
                    events -= passed
            infos = await pass_finished(self._ends, frontier, offsets)
        return self._cut(frontier, offsets)

    async def before(self, cut: StreamCut, events: int) -> StreamCut:
        """Return the cut `events` events before `cut`, or the head if there are fewer.

        The events between the two are the last to arrive, according to the server's times, which have a resolution of
        ten seconds. Within that time each segment contributes an equal share. This doesn't read the events.
        """
        if not isinstance(events, int) or events < 0:
            raise InvalidArgumentError(f"events must be 0 or more, not {events}: use `after` to go forward")
        head, settled = await asyncio.gather(self.head(), self.settled(cut))
        return await cut_before_events(self._stores, head, settled, events)

    async def arrival_times(self, segment_id: int, offsets: Sequence[int]) -> list[int | None]:
        """Return upper bounds of the arrival times of a segment's events, in ms since 1970 by the server's clock; None
        if unknown. offsets: the events' ascending offsets.

        An event arrived at most 10 s before its bound, or 1 s where 4 KiB arrived within that time.
        """
        import numpy as np

        name = segment_name(self.scope, self.stream, segment_id)
        if not len(offsets):
            return []
        array = np.asarray(offsets)
        if array.ndim != 1 or array.dtype.kind not in "iu" or np.any(array[1:] < array[:-1]) or array[0] < 0:
            raise InvalidArgumentError(f"offsets must be ascending event offsets, not {offsets!r:.100}")
        times = await arrival_times(self._stores, name, array.astype(np.int64), int(array[-1]) + 1)
        return [None if time == UNKNOWN else time for time in times.tolist()]

    async def at_event_time(self, time: datetime | int) -> StreamCut:
        """Return a cut before all events of that time or later: a datetime with a time zone, or milliseconds since
        1970. Some earlier events may also follow the cut.

        The time of an event is the field that the stream's configuration names (`event_time`). In a stream without
        one, the times that writers noted are used, in the writers' unit and if their notes are correct; the cut is the
        head if the watermarks don't reach back to that time.
        """
        if (event_time := await self._event_time()) is not None:
            return await self._by(event_time, time)
        noted = await cut_before(self._stores, self.scope, self.stream, time_ms(time))
        with suppress(EpochExpiredError):  # the cut's segments were truncated away
            return await self._not_before_head(noted) if noted is not None else await self.head()
        return await self.head()

    async def after_event_time(self, time: datetime | int) -> StreamCut | None:
        """Return a cut behind all currently stored events before that time. Some later events may also precede the cut.
        The time is as in `at_event_time`; in a stream without the field, None while a writer has not noted that
        time."""
        if (event_time := await self._event_time()) is not None:
            return await self._by(event_time, time, end=True)
        first_ms = -(-time_us(time) // 1_000)  # rounded up
        noted = await cut_after(self._stores, self.scope, self.stream, first_ms)
        return await self._not_before_head(noted) if noted is not None else None

    async def between(self, start: datetime | int, end: datetime | int) -> tuple[StreamCut, StreamCut]:
        """Return two cuts that enclose all events with times from `start` to before `end`, and perhaps some others. The
        times are as in `at_event_time`; the second cut is the tail while a writer has not noted `end`."""
        if time_us(end) < time_us(start):
            raise InvalidArgumentError(f"the end of the time range, {end}, is before its start, {start}")
        start_cut = await self.at_event_time(start)
        end_cut = await self.after_event_time(end) or await self.tail()
        return start_cut, await self.latest(start_cut, end_cut)

    async def _event_time(self) -> EventTime | None:
        """Return the field with the events' times, after indexing all currently stored events; None without one."""
        event_time = (await self._stores.controller.stream_configuration(self.scope, self.stream)).event_time
        if event_time is not None:
            from nadi.client.stream_cuts.event_index import index_times

            ids = await segments_between(self._stores, *await asyncio.gather(self.head(), self.tail()))
            await index_times(self._stores, self.scope, self.stream, event_time, ids)
        return event_time

    async def _by(self, event_time: EventTime, time: datetime | int, *, end: bool = False) -> StreamCut:
        from nadi.client.stream_cuts.event_index import refine_cut

        at = min(max(time_us(time), EVENT_TIME_MIN), EVENT_TIME_MAX)
        clock = clock_of(str(event_time))
        for _ in range(_TRIES):
            cut = await self._stores.controller.cut_at(
                self.scope, self.stream, at, earliest_of(clock) if end else clock
            )
            with suppress(SegmentNotFoundError, TruncatedError):
                return await refine_cut(self._stores, cut, event_time, at, end=end)
        return cut

    async def _not_before_head(self, cut: StreamCut) -> StreamCut:
        head = await self._stores.controller.head(self.scope, self.stream)
        order = cutorder.compare_shared(cut.positions, head.positions, await self._ranges(cut, head))
        return cut if order.is_at_or_after else head

    async def check(self, cut: StreamCut) -> None:
        """Raise unless a reader can start at the cut: InvalidStreamCutError if it is not a boundary of the stream,
        TruncatedError if some of the events behind it were truncated away."""
        check_cut(cut, self.scope, self.stream)
        await check_boundary(self._stores, cut)
        below = [offset for offset in cut.positions.values() if offset < -1]
        if below:
            raise InvalidStreamCutError(
                f"{below[0]:,} is not a valid offset: pass 0 or more, or -1 for a segment that is not started yet"
            )
        reached = {segment: offset for segment, offset in cut.positions.items() if offset >= 0}
        infos = await self._ends.infos(reached)
        for segment, offset in reached.items():
            info, name = infos[segment], segment_name(self.scope, self.stream, segment)
            if offset < info.start_offset:
                raise TruncatedError(name, offset, info.start_offset)
            if offset > info.write_offset:
                raise PastEndError(name, offset, info.write_offset)
            located = await self._stores.ask(wire.LocateOffset(0, name, offset, ""), wire.OffsetLocated)
            if located.offset != offset:
                raise InvalidStreamCutError(
                    f"offset {offset:,} of segment {name} is within an event: the next one begins at {located.offset:,}"
                )

    async def settled(self, cut: StreamCut) -> StreamCut:
        """Return the same boundary, advanced past finished segments; equal boundaries give equal cuts."""
        return self._cut(*await self._settle(cut))

    async def compare(self, first: StreamCut, second: StreamCut) -> CutOrder:
        """Return whether `first` is before `second`, at it, after it, or both (overlapping)."""
        return cutorder.compare(*await self._pair(first, second))

    async def earliest(self, first: StreamCut, second: StreamCut) -> StreamCut:
        """Return the cut behind the events that are before both cuts."""
        return cutorder.earliest(*await self._pair(first, second))

    async def latest(self, first: StreamCut, second: StreamCut) -> StreamCut:
        """Return the cut behind the events that are before at least one of the cuts."""
        return cutorder.latest(*await self._pair(first, second))

    async def segments_between(self, start: StreamCut, end: StreamCut) -> list[int]:
        """Return the ids of the segments between two cuts, older ones first; raise InvalidStreamCutError if the end is
        before the start."""
        for cut in (start, end):
            check_cut(cut, self.scope, self.stream)
        return sorted(await segments_between(self._stores, start, end))

    async def bytes_between(self, start: StreamCut, end: StreamCut) -> int:
        """Return the number of bytes between two cuts, including event headers."""
        return sum(piece.size_bytes for piece in await slices_between(self, start, end))

    async def events_between(self, start: StreamCut, end: StreamCut) -> int:
        """Return the number of events between two cuts, by reading them."""

        async def count(piece: SegmentSlice) -> int:
            name = segment_name(self.scope, self.stream, piece.segment_id)
            async with aclosing(read_segment_range(self._stores, name, piece.start, piece.end)) as blocks:
                return sum([len(block) async for block in blocks])

        return sum(await map_concurrently(await slices_between(self, start, end), count))

    # --- inside -----------------------------------------------------------------------------

    async def _ranges(self, *cuts: StreamCut) -> KeyRanges:
        for cut in cuts:
            check_cut(cut, self.scope, self.stream)
        ranges: list[SegmentRange] = []
        for cut in cuts:
            ranges += await segment_ranges(self._stores, self.scope, self.stream, cut)
        return {piece.segment_id: (piece.low, piece.high) for piece in ranges}

    async def _pair(self, first: StreamCut, second: StreamCut) -> tuple[StreamCut, StreamCut, KeyRanges]:
        first, second = await asyncio.gather(self.settled(first), self.settled(second))
        return first, second, await self._ranges(first, second)

    async def _settle(self, cut: StreamCut) -> tuple[Frontier, dict[int, int]]:
        """Return the frontier of the settled cut and the offsets of its active segments."""
        check_cut(cut, self.scope, self.stream)
        frontier = await frontier_at(self._stores, cut)
        offsets = {segment: max(cut.positions[segment], 0) for segment in frontier.active}
        await pass_finished(self._ends, frontier, offsets)
        return frontier, offsets

    async def _pass(self, segment: int, start: int, info: SegmentInfo, events: int) -> tuple[int, int]:
        """Pass up to `events` events from `start` on; return their number and the end of the last one."""
        name = segment_name(self.scope, self.stream, segment)
        passed, end = 0, start
        async with aclosing(read_segment_range(self._stores, name, start, info.write_offset)) as blocks:
            async for block in blocks:
                if passed + len(block) > events:
                    return events, block.offset + int(block.starts[events - passed])
                passed += len(block)
                end = block.offset + block.size_bytes
                if passed == events:
                    break
        return passed, end

    def _cut(self, frontier: Frontier, offsets: dict[int, int]) -> StreamCut:
        return StreamCut(self.scope, self.stream, frontier.positions(offsets))


# --- for callers that read slices segment by segment -------------------------------------------


async def slices_between(cuts: StreamCuts, start: StreamCut, end: StreamCut) -> list[SegmentSlice]:
    """Divide the range between two cuts into segment slices, older epochs first."""
    ids = await cuts.segments_between(start, end)
    infos = await cuts._ends.infos(dict.fromkeys(ids, 0))
    slices = []
    for segment in ids:
        info = infos[segment]
        low = max(start.positions.get(segment, 0), 0)
        high = min(end.positions.get(segment, info.write_offset), info.write_offset)
        if high > low:
            if low < info.start_offset:
                raise TruncatedError(segment_name(cuts.scope, cuts.stream, segment), low, info.start_offset)
            slices.append(SegmentSlice(segment, low, high))
    return slices


async def slices_with_keys(cuts: StreamCuts, slices: Iterable[SegmentSlice], keys: Iterable[str]) -> list[SegmentSlice]:
    """Select the slices whose segments can contain events with these routing keys."""
    pieces = list(slices)
    ids = {piece.segment_id: 0 for piece in pieces}
    ranges = await segment_ranges(cuts._stores, cuts.scope, cuts.stream, StreamCut(cuts.scope, cuts.stream, ids))
    routing_keys = check_strings(keys, "routing keys to read")
    matching = {piece.segment_id for piece in ranges if piece.takes_any(routing_keys)}
    return [piece for piece in pieces if piece.segment_id in matching]
