"""A stretch of a stream played as it came: by the times at which events came, at any speed.

Time runs on whether there are events or not, or jumps over pauses. What comes too fast to be shown is counted; what
comes too fast to be read is passed over: time doesn't wait. Whoever watches stops by leaving, and goes on from the time
that the last batch told.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.places.cuts import StreamCuts, slices_between
from nadi.limits import PAGE_BATCH_BYTES, PAGE_BATCH_EVENTS, PAGE_BEAT_S, PAGE_BEHIND_S
from nadi.model.streamcut import StreamCut
from nadi.web.bodies import Batch, EventSeen
from nadi.web.reading.lanes import Came, Lanes
from nadi.web.reading.payloads import pause_s, seen
from nadi.web.reading.times import CutTimes

_PAUSE_S = 1.0  # of watching: a longer one is cut down to this, where pauses are jumped over
_EXACT_S = 1.0  # spent on finding a first event to the event rather than to a second
_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Playing:
    """start, end: cuts of the stretch. from_ms: events from then on; None is the first one. speed: how many seconds
    pass in one. skips_pauses: time jumps to shortly before the next event if that is far."""

    start: StreamCut
    end: StreamCut
    from_ms: int | None
    speed: float
    skips_pauses: bool


async def play(manager: StreamManager, what: Playing) -> AsyncGenerator[Batch, None]:
    """Batches of events at the times at which they are due; the last one has no `next`."""
    what = await _whole(manager, what)
    async with _opened(manager, what) as lanes:
        async for batch in _played(lanes, what):
            yield batch


async def first_events(manager: StreamManager, what: Playing, most: int, *, last: bool = False) -> Batch:
    """The first events of the stretch, or its last ones, at once."""
    if last:
        cuts = manager.cuts(what.start.scope, what.start.stream)
        what = replace(what, start=await cuts.latest(what.start, await cuts.before(what.end, most)))
    what = await _whole(manager, what)
    async with _opened(manager, what) as lanes:
        found: list[Came] = []
        next_ms, size = await lanes.next_ms(), 0
        while next_ms is not None and (last or (len(found) < most and size < PAGE_BATCH_BYTES)):
            found.append(await lanes.take())
            size += len(found[-1].data)
            while last and len(found) > 1 and size > PAGE_BATCH_BYTES:
                size -= len(found.pop(0).data)
            next_ms = await lanes.next_ms()
        at_ms = found[-1].at_ms if found else what.from_ms or 0
        return Batch(at_ms, _seen(found), next=next_ms)


async def _whole(manager: StreamManager, what: Playing) -> Playing:
    """From the start's own time on it is all of the stretch: times are known to ten seconds, and events of one segment
    may count as older than a cut that another's were before."""
    if what.from_ms is None:
        return what
    begins_ms = await CutTimes(manager).of(what.start)
    return replace(what, from_ms=None) if begins_ms is None or what.from_ms <= begins_ms else what


@asynccontextmanager
async def _opened(manager: StreamManager, what: Playing) -> AsyncIterator[Lanes]:
    cuts = manager.cuts(what.start.scope, what.start.stream)
    start = await _begin(cuts, what)
    slices = await slices_between(cuts, start, what.end)
    made_ms = {one.segment_id: one.created_ms for one in await manager.segment_history(cuts.scope, cuts.stream)}
    pieces = [(made_ms.get(piece.segment_id, 0), piece) for piece in slices]
    lanes = Lanes(stores_of(manager), cuts.scope, cuts.stream, pieces, f"playing {next(_ids)}")
    try:
        if what.from_ms is not None:
            await lanes.pass_over(what.from_ms, _EXACT_S)
        yield lanes
    finally:
        await lanes.close()


async def _begin(cuts: StreamCuts, what: Playing) -> StreamCut:
    if what.from_ms is None:
        return what.start
    later = await cuts.latest(what.start, await cuts.at(what.from_ms))
    return await cuts.earliest(later, what.end)


class _Clock:
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


async def _played(lanes: Lanes, what: Playing) -> AsyncGenerator[Batch, None]:
    next_ms = await lanes.next_ms()
    clock = _Clock(what.from_ms if what.from_ms is not None else (next_ms or 0), what.speed)
    told_s = 0.0
    while next_ms is not None:
        ahead_s = clock.seconds_until(next_ms)
        if what.skips_pauses and ahead_s > _PAUSE_S:
            clock.set(next_ms - _PAUSE_S * 1000 * what.speed)
            ahead_s = _PAUSE_S
        is_behind = ahead_s < -PAGE_BEHIND_S
        if is_behind:
            await lanes.pass_over(int(clock.now_ms))
            next_ms = await lanes.next_ms()
        batch, next_ms = await _due(lanes, next_ms, int(clock.now_ms), is_behind=is_behind)
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


async def _due(lanes: Lanes, next_ms: int | None, now_ms: int, *, is_behind: bool) -> tuple[Batch, int | None]:
    """What came up to `now_ms`, the latest of it if that is too much; and when the next event came."""
    due: list[Came] = []
    size = passed = 0
    began_s = time.monotonic()
    while next_ms is not None and next_ms <= now_ms:
        due.append(await lanes.take())
        size += len(due[-1].data)
        while len(due) > PAGE_BATCH_EVENTS or (size > PAGE_BATCH_BYTES and len(due) > 1):
            size -= len(due.pop(0).data)
            passed += 1
        next_ms = await lanes.next_ms()
        if time.monotonic() - began_s > PAGE_BEHIND_S:
            break
        if passed % 500 == 499:
            await asyncio.sleep(0)  # others have their turns
    return Batch(now_ms, _seen(due), passed, is_behind, next_ms), next_ms


def _seen(events: Iterable[Came]) -> list[EventSeen]:
    return [seen(bytes(one.data), one.segment, one.offset, one.at_ms) for one in events]
