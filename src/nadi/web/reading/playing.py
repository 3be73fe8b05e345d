"""Replays a range of a stream by arrival time or event time, at any speed.

Playback time advances independently of events, optionally jumping over pauses. Events too fast to be shown are counted;
events too fast to be read are skipped, as playback time doesn't wait. A viewer stops by disconnecting and resumes from
the time in the last batch.
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
    PAGE_BATCH_BYTES,
    PAGE_BATCH_EVENTS,
    PAGE_BEAT_S,
    PAGE_BEHIND_S,
    PAGE_QUERIES_AT_ONCE,
)
from nadi.model.event_time import EventTime
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.web.bodies import EventBody, EventRange, EventsMessage, PlaybackRange
from nadi.web.reading.lanes import NO_TIME, Lanes, TimedEvent
from nadi.web.reading.payloads import pause_s, seen
from nadi.web.reading.times import BY_ARRIVAL, BY_EVENT_TIME, CutTimes, clock_by, event_time_of, first_ms, is_indexed
from nadi.wire.time_index import ARRIVAL, earliest_of

_PAUSE_S = 1.0  # of playback: longer pauses are shortened to this if pauses are skipped
_EXACT_S = 1.0  # time limit per segment on finding the exact first event rather than one within a second,
_OPEN_S = 2.0  # and for all segments together
_FIRST_S = 5.0  # time limit on finding a first event that has a time
_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Playing:
    """What to replay. start, end: cuts of the range. from_ms, to_ms: time range; None: from the first or to the last
    event. speed: playback seconds per second. skips_pauses: jump to shortly before the next event if that is far.
    event_time: times are event times."""

    start: StreamCut
    end: StreamCut
    from_ms: int | None
    speed: float = 1.0
    skips_pauses: bool = False
    to_ms: int | None = None
    event_time: EventTime | None = None


async def replay_of(manager: StreamManager, scope: str, stream: str, query: EventRange) -> Playing:
    """Return the range of a named slice or between two positions, by default head and tail. InvalidArgumentError or
    NotFoundError."""
    event_time = await event_time_of(manager, scope, stream, query.by or None)
    if query.slice:
        if query.start or query.end:
            raise InvalidArgumentError("start and end can't be combined with slice: omit them or the slice")
        named = await manager.slices(scope).get(query.slice)
        if named.stream != stream:
            raise InvalidArgumentError(
                f"slice {scope}/{query.slice} belongs to stream {named.stream}: request it there"
            )
        start, end = named.start, named.end
    else:
        cuts, to = manager.cuts(scope, stream), query.end or "tail"
        start, end = await asyncio.gather(cuts.named(query.start or "head"), cuts.named(to, end=True))
    from_ms, to_ms = (None if ms is UNSET else ms for ms in (query.from_ms, query.to_ms))
    playing = Playing(start, end, from_ms, to_ms=to_ms, event_time=event_time)
    if isinstance(query, PlaybackRange):
        playing = replace(playing, speed=query.speed, skips_pauses=query.pauses == "skip")
    return playing


async def play(manager: StreamManager, replay: Playing) -> AsyncGenerator[EventsMessage, None]:
    """Yield batches of events when they are due; the last one has no `next`."""
    begins_ms, replay = replay.from_ms or 0, await _normalized(manager, replay)
    async with _opened(manager, replay) as lanes:
        async for batch in _played(lanes, replay, begins_ms):
            yield batch


async def first_events(manager: StreamManager, replay: Playing, most: int, *, last: bool = False) -> EventsMessage:
    """Return the first or last events of the range."""
    if last:
        cuts = manager.cuts(replay.start.scope, replay.start.stream)
        replay = replace(replay, start=await cuts.latest(replay.start, await cuts.before(replay.end, most)))
    replay = await _normalized(manager, replay)
    async with _opened(manager, replay) as lanes:
        events: list[TimedEvent] = []
        next_ms, size, deadline_s = await lanes.next_ms(), 0, time.monotonic() + _FIRST_S
        while (
            next_ms is not None
            and (last or (len(events) < most and size < PAGE_BATCH_BYTES))
            and (lanes.has_event or time.monotonic() < deadline_s)
        ):
            size += _append(events, await lanes.take())
            while last and len(events) > 1 and size > PAGE_BATCH_BYTES:
                size -= len(events.pop(0).data or b"")
            next_ms = await lanes.next_ms()
        at_ms = events[-1].at_ms if events else replay.from_ms or 0
        return EventsMessage(at_ms, _seen(events), next=_next(lanes, next_ms, at_ms), timeless=lanes.timeless)


def _append(due: list[TimedEvent], event: TimedEvent) -> int:
    """Add an event, unless it is a placeholder; return its size."""
    if event.data is None:
        return 0
    due.append(event)
    return len(event.data)


async def _normalized(manager: StreamManager, replay: Playing) -> Playing:
    """Drop `from_ms` if it isn't after the start's time. Times are accurate to ten seconds, so filtering by it would
    omit events of segments whose times count as earlier than the cut's."""
    if replay.from_ms is None:
        return replay
    begins_ms = await CutTimes(manager, BY_EVENT_TIME if replay.event_time else BY_ARRIVAL).of(replay.start)
    is_redundant = replay.event_time is None if begins_ms is None else replay.from_ms <= begins_ms
    return replace(replay, from_ms=None) if is_redundant else replay


@asynccontextmanager
async def _opened(manager: StreamManager, replay: Playing) -> AsyncIterator[Lanes]:
    cuts = manager.cuts(replay.start.scope, replay.start.stream)
    start, end = await _bounds(manager, cuts, replay)
    slices = await slices_between(cuts, start, end)
    pieces = await _pieces(manager, cuts, replay, slices)
    within_ms = (
        -math.inf if replay.from_ms is None else replay.from_ms,
        math.inf if replay.to_ms is None else replay.to_ms,
    )
    name, event_time = f"playing {next(_ids)}", replay.event_time
    lanes = Lanes(stores_of(manager), cuts.scope, cuts.stream, pieces, name, event_time, within_ms)
    try:
        if replay.from_ms is not None:
            await lanes.skip(replay.from_ms, min(_EXACT_S, _OPEN_S / max(len(pieces), 1)))
        yield lanes
    finally:
        await lanes.close()


async def _pieces(
    manager: StreamManager, cuts: StreamCuts, replay: Playing, slices: Sequence[SegmentSlice]
) -> list[tuple[int, SegmentSlice]]:
    """Return the slices ordered by start, each with the time before which it has no events: the segment's creation by
    arrival, or the first event time if the index is complete."""
    if replay.event_time is None:
        created_ms = {
            each.segment_id: each.created_ms for each in await manager.segment_history(cuts.scope, cuts.stream)
        }
        return [(created_ms.get(piece.segment_id, 0), piece) for piece in slices]
    stores, clock, turns = stores_of(manager), clock_by(replay.event_time), asyncio.Semaphore(PAGE_QUERIES_AT_ONCE)

    async def begins_ms(piece: SegmentSlice) -> int:
        name = segment_name(cuts.scope, cuts.stream, piece.segment_id)
        async with turns:
            begins = await first_ms(stores, name, piece.start, clock) if await is_indexed(stores, name, clock) else None
            return NO_TIME if begins is None else begins

    starts = await asyncio.gather(*map(begins_ms, slices))
    return sorted(zip(starts, slices, strict=True), key=lambda pair: pair[0])


async def _bounds(manager: StreamManager, cuts: StreamCuts, replay: Playing) -> tuple[StreamCut, StreamCut]:
    """Narrow the range to `from_ms` and `to_ms` by the time index, without reading events; unindexed parts stay in the
    range."""
    clock = clock_by(replay.event_time)

    async def at(at_ms: int, clock: int) -> StreamCut:
        if clock == ARRIVAL:
            return await cuts.at(at_ms)
        at_us = min(max(at_ms * 1000, EVENT_TIME_MIN), EVENT_TIME_MAX)
        return await stores_of(manager).controller.cut_at(cuts.scope, cuts.stream, at_us, clock)

    start, end, to_ms = replay.start, replay.end, replay.to_ms
    if replay.from_ms is None and to_ms is None and not clock:
        return start, end
    await cuts.segments_between(start, end)  # raises if the end is before the start
    if clock and to_ms is None:
        to_ms = EVENT_TIME_MAX  # events without a time may follow the latest one
    if to_ms is not None:
        end = await cuts.earliest(end, await at(to_ms, earliest_of(clock) if clock else clock))
    if replay.from_ms is not None:
        start = await cuts.latest(start, await at(replay.from_ms, clock))
    return await cuts.earliest(start, end), end


class _PlayClock:
    """A clock that starts at `at_ms` and advances at a speed."""

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


async def _played(lanes: Lanes, replay: Playing, begins_ms: int) -> AsyncGenerator[EventsMessage, None]:
    next_ms = await lanes.next_ms()
    while next_ms is not None and replay.from_ms is None and not lanes.has_event:
        yield EventsMessage(begins_ms, [], next=begins_ms)
        await lanes.take()
        next_ms = await lanes.next_ms()
    clock = _PlayClock(replay.from_ms if replay.from_ms is not None else (next_ms or 0), replay.speed)
    reported_s = 0.0
    while next_ms is not None:
        ahead_s = clock.seconds_until(next_ms)
        if replay.skips_pauses and ahead_s > _PAUSE_S:
            clock.set(next_ms - _PAUSE_S * 1000 * replay.speed)
            ahead_s = _PAUSE_S
        is_behind = ahead_s < -PAGE_BEHIND_S and lanes.has_event
        if is_behind:
            await lanes.skip(int(clock.now_ms))
            next_ms = await lanes.next_ms()
        batch, next_ms = await _due(lanes, next_ms, math.floor(clock.now_ms), is_behind=is_behind, end_ms=replay.to_ms)
        now_s = time.monotonic()
        if batch.events or batch.isBehind or now_s - reported_s >= PAGE_BEAT_S or next_ms is None:
            reported_s = now_s
            yield batch
        if next_ms is None:
            return
        until_s = min(clock.seconds_until(next_ms), PAGE_BEAT_S)
        is_jumped = replay.skips_pauses and until_s > _PAUSE_S
        least_s = pause_s(batch.events)
        await asyncio.sleep(least_s if is_jumped else max(until_s, least_s))


async def _due(
    lanes: Lanes, next_ms: int | None, now_ms: int, *, is_behind: bool, end_ms: int | None
) -> tuple[EventsMessage, int | None]:
    """Return a batch with the events up to `now_ms`, only the latest if there are too many, and the next event's time.
    The position of the last batch isn't after the end of the range."""
    due: list[TimedEvent] = []
    size = passed = 0
    began_s = time.monotonic()
    while next_ms is not None and next_ms <= now_ms:
        size += _append(due, await lanes.take())
        while len(due) > PAGE_BATCH_EVENTS or (size > PAGE_BATCH_BYTES and len(due) > 1):
            size -= len(due.pop(0).data or b"")
            passed += 1
        next_ms = await lanes.next_ms()
        if time.monotonic() - began_s > PAGE_BEHIND_S:
            break
        if passed % 500 == 499:
            await asyncio.sleep(0)  # lets other tasks run
    timeless, lanes.timeless = lanes.timeless, 0
    if next_ms is None and end_ms is not None:
        now_ms = min(now_ms, end_ms)
    return EventsMessage(now_ms, _seen(due), passed, is_behind, _next(lanes, next_ms, now_ms), timeless), next_ms


def _next(lanes: Lanes, next_ms: int | None, at_ms: int) -> int | None:
    """Return when the next event is due; now if it is still unknown."""
    return next_ms if next_ms is None or lanes.has_event else at_ms


def _seen(events: Iterable[TimedEvent]) -> list[EventBody]:
    return [seen(bytes(event.data or b""), event.segment, event.offset, event.own_ms, event.at_ms) for event in events]
