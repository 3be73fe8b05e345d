"""Stream cuts: `manager.cuts(scope, stream)` creates, checks, compares and measures them.

A cut that stands at the end of a sealed segment and one that stands at the start of what follows are the
same boundary, so cuts are settled before they are compared: led over finished segments as a reader is led.
Every cut made here is legal, as `nadi.model.frontier` has it.
Events are counted from their headers, block by block.

A cut some events before another one: a segment's events can only be followed forwards, for each says how long it is. So
to go back, a place some bytes before the end is taken, the store says where the next event begins there (LocateOffset),
and how long the events from there on are (ListEventSizes), which carries none of their bytes; if these are too few, it
is tried again from further back.

Events of different segments have no order but time. So of each segment the last events are found, and those that came
last are taken, as the segments' time indexes tell; where these don't tell, within about ten seconds, each segment gives
an equal share. If all segments of an epoch together have too few, those of the epoch before come in, and all that
follows them is taken. As the segments of an epoch share the keys among them, and what they begin with follows what was
before, such a cut is legal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime

from nadi.client.control.arguments import checked, several_texts
from nadi.client.reading.boundary import check_boundary, check_cut, frontier_at, segment_ranges, segments_between
from nadi.client.reading.damage import SKIP
from nadi.client.reading.segment_range import event_places, read_segment_range
from nadi.client.reading.watermarks import cut_after, cut_before
from nadi.client.segments.info import SegmentInfo, of_each, segment_info, stream_info
from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts.arrival_times import UNKNOWN, came_by
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
    EpochGoneError,
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
_FURTHER = 4  # times as far, if what was found is too little
_SAME_TIME_MS = 10_000  # what an index may leave open
_TO_ITS_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _Last:
    """The last events of a segment before `end`: their offsets, and by when each had come."""

    offsets: Numbers
    came_by: Numbers
    end: int

    def start_of(self, count: int) -> int:
        return int(self.offsets[-count]) if count else self.end


async def cut_before_events(stores: SegmentStores, head: StreamCut, cut: StreamCut, events: int) -> StreamCut:
    """The cut `events` events before `cut`, which is settled; `head` if there are fewer."""
    found: dict[int, _Last] = {}
    level = dict(cut.positions)
    epoch = max(map(segment_epoch, level))
    first_epoch = min(map(segment_epoch, head.positions))
    while True:
        try:
            new = {segment: end for segment, end in level.items() if end >= 0 and segment not in found}
            ends = await of_each(new.items(), lambda one: _last_of(stores, cut, *one, events))
            found |= dict(zip(new, ends, strict=True))
        except SegmentNotFoundError:  # truncated away: what is left begins with the head
            return head
        wanted = events - sum(len(last.offsets) for segment, last in found.items() if segment not in level)
        here = {segment: found[segment] for segment in level if segment in found}
        if sum(len(last.offsets) for last in here.values()) >= wanted:
            begun = {segment: here[segment].start_of(count) for segment, count in _shares(here, wanted).items()}
            return StreamCut(cut.scope, cut.stream, {segment: begun.get(segment, -1) for segment in level})
        if epoch <= first_epoch:
            return head
        epoch -= 1
        try:
            pieces = await stores.controller.epoch_segments(cut.scope, cut.stream, epoch)
        except EpochGoneError:
            return head
        level = {piece.segment_id: cut.positions.get(piece.segment_id, _TO_ITS_END) for piece in pieces}


async def _last_of(stores: SegmentStores, cut: StreamCut, segment: int, end: int, most: int) -> _Last:
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
            async for some in places:
                parts.append(some.offsets())
        offsets = np.concatenate(parts) if parts else np.empty(0, np.int64)
        if len(offsets) >= most or begin <= start:
            offsets = offsets[-most:]
            times = np.maximum.accumulate(await came_by(stores, name, offsets, end))
            return _Last(offsets, times, end)
        reach *= _FURTHER


def _shares(found: Mapping[int, _Last], wanted: int) -> dict[int, int]:
    """How many of its last events each segment gives, `wanted` in all.

    >>> import numpy as np
    >>> def last(*times):
    ...     return _Last(np.arange(len(times)), np.array(times), len(times))
    >>> _shares({0: last(5_000, 60_000, 61_000), 1: last(62_000, 62_001), 2: last(7_000)}, 3)
    {0: 2, 1: 1, 2: 0}
    """
    import numpy as np

    segments = list(found)
    counts = [len(found[segment].offsets) for segment in segments]
    owner = np.repeat(np.arange(len(segments)), counts)
    times = np.concatenate([found[segment].came_by for segment in segments])
    from_end = np.concatenate([np.arange(count)[::-1] for count in counts])
    age = (times.max(initial=0) - times) // _SAME_TIME_MS
    chosen = owner[np.lexsort((from_end, age))[:wanted]]
    return dict(zip(segments, np.bincount(chosen, minlength=len(segments)).tolist(), strict=True))


_TRIES = 5  # while the stream is truncated as it is read


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """The events of one segment from `start` to `end`, both of them event boundaries."""

    segment_id: int
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@checked()
class StreamCuts:
    """The stream cuts of one stream."""

    def __init__(self, stores: SegmentStores, scope: str, stream: str) -> None:
        self.scope, self.stream = scope, stream
        self._stores = stores
        self._ends = SegmentEnds(stores, scope, stream)

    async def head(self) -> StreamCut:
        """Return the stream's current start, after what was truncated away."""
        return (await stream_info(self._stores, self.scope, self.stream)).head

    async def tail(self) -> StreamCut:
        """Return the stream's current end."""
        return (await stream_info(self._stores, self.scope, self.stream)).tail

    async def at(self, moment: datetime | int) -> StreamCut:
        """Return where the stream stood at a time: a datetime with a time zone, or milliseconds since 1970.

        All events that the server received at that time or later lie after the cut, and only a few earlier ones:
        in each segment none received over 10 s before it, and under 4 KiB received over 1 s before it. For a time in
        the past the cut is always the same; for one in the future it is the tail, and for one before all events the
        head.
        """
        return await self._stores.controller.cut_at(self.scope, self.stream, moment_ms(moment))

    async def named(self, text: str, *, end: bool = False) -> StreamCut:
        """Return the cut denoted by `head`, `tail`, a time (ISO 8601 with a zone, such as 2026-11-14T00:00+01:00), the
        text of a cut, or the name of one of the scope's bookmarks. InvalidArgumentError if the text is empty.

        `event:` before a time, or before a date for its midnight in UTC, means the events' own time. end: the cut is
        where something ends, so that for such a time all earlier events lie before it (`after_event_time`).
        """
        if not isinstance(text, str) or not text:
            raise InvalidArgumentError(
                f"{text!r} is not a position: give head, tail, a time, a cut's text or a bookmark"
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
            cut = (await Bookmarks(self._stores, self.scope).get(text)).cut
        check_cut(cut, self.scope, self.stream)
        await check_boundary(self._stores, cut)
        return cut

    async def after(self, cut: StreamCut, events: int) -> StreamCut:
        """Return the cut `events` events after `cut`, or the tail if there are fewer.

        They are taken in equal shares from the cut's segments; if one has too few, the others supply more, and
        successors follow once everything before them is taken. The result is the same each time, as long as the
        stream has that many.
        """
        if not isinstance(events, int) or events < 0:
            raise InvalidArgumentError(f"a cut lies {events} events after no other: take an earlier cut to start at")
        frontier, offsets = await self._settle(cut)
        infos = await self._ends.infos(offsets)
        while events and (open_ones := [s for s in sorted(offsets) if offsets[s] < infos[s].write_offset]):
            share, extra = divmod(events, len(open_ones))
            for number, segment in enumerate(open_ones):
                want = share + (number < extra)
                if want:
                    taken, offsets[segment] = await self._take(segment, offsets[segment], infos[segment], want)
                    events -= taken
            infos = await pass_finished(self._ends, frontier, offsets)
        return self._cut(frontier, offsets)

    async def before(self, cut: StreamCut, events: int) -> StreamCut:
        """Return the cut `events` events before `cut`, or the head if there are fewer.

        Between the two lie the events that came last, as far as the server knows when each came: it may be off by ten
        seconds. Within that time each segment gives an equal share. None of the events is read for that.
        """
        if not isinstance(events, int) or events < 0:
            raise InvalidArgumentError(f"a cut lies {events} events before no other: take a later cut to start at")
        head, settled = await asyncio.gather(self.head(), self.settled(cut))
        return await cut_before_events(self._stores, head, settled, events)

    async def came_by(self, segment_id: int, offsets: Sequence[int]) -> list[int | None]:
        """Return by when events of a segment had come, in ms since 1970 by the server's clock; None where that is
        unknown. offsets: of the events, in order.

        None came later than said. It may have come up to 10 s earlier, or 1 s where 4 KiB came in that time.
        """
        import numpy as np

        name = segment_name(self.scope, self.stream, segment_id)
        if not len(offsets):
            return []
        given = np.asarray(offsets)
        if given.ndim != 1 or given.dtype.kind not in "iu" or np.any(given[1:] < given[:-1]) or given[0] < 0:
            raise InvalidArgumentError(f"offsets are to be those of events, in order, not {offsets!r:.100}")
        found = await came_by(self._stores, name, given.astype(np.int64), int(given[-1]) + 1)
        return [None if moment == UNKNOWN else moment for moment in found.tolist()]

    async def at_event_time(self, time: datetime | int) -> StreamCut:
        """Return the cut to read from to get every event of that time or later: a datetime with a time zone, or
        milliseconds since 1970. It may lie before some earlier ones.

        The time of an event is the field that the stream's configuration names (`event_time`). In a stream without
        one, it is known from what writers noted, in their unit, as far as they keep the promise of their notes; the
        cut is the head where watermarks don't reach back so far.
        """
        if (event_time := await self._event_time()) is not None:
            return await self._by(event_time, time)
        found = await cut_before(self._stores, self.scope, self.stream, time_ms(time))
        with suppress(EpochGoneError):  # what it stands in was truncated away
            return await self._not_before_head(found) if found is not None else await self.head()
        return await self.head()

    async def after_event_time(self, time: datetime | int) -> StreamCut | None:
        """Return the cut to read up to to get every event before that time, of those that are stored now. It may lie
        behind some later ones. The time is as in `at_event_time`; without the field, None while a writer has not noted
        that time."""
        if (event_time := await self._event_time()) is not None:
            return await self._by(event_time, time, end=True)
        noted = -(-time_us(time) // 1_000)  # the first that is not earlier
        found = await cut_after(self._stores, self.scope, self.stream, noted)
        return await self._not_before_head(found) if found is not None else None

    async def between(self, start: datetime | int, end: datetime | int) -> tuple[StreamCut, StreamCut]:
        """Return the cuts between which every event lies whose time is `start` or later and before `end`; others may
        lie there too. The times are as in `at_event_time`; the second cut is the tail while a writer has not noted
        `end`."""
        if time_us(end) < time_us(start):
            raise InvalidArgumentError(f"the end of a time range, {end}, lies before its start, {start}")
        begun = await self.at_event_time(start)
        ended = await self.after_event_time(end) or await self.tail()
        return begun, await self.latest(begun, ended)

    async def _event_time(self) -> EventTime | None:
        """The field with events' times, whose index has what is stored now."""
        event_time = (await self._stores.controller.stream_configuration(self.scope, self.stream)).event_time
        if event_time is not None:
            from nadi.client.stream_cuts.event_index import index_times

            ids = await segments_between(self._stores, *await asyncio.gather(self.head(), self.tail()))
            await index_times(self._stores, self.scope, self.stream, event_time, ids)
        return event_time

    async def _by(self, event_time: EventTime, time: datetime | int, *, end: bool = False) -> StreamCut:
        from nadi.client.stream_cuts.event_index import nearer

        at = min(max(time_us(time), EVENT_TIME_MIN), EVENT_TIME_MAX)
        clock = clock_of(str(event_time))
        for _ in range(_TRIES):
            cut = await self._stores.controller.cut_at(
                self.scope, self.stream, at, earliest_of(clock) if end else clock
            )
            with suppress(SegmentNotFoundError, TruncatedError):
                return await nearer(self._stores, cut, event_time, at, end=end)
        return cut

    async def _not_before_head(self, cut: StreamCut) -> StreamCut:
        head = await self._stores.controller.head(self.scope, self.stream)
        order = cutorder.compare_shared(cut.positions, head.positions, await self._ranges(cut, head))
        return cut if order.is_at_or_after else head

    async def check(self, cut: StreamCut) -> None:
        """Raise unless a reader can start here: InvalidStreamCutError if it is not a boundary of the stream,
        TruncatedError if some of what follows is gone."""
        check_cut(cut, self.scope, self.stream)
        await check_boundary(self._stores, cut)
        below = [offset for offset in cut.positions.values() if offset < -1]
        if below:
            raise InvalidStreamCutError(
                f"{below[0]:,} is not a valid offset: a segment starts at 0, and -1 means one not started yet"
            )
        reached = {segment: offset for segment, offset in cut.positions.items() if offset >= 0}
        infos = await self._ends.infos(reached)
        for segment, offset in reached.items():
            info, name = infos[segment], segment_name(self.scope, self.stream, segment)
            if offset < info.start_offset:
                raise TruncatedError(name, offset, info.start_offset)
            if offset > info.write_offset:
                raise PastEndError(name, offset, info.write_offset)
            found = await self._stores.ask(wire.LocateOffset(0, name, offset, ""), wire.OffsetLocated)
            if found.offset != offset:
                raise InvalidStreamCutError(
                    f"offset {offset:,} of segment {name} lies within an event: the next begins at {found.offset:,}"
                )

    async def settled(self, cut: StreamCut) -> StreamCut:
        """Return the same boundary moved past segments that are read to their ends; equal boundaries settle alike."""
        return self._cut(*await self._settle(cut))

    async def compare(self, first: StreamCut, second: StreamCut) -> CutOrder:
        """Return whether `first` lies before `second`, at it, after it, or both (overlapping)."""
        return cutorder.compare(*await self._pair(first, second))

    async def earliest(self, first: StreamCut, second: StreamCut) -> StreamCut:
        """Return the cut before which lies exactly what lies before both."""
        return cutorder.earliest(*await self._pair(first, second))

    async def latest(self, first: StreamCut, second: StreamCut) -> StreamCut:
        """Return the cut before which lies everything that lies before either."""
        return cutorder.latest(*await self._pair(first, second))

    async def segments_between(self, start: StreamCut, end: StreamCut) -> list[int]:
        """Return the ids of the segments between two cuts, older ones first; InvalidStreamCutError if the end lies
        before the start."""
        for cut in (start, end):
            check_cut(cut, self.scope, self.stream)
        return sorted(await segments_between(self._stores, start, end))

    async def bytes_between(self, start: StreamCut, end: StreamCut) -> int:
        """Return the number of bytes between two cuts, events' headers included."""
        return sum(piece.size_bytes for piece in await slices_between(self, start, end))

    async def events_between(self, start: StreamCut, end: StreamCut) -> int:
        """Return the number of events between two cuts; this reads them."""

        async def count(piece: SegmentSlice) -> int:
            name = segment_name(self.scope, self.stream, piece.segment_id)
            async with aclosing(read_segment_range(self._stores, name, piece.start, piece.end)) as blocks:
                return sum([len(block) async for block in blocks])

        return sum(await of_each(await slices_between(self, start, end), count))

    # --- inside -----------------------------------------------------------------------------

    async def _ranges(self, *cuts: StreamCut) -> KeyRanges:
        for cut in cuts:
            check_cut(cut, self.scope, self.stream)
        found: list[SegmentRange] = []
        for cut in cuts:
            found += await segment_ranges(self._stores, self.scope, self.stream, cut)
        return {piece.segment_id: (piece.low, piece.high) for piece in found}

    async def _pair(self, first: StreamCut, second: StreamCut) -> tuple[StreamCut, StreamCut, KeyRanges]:
        first, second = await asyncio.gather(self.settled(first), self.settled(second))
        return first, second, await self._ranges(first, second)

    async def _settle(self, cut: StreamCut) -> tuple[Frontier, dict[int, int]]:
        """The segments under way at the cut, and where in them it stands."""
        check_cut(cut, self.scope, self.stream)
        frontier = await frontier_at(self._stores, cut)
        offsets = {segment: max(cut.positions[segment], 0) for segment in frontier.active}
        await pass_finished(self._ends, frontier, offsets)
        return frontier, offsets

    async def _take(self, segment: int, start: int, info: SegmentInfo, events: int) -> tuple[int, int]:
        """How many of `events` events the segment has from `start` on, and where the last of them ends."""
        name = segment_name(self.scope, self.stream, segment)
        taken, end = 0, start
        async with aclosing(read_segment_range(self._stores, name, start, info.write_offset)) as blocks:
            async for block in blocks:
                if taken + len(block) > events:
                    return events, block.offset + int(block.starts[events - taken])
                taken += len(block)
                end = block.offset + block.size_bytes
                if taken == events:
                    break
        return taken, end

    def _cut(self, frontier: Frontier, offsets: dict[int, int]) -> StreamCut:
        return StreamCut(self.scope, self.stream, frontier.positions(offsets))


# --- for those who read slices segment by segment ----------------------------------------------


async def slices_between(cuts: StreamCuts, start: StreamCut, end: StreamCut) -> list[SegmentSlice]:
    """What lies between two cuts, segment by segment, those of older epochs first."""
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


async def narrowed(cuts: StreamCuts, slices: Iterable[SegmentSlice], keys: Iterable[str]) -> list[SegmentSlice]:
    """Those of the slices whose segments can hold events of these routing keys."""
    pieces = list(slices)
    ids = {piece.segment_id: 0 for piece in pieces}
    ranges = await segment_ranges(cuts._stores, cuts.scope, cuts.stream, StreamCut(cuts.scope, cuts.stream, ids))
    wanted = several_texts(keys, "routing keys to read")
    able = {piece.segment_id for piece in ranges if piece.takes_any(wanted)}
    return [piece for piece in pieces if piece.segment_id in able]
