"""Limit a batch: its capacity, shared among segments and streams; the minimum to start it; and its end in event time,
the same time in all segments, so that a watermark makes no row late.

Spark's watermark follows the latest row of all batches. If a batch had one segment up to December and another up to
June, the other's remaining rows would all be late. So a batch that leaves events unread ends at the minimum of the
times that its unfinished segments would reach: after its end each segment continues with a later time, or ends as
planned, at that time or later. A row that then has an earlier time was late in its own segment.

In the segment with the minimum, at least half of the planned bytes are read, however disordered the times are.
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
class Capacity:
    """The capacity of a batch, in total and per segment; None: unlimited."""

    size_bytes: int | None = None
    events: int | None = None
    segment_bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        return self != UNLIMITED


UNLIMITED = Capacity()


class Minimum:
    """The minimum number of events of a batch. While a batch waits, events are counted once, as they arrive."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._began_at: float | None = None  # of the previous batch
        self._counted: dict[tuple[str, int], tuple[int, int, int]] = {}  # start, end, number of events

    def begin_batch(self) -> None:
        self._began_at = time.monotonic()
        self._counted.clear()

    async def is_reached(self, slices: Iterable[tuple[str, SegmentSlice]], take: Take) -> bool:
        """Return whether the slices have the minimum number of events, or the maximum delay has passed."""
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
    """Distribute `events` events, small sizes first, whose unused share goes to the others; if there are fewer events
    than keys, another key is first in each turn. `take` returns how many events it took. Return the total taken."""
    order: list[_Key] = sorted(sizes, key=lambda key: sizes[key])
    if events < len(order):
        first: int = turn % len(order)
        order = order[first:] + order[:first]
    remaining = events
    for done, key in enumerate(order):
        if remaining <= 0:
            break
        remaining -= await take(key, max(1, remaining // (len(order) - done)))
    return events - remaining


def shares(sizes: Mapping[_Key, int], total: int) -> dict[_Key, int]:
    """Divide `total` so that no key gets more than its size, and each that gets less gets an equal share.

    >>> shares({1: 10, 2: 500, 3: 700}, 210)
    {1: 10, 2: 100, 3: 100}
    """
    assigned: dict[_Key, int] = {}
    remaining = total
    for done, (key, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        assigned[key] = min(size, remaining // (len(sizes) - done))
        remaining -= assigned[key]
    return assigned


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """The part of a segment that a batch reads, from `start` to `end`; it could read up to `stop`. is_followed: the
    segment has successors."""

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
    """Return the end of a batch in each segment, at or before its planned end. plans: the event time of each one's
    stream."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def latest(plan: PlannedRead) -> int | None:
        return await latest_time(stores, plan.segment, plans[plan], plan.start, plan.end)

    async def reaches(plan: PlannedRead) -> int | None:
        """Return the time after the planned end, or the latest before it."""
        async with turns:
            next_time = None
            if plan.end < plan.stop:
                next_time = await time_at(stores, plan.segment, plans[plan], plan.end, plan.stop)
            return await latest(plan) if next_time is None else next_time

    async def end_at(plan: PlannedRead, time: int) -> int:
        if plan.start == plan.end:
            return plan.end
        async with turns:
            return await first_later(stores, plan.segment, plans[plan], plan.start, plan.end, time)

    unfinished = [plan for plan in plans if plan.has_more]
    times = await asyncio.gather(*map(reaches, unfinished))
    reached = {plan: time for plan, time in zip(unfinished, times, strict=True) if time is not None}
    if not reached:
        return {plan: plan.end for plan in plans}
    while True:
        least = min(reached, key=reached.__getitem__)
        if (await end_at(least, reached[least]) - least.start) * 2 >= least.end - least.start:
            break
        latest_in_plan = await latest(least)  # the event after its planned end is earlier than many before it
        assert latest_in_plan is not None
        reached[least] = latest_in_plan
    ends = await asyncio.gather(*(end_at(plan, reached[least]) for plan in plans))
    ends_by_plan = dict(zip(plans, ends, strict=True))
    if all(end == plan.start for plan, end in ends_by_plan.items()):  # its next event is larger than the capacity
        next_end = wire.LocateOffset(0, least.segment, least.end + 1, "")
        ends_by_plan[least] = (await stores.ask(next_end, wire.OffsetLocated)).offset
    return ends_by_plan
