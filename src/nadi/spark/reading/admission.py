"""How much of what is there a batch gets: room for it, shared by what has something to give; when it is enough; and
where it ends in event time: at one time in all segments, so that a watermark leaves no row behind.

Spark's watermark follows the latest row of all batches. A batch that had one segment up to December and another up to
June would make late all that the other still has. So a batch that leaves something behind ends at the least of the
times that its segments would get to, of those that have more: behind its end each segment goes on with a later time, or
ends where it was to, at that time or a later one. So what then comes with an earlier time came late in its own segment.

Of the segment with the least time at least half of what was planned is read, however disordered the times are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts.cuts import SegmentSlice
from nadi.client.stream_cuts.event_index import first_later, latest_time, time_at
from nadi.model.event_time import EventTime
from nadi.spark.options.parsed import Admission
from nadi.wire import commands as wire

_Key = TypeVar("_Key", int, str)
Take = Callable[[str, SegmentSlice, int], Awaitable[tuple[int, SegmentSlice]]]
_AT_ONCE = 8  # segments


@dataclass(frozen=True, slots=True)
class Room:
    """For how much a batch has room, in all and from one segment; None: for anything."""

    size_bytes: int | None = None
    events: int | None = None
    segment_bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        return self != ROOM_FOR_ALL


ROOM_FOR_ALL = Room()


class Minimum:
    """Whether there is enough for a batch. Events are counted once, as they come, for as long as a batch waits."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._began_at: float | None = None  # the batch before
        self._counted: dict[tuple[str, int], tuple[int, int, int]] = {}  # from where, to where, how many events

    def begin_batch(self) -> None:
        self._began_at = time.monotonic()
        self._counted.clear()

    async def is_reached(self, slices: Iterable[tuple[str, SegmentSlice]], take: Take) -> bool:
        """Whether the slices have as many events as there must be, or the longest delay has passed."""
        least = self._admission.min_events
        if least is None or self._began_at is None:
            return True
        if time.monotonic() - self._began_at >= self._admission.max_delay_s:
            return True
        total = 0
        for stream, piece in slices:
            key, unknown = (stream, piece.segment_id), (piece.start, piece.start, 0)
            start, reached, events = self._counted.get(key, unknown)
            if start != piece.start:
                start, reached, events = unknown
            if events < least and reached < piece.end:
                more, head = await take(stream, SegmentSlice(piece.segment_id, reached, piece.end), least - events)
                reached, events = head.end, events + more
                self._counted[key] = (start, reached, events)
            total += events
            if total >= least:
                return True
        return False


async def dealt(sizes: Mapping[_Key, int], events: int, turn: int, take: Callable[[_Key, int], Awaitable[int]]) -> int:
    """Deal out `events` events among those that have something, the ones with little first, whose rest goes to the
    others; where there are too few events for all, another one is first each turn. `take` says how many it took. How
    many were taken in all."""
    order: list[_Key] = sorted(sizes, key=lambda key: sizes[key])
    if events < len(order):
        first: int = turn % len(order)
        order = order[first:] + order[:first]
    left = events
    for done, key in enumerate(order):
        if left <= 0:
            break
        left -= await take(key, max(1, left // (len(order) - done)))
    return events - left


def shares(sizes: Mapping[_Key, int], total: int) -> dict[_Key, int]:
    """`total` divided so that nobody gets more than its size, and who gets less gets as much as any.

    >>> shares({1: 10, 2: 500, 3: 700}, 210)
    {1: 10, 2: 100, 3: 100}
    """
    given: dict[_Key, int] = {}
    left = total
    for done, (key, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        given[key] = min(size, left // (len(sizes) - done))
        left -= given[key]
    return given


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """What a batch is to read of a segment, from `start` to `end`; it could up to `stop`. is_followed: others follow
    behind that."""

    segment: str
    segment_id: int
    start: int
    end: int
    stop: int
    is_followed: bool

    @property
    def has_more(self) -> bool:
        return self.end < self.stop or self.is_followed


async def ends_in_time(stores: SegmentStores, plans: Mapping[PlannedRead, EventTime]) -> dict[PlannedRead, int]:
    """Where a batch ends in each of the segments, at or before its planned end. The event time is that of the
    segment's stream."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def latest(plan: PlannedRead) -> int | None:
        return await latest_time(stores, plan.segment, plans[plan], plan.start, plan.end)

    async def reaches(plan: PlannedRead) -> int | None:
        """The time that it has behind its planned end, or gets to before that."""
        async with turns:
            behind = None
            if plan.end < plan.stop:
                behind = await time_at(stores, plan.segment, plans[plan], plan.end, plan.stop)
            return await latest(plan) if behind is None else behind

    async def end_at(plan: PlannedRead, time: int) -> int:
        if plan.start == plan.end:
            return plan.end
        async with turns:
            return await first_later(stores, plan.segment, plans[plan], plan.start, plan.end, time)

    going_on = [plan for plan in plans if plan.has_more]
    times = await asyncio.gather(*map(reaches, going_on))
    reached = {plan: time for plan, time in zip(going_on, times, strict=True) if time is not None}
    if not reached:
        return {plan: plan.end for plan in plans}
    while True:
        least = min(reached, key=reached.__getitem__)
        if (await end_at(least, reached[least]) - least.start) * 2 >= least.end - least.start:
            break
        whole = await latest(least)  # the event behind its planned end is earlier than many before it
        assert whole is not None
        reached[least] = whole
    ends = await asyncio.gather(*(end_at(plan, reached[least]) for plan in plans))
    found = dict(zip(plans, ends, strict=True))
    if all(end == plan.start for plan, end in found.items()):  # there was no room for its next event
        next_end = wire.LocateOffset(0, least.segment, least.end + 1, "")
        found[least] = (await stores.ask(next_end, wire.OffsetLocated)).offset
    return found
