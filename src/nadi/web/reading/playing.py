"""A stretch of a stream played as it came, or as it happened: by the times at which events came, or by their own, at
any speed.

Time runs on whether there are events or not, or jumps over pauses. What comes too fast to be shown is counted; what
comes too fast to be read is passed over: time doesn't wait. Whoever watches stops by leaving, and goes on from the time
that the last batch told.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from msgspec import UNSET

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.stream_cuts.cuts import SegmentSlice, StreamCuts, slices_between
from nadi.errors import InvalidArgumentError
from nadi.limits import (
    EVENT_TIME_MAX,
    EVENT_TIME_MIN,
    PAGE_ASKED_AT_ONCE,
    PAGE_BATCH_BYTES,
    PAGE_BATCH_EVENTS,
    PAGE_BEAT_S,
    PAGE_BEHIND_S,
)
from nadi.model.event_time import EventTime
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.web.bodies import EventRange, EventSeen, EventsMessage, Played
from nadi.web.reading.lanes import NO_TIME, Came, Lanes
from nadi.web.reading.payloads import pause_s, seen
from nadi.web.reading.times import BY_ARRIVAL, BY_EVENT_TIME, CutTimes, clock_by, event_time_of, first_ms, is_indexed
from nadi.wire.time_index import ARRIVAL, earliest_of

_PAUSE_S = 1.0  # of watching: a longer one is cut down to this, where pauses are jumped over
_EXACT_S = 1.0  # spent on finding a first event of a segment to the event rather than to a second,
_OPEN_S = 2.0  # and of all segments together
_FIRST_S = 5.0  # on looking for a first event that has a time
_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Playing:
    """start, end: cuts of the stretch. from_ms, to_ms: events from then on, and up to then; None is the first one, and
    the last. speed: how many seconds pass in one. skips_pauses: time jumps to shortly before the next event if that is
    far. event_time: the times are the events' own."""

    start: StreamCut
    end: StreamCut
    from_ms: int | None
    speed: float = 1.0
    skips_pauses: bool = False
    to_ms: int | None = None
    event_time: EventTime | None = None


async def stretch_of(manager: StreamManager, scope: str, stream: str, asked: EventRange) -> Playing:
    """The stretch of a named slice, or from one place to another, head and tail if left out. InvalidArgumentError, or a
    NotFoundError."""
    event_time = await event_time_of(manager, scope, stream, asked.by or None)
    if asked.slice:
        if asked.start or asked.end:
            raise InvalidArgumentError("a slice has its own start and end: leave them out, or leave out slice")
        named = await manager.slices(scope).get(asked.slice)
        if named.stream != stream:
            raise InvalidArgumentError(f"slice {scope}/{asked.slice} is one of the stream {named.stream}: ask for that")
        start, end = named.start, named.end
    else:
        cuts, to = manager.cuts(scope, stream), asked.end or "tail"
        start, end = await asyncio.gather(cuts.named(asked.start or "head"), cuts.named(to, end=True))
    from_ms, to_ms = (None if ms is UNSET else ms for ms in (asked.from_ms, asked.to_ms))
    playing = Playing(start, end, from_ms, to_ms=to_ms, event_time=event_time)
    if isinstance(asked, Played):
        playing = replace(playing, speed=asked.speed, skips_pauses=asked.pauses == "skip")
    return playing


async def play(manager: StreamManager, what: Playing) -> AsyncGenerator[EventsMessage, None]:
    """Batches of events at the times at which they are due; the last one has no `next`."""
    begins_ms, what = what.from_ms or 0, await _whole(manager, what)
    async with _opened(manager, what) as lanes:
        async for batch in _played(lanes, what, begins_ms):
            yield batch


async def first_events(manager: StreamManager, what: Playing, most: int, *, last: bool = False) -> EventsMessage:
    """The first events of the stretch, or its last ones, at once."""
    if last:
        cuts = manager.cuts(what.start.scope, what.start.stream)
        what = replace(what, start=await cuts.latest(what.start, await cuts.before(what.end, most)))
    what = await _whole(manager, what)
    async with _opened(manager, what) as lanes:
        found: list[Came] = []
        next_ms, size, ends_s = await lanes.next_ms(), 0, time.monotonic() + _FIRST_S
        while (
            next_ms is not None
            and (last or (len(found) < most and size < PAGE_BATCH_BYTES))
            and (lanes.has_event or time.monotonic() < ends_s)
        ):
            size += _put(found, await lanes.take())
            while last and len(found) > 1 and size > PAGE_BATCH_BYTES:
                size -= len(found.pop(0).data or b"")
            next_ms = await lanes.next_ms()
        at_ms = found[-1].at_ms if found else what.from_ms or 0
        return EventsMessage(at_ms, _seen(found), next=_next(lanes, next_ms, at_ms), timeless=lanes.timeless)


def _put(due: list[Came], event: Came) -> int:
    """Add what was taken, unless that is no event; return how many bytes it has."""
    if event.data is None:
        return 0
    due.append(event)
    return len(event.data)


async def _whole(manager: StreamManager, what: Playing) -> Playing:
    """From the start's own time on it is all of the stretch: times are known to ten seconds, and events of one segment
    may count as older than a cut that another's were before."""
    if what.from_ms is None:
        return what
    begins_ms = await CutTimes(manager, BY_EVENT_TIME if what.event_time else BY_ARRIVAL).of(what.start)
    is_whole = what.event_time is None if begins_ms is None else what.from_ms <= begins_ms
    return replace(what, from_ms=None) if is_whole else what


@asynccontextmanager
async def _opened(manager: StreamManager, what: Playing) -> AsyncIterator[Lanes]:
    cuts = manager.cuts(what.start.scope, what.start.stream)
    start, end = await _bounds(manager, cuts, what)
    slices = await slices_between(cuts, start, end)
    pieces = await _pieces(manager, cuts, what, slices)
    within_ms = -math.inf if what.from_ms is None else what.from_ms, math.inf if what.to_ms is None else what.to_ms
    name, event_time = f"playing {next(_ids)}", what.event_time
    lanes = Lanes(stores_of(manager), cuts.scope, cuts.stream, pieces, name, event_time, within_ms)
    try:
        if what.from_ms is not None:
            await lanes.pass_over(what.from_ms, min(_EXACT_S, _OPEN_S / max(len(pieces), 1)))
        yield lanes
    finally:
        await lanes.close()


async def _pieces(
    manager: StreamManager, cuts: StreamCuts, what: Playing, slices: Sequence[SegmentSlice]
) -> list[tuple[int, SegmentSlice]]:
    """Return the slices in the order in which they begin, each with the time before which it has no events: by arrival
    the time when its segment was made, by event time what the index says if it is complete."""
    if what.event_time is None:
        made_ms = {one.segment_id: one.created_ms for one in await manager.segment_history(cuts.scope, cuts.stream)}
        return [(made_ms.get(piece.segment_id, 0), piece) for piece in slices]
    stores, clock, turns = stores_of(manager), clock_by(what.event_time), asyncio.Semaphore(PAGE_ASKED_AT_ONCE)

    async def begins_ms(piece: SegmentSlice) -> int:
        name = segment_name(cuts.scope, cuts.stream, piece.segment_id)
        async with turns:
            begins = await first_ms(stores, name, piece.start, clock) if await is_indexed(stores, name, clock) else None
            return NO_TIME if begins is None else begins

    found = await asyncio.gather(*map(begins_ms, slices))
    return sorted(zip(found, slices, strict=True), key=lambda one: one[0])


async def _bounds(manager: StreamManager, cuts: StreamCuts, what: Playing) -> tuple[StreamCut, StreamCut]:
    """Return the ends of the stretch, without what certainly lies before `from_ms` or behind `to_ms`. This reads
    nothing: what isn't in the index stays in the stretch."""
    clock = clock_by(what.event_time)

    async def at(at_ms: int, clock: int) -> StreamCut:
        if clock == ARRIVAL:
            return await cuts.at(at_ms)
        at_us = min(max(at_ms * 1000, EVENT_TIME_MIN), EVENT_TIME_MAX)
        return await stores_of(manager).controller.cut_at(cuts.scope, cuts.stream, at_us, clock)

    start, end, to_ms = what.start, what.end, what.to_ms
    if what.from_ms is None and to_ms is None and not clock:
        return start, end
    await cuts.segments_between(start, end)  # refuses an end before the start
    if clock and to_ms is None:
        to_ms = EVENT_TIME_MAX  # behind the latest there may be events without a time
    if to_ms is not None:
        end = await cuts.earliest(end, await at(to_ms, earliest_of(clock) if clock else clock))
    if what.from_ms is not None:
        start = await cuts.latest(start, await at(what.from_ms, clock))
    return await cuts.earliest(start, end), end


class _PlayClock:
    """Reads `at_ms` when it is set, and goes on from there at a speed."""

    def __init__(self, at_ms: float, speed: float) -> None:
        self._speed = speed
        self.set(at_ms)

    def set(self, at_ms: float) -> None:
        self._began_s, self._at_ms = time.monotonic(), at_ms

    @property
    def now_ms(self) -> float:
        return self._at_ms + (time.monotonic() - self._began_s) * 1000 * self._speed

    def seconds_until(self, at_ms: float) -> float:
        return (at_ms - self.now_ms) / 1000 / self._speed


async def _played(lanes: Lanes, what: Playing, begins_ms: int) -> AsyncGenerator[EventsMessage, None]:
    next_ms = await lanes.next_ms()
    while next_ms is not None and what.from_ms is None and not lanes.has_event:
        yield EventsMessage(begins_ms, [], next=begins_ms)
        await lanes.take()
        next_ms = await lanes.next_ms()
    clock = _PlayClock(what.from_ms if what.from_ms is not None else (next_ms or 0), what.speed)
    told_s = 0.0
    while next_ms is not None:
        ahead_s = clock.seconds_until(next_ms)
        if what.skips_pauses and ahead_s > _PAUSE_S:
            clock.set(next_ms - _PAUSE_S * 1000 * what.speed)
            ahead_s = _PAUSE_S
        is_behind = ahead_s < -PAGE_BEHIND_S and lanes.has_event
        if is_behind:
            await lanes.pass_over(int(clock.now_ms))
            next_ms = await lanes.next_ms()
        batch, next_ms = await _due(lanes, next_ms, math.floor(clock.now_ms), is_behind=is_behind)
        now_s = time.monotonic()
        if batch.events or batch.isBehind or now_s - told_s >= PAGE_BEAT_S or next_ms is None:
            told_s = now_s
            yield batch
        if next_ms is None:
            return
        until_s = min(clock.seconds_until(next_ms), PAGE_BEAT_S)
        is_jumped = what.skips_pauses and until_s > _PAUSE_S
        least_s = pause_s(batch.events)
        await asyncio.sleep(least_s if is_jumped else max(until_s, least_s))


async def _due(lanes: Lanes, next_ms: int | None, now_ms: int, *, is_behind: bool) -> tuple[EventsMessage, int | None]:
    """What came up to `now_ms`, the latest of it if that is too much; and when the next event came."""
    due: list[Came] = []
    size = passed = 0
    began_s = time.monotonic()
    while next_ms is not None and next_ms <= now_ms:
        size += _put(due, await lanes.take())
        while len(due) > PAGE_BATCH_EVENTS or (size > PAGE_BATCH_BYTES and len(due) > 1):
            size -= len(due.pop(0).data or b"")
            passed += 1
        next_ms = await lanes.next_ms()
        if time.monotonic() - began_s > PAGE_BEHIND_S:
            break
        if passed % 500 == 499:
            await asyncio.sleep(0)  # others have their turns
    timeless, lanes.timeless = lanes.timeless, 0
    return EventsMessage(now_ms, _seen(due), passed, is_behind, _next(lanes, next_ms, now_ms), timeless), next_ms


def _next(lanes: Lanes, next_ms: int | None, at_ms: int) -> int | None:
    """When the next event is due, which isn't known while none is read."""
    return next_ms if next_ms is None or lanes.has_event else at_ms


def _seen(events: Iterable[Came]) -> list[EventSeen]:
    return [seen(bytes(one.data or b""), one.segment, one.offset, one.own_ms, one.at_ms) for one in events]
