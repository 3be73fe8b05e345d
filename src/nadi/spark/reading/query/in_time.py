"""Where a batch ends in event time: at one time in all segments, so that a watermark leaves no row behind.

Spark's watermark follows the latest row of all batches. A batch that had one segment up to December and another up to
June would make late all that the other still has. So a batch that leaves something behind ends at the least of the
times that its segments would get to, of those that have more: behind its end each segment goes on with a later time, or
ends where it was to, at that time or a later one. So what then comes with an earlier time came late in its own segment.

The segment of the least time is read as far as planned: every batch goes on, however disordered the times are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from nadi.client.places.event_index import first_later, latest_time
from nadi.client.segments.stores import SegmentStores
from nadi.limits import KIB
from nadi.model.event_time import EventTime
from nadi.wire import commands as wire

_LOOK_BYTES = 64 * KIB  # before a segment's planned end
_AT_ONCE = 8  # segments
_Result = TypeVar("_Result")


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

    async def boundary(plan: Planned, offset: int) -> int:
        return (await stores.ask(wire.LocateOffset(0, plan.segment, offset, ""), wire.OffsetLocated)).offset

    async def latest(plan: Planned, start: int, end: int) -> int | None:
        return await latest_time(stores, plan.segment, plans[plan], start, end)

    async def end_at(plan: Planned, time: int) -> int:
        if plan.start == plan.end:
            return plan.end
        return await first_later(stores, plan.segment, plans[plan], plan.start, plan.end, time)

    async def reaches(plan: Planned) -> int | None:
        """Up to which time it is read at its planned end, with the event that follows there; or an earlier time."""
        start, end = plan.start, plan.end
        if end - start > _LOOK_BYTES:
            start = await boundary(plan, end - _LOOK_BYTES)
        return await latest(plan, start, await boundary(plan, end + 1) if end < plan.stop else end)

    going_on = await _each([plan for plan in plans if plan.has_more], reaches)
    reached = {plan: time for plan, time in going_on.items() if time is not None}
    if not reached:
        return {plan: plan.end for plan in plans}
    least = min(reached, key=reached.__getitem__)
    while await end_at(least, reached[least]) < least.end:  # an event before where it looked is later
        whole = await latest(least, least.start, least.end)
        assert whole is not None
        reached[least] = whole
        least = min(reached, key=reached.__getitem__)
    ends = await _each(plans, lambda plan: end_at(plan, reached[least]))
    if all(end == plan.start for plan, end in ends.items()):
        ends[least] = await boundary(least, least.end + 1)  # there was no room for its next event
    return ends


async def _each(plans: Iterable[Planned], work: Callable[[Planned], Awaitable[_Result]]) -> dict[Planned, _Result]:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(plan: Planned) -> tuple[Planned, _Result]:
        async with turns:
            return plan, await work(plan)

    return dict(await asyncio.gather(*map(one, plans)))
