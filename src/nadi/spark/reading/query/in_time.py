"""Where a batch ends in event time: at one time in all segments, so that a watermark leaves no row behind.

Spark's watermark follows the latest row of all batches. A batch that had one segment up to December and another up to
June would make late all that the other still has. So a batch that leaves something behind ends at the least of the
times that its segments would get to, of those that have more: behind its end each segment goes on with a later time, or
ends where it was to, at that time or a later one. So what then comes with an earlier time came late in its own segment.

Of the segment with the least time at least half of what was planned is read, however disordered the times are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from nadi.client.places.event_index import first_later, latest_time, time_at
from nadi.client.segments.stores import SegmentStores
from nadi.model.event_time import EventTime
from nadi.wire import commands as wire

_AT_ONCE = 8  # segments


@dataclass(frozen=True, slots=True)
class Planned:
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


async def ends_in_time(stores: SegmentStores, plans: Mapping[Planned, EventTime]) -> dict[Planned, int]:
    """Where a batch ends in each of the segments, at or before its planned end. The event time is that of the
    segment's stream."""

    turns = asyncio.Semaphore(_AT_ONCE)

    async def latest(plan: Planned) -> int | None:
        return await latest_time(stores, plan.segment, plans[plan], plan.start, plan.end)

    async def reaches(plan: Planned) -> int | None:
        """The time that it has behind its planned end, or gets to before that."""
        async with turns:
            behind = None
            if plan.end < plan.stop:
                behind = await time_at(stores, plan.segment, plans[plan], plan.end, plan.stop)
            return await latest(plan) if behind is None else behind

    async def end_at(plan: Planned, time: int) -> int:
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
