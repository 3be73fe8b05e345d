"""Arrival times of a segment's bytes from its time index, accurate to a second, or to ten at low rates; or event times,
from another clock of that index.

An entry (moment, offset) means that all bytes before the offset arrived before that moment, and later bytes at or after
it. Times between entries are interpolated, but over no longer than an entry covers (a second at high rates, ten at low
rates), so that a long pause isn't spread over the bytes after it. With event times, a LATEST clock, a late event counts
with the latest time before it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from heapq import nlargest
from importlib import import_module
from typing import Any

import numpy as np

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.segments.byte_locations import list_moments
from nadi.client.segments.info import segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.errors import AccessDeniedError, InvalidArgumentError, NotFoundError
from nadi.limits import (
    EVENT_TIME_MIN,
    KIB,
    PAGE_CUT_SEGMENTS,
    PAGE_QUERIES_AT_ONCE,
    TIME_INDEX_BYTES,
    TIME_INDEX_MOST_MS,
    TIME_INDEX_MS,
)
from nadi.model.event_time import EventTime
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire import commands as wire
from nadi.wire.time_index import ARRIVAL, Moments, clock_of, earliest_of, is_earliest

_LOOK_BACK_BYTES = 64 * KIB  # contains an entry, unless more bytes arrive in a second:
_LOOK_BACK_FACTOR = 16  # then look this many times farther back
_BEFORE, _AFTER, _CREATED = 2, 1, 0  # which byte determines a cut's time: before it, after it, or none
Numbers = np.ndarray[Any, np.dtype[np.int64]]
BY_ARRIVAL, BY_EVENT_TIME = "arrival", "event-time"


async def event_time_of(manager: StreamManager, scope: str, stream: str, by: str | None) -> EventTime | None:
    """Return the event time by which to show a stream; None for arrival. by: BY_ARRIVAL, BY_EVENT_TIME, or None for
    event time if the stream defines it. InvalidArgumentError."""
    _check_by(by)
    if by == BY_ARRIVAL:
        return None
    event_time = (await stores_of(manager).controller.stream_configuration(scope, stream)).event_time
    if event_time is None and by == BY_EVENT_TIME:
        raise InvalidArgumentError(
            f"{scope}/{stream} doesn't define an event time: set one with update_stream(event_time=...), or use "
            f"by={BY_ARRIVAL}"
        )
    if event_time is not None:
        await asyncio.to_thread(import_module, "nadi.client.stream_cuts.event_index")  # a slow import
    return event_time


def _check_by(by: str | None) -> None:
    if by not in (None, BY_ARRIVAL, BY_EVENT_TIME):
        raise InvalidArgumentError(f"invalid by {by[:40]!r}: use {BY_ARRIVAL} or {BY_EVENT_TIME}")


def clock_by(event_time: EventTime | None) -> int:
    return ARRIVAL if event_time is None else clock_of(str(event_time))


async def entries(stores: SegmentStores, segment: str, start: int, end: int, clock: int) -> Moments | None:
    """Like `list_moments`, but in ms by each clock; rounding preserves the meaning of "before"."""
    page = await list_moments(stores, segment, start, end, clock)
    if page is None or clock == ARRIVAL:
        return page
    return replace(page, moments=page.moments // 1000 if is_earliest(clock) else -(-page.moments // 1000))


async def first_ms(stores: SegmentStores, segment: str, start: int, clock: int) -> int | None:
    """Return the earliest indexed time of the events from `start` on, by the EARLIEST clock of a LATEST one."""
    page = await entries(stores, segment, start, start + 1, earliest_of(clock))
    if page is not None and page.start > start:
        page = await entries(stores, segment, page.start, page.start + 1, earliest_of(clock))
    return None if page is None or not len(page.moments) else int(page.moments[0])


async def is_indexed(stores: SegmentStores, segment: str, clock: int) -> bool:
    """Return whether the index of a LATEST clock covers all events of a segment."""
    request = wire.LocateMoment(0, segment, EVENT_TIME_MIN, earliest_of(clock), "")  # returns the index's end otherwise
    offset = (await stores.ask(request, wire.MomentLocated)).offset
    return offset == (await segment_info(stores, segment)).start_offset


class LaneTimes:
    """Times of one segment. Call `of` with increasing offsets. begins_ms: lower bound of times. start: the segment's
    start offset at the last request. clock: ARRIVAL, or a LATEST one for event times."""

    def __init__(self, stores: SegmentStores, segment: str, begins_ms: int, clock: int = ARRIVAL) -> None:
        self._stores, self._segment, self._begins_ms, self._clock = stores, segment, begins_ms, clock
        self.start = 0
        self._from = self._known = 0  # the range of known bytes, ending at an entry whose moment is
        self._last_ms = begins_ms
        self._at: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(0)  # offsets, and their moments
        self._moments: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(0)

    async def of(self, offsets: Numbers, end: int) -> Numbers:
        """Return the times of the bytes at these offsets, the last ending at `end`, in ms since 1970 and never
        decreasing; 0 if unknown."""
        if not len(offsets):
            return offsets
        start = int(offsets[0])
        if not self._from <= start <= self._known:
            await self._seek(start)
        if end > self._known:
            await self._extend(start, end)
        if not len(self._at):
            return np.full(len(offsets), self._last_ms, np.int64)
        times: Numbers = np.interp(offsets, self._at, self._moments).astype(np.int64)
        return times

    @property
    def has_any(self) -> bool:
        """Whether the range contained bytes."""
        return len(self._at) > 0

    async def _seek(self, start: int) -> None:
        """Start at the last entry up to this offset, or at the segment's start."""
        self._at = self._moments = np.zeros(0)
        offset, back = start, _LOOK_BACK_BYTES
        while offset > 0:
            offset = max(start - back, 0)
            page = await entries(self._stores, self._segment, offset, start + 1, self._clock)
            if page is None:
                break
            before = int(np.searchsorted(page.offsets, start, side="right"))
            if before:
                self._from = self._known = int(page.offsets[before - 1])
                self._last_ms = int(page.moments[before - 1])
                return
            offset, back = offset if offset > page.start else 0, back * _LOOK_BACK_FACTOR
        self._from, self._known, self._last_ms = 0, 0, self._begins_ms

    async def _extend(self, start: int, end: int) -> None:
        """Read the moments of the bytes up to `end` at least, and drop those before `start`."""
        first = max(int(np.searchsorted(self._at, start, side="right")) - 1, 0)
        offsets, moments = self._at[first:].tolist(), self._moments[first:].tolist()
        while end > self._known:
            page = await entries(self._stores, self._segment, self._known, end, self._clock)
            if page is None:
                break
            self.start = page.start
            if page.start >= end:  # the range is truncated: use the first remaining byte
                self._known, end = page.start, page.start + 1
                continue
            self._known = max(self._known, page.start)
            for moment, until in await self._entries(page, end):
                if moment > 0 or self._clock:
                    longest = TIME_INDEX_MS if until - self._known > 2 * TIME_INDEX_BYTES else TIME_INDEX_MOST_MS
                    offsets += [self._known, max(until - 0.5, self._known)]
                    moments += [self._last_ms if self._clock else max(self._last_ms, moment - longest), moment - 1]
                self._last_ms, self._known = moment, until
            if page.is_last:
                break
        self._at, self._moments = np.array(offsets), np.maximum.accumulate(np.array(moments))

    async def _entries(self, page: Moments, end: int) -> list[tuple[int, int]]:
        listed = list(zip(page.moments.tolist(), page.offsets.tolist(), strict=True))
        last_ms, indexed = listed[-1] if listed else (self._last_ms, max(page.start, self._known))
        if (
            page.is_last and page.appended_ms and indexed < end and not self._clock
        ):  # the latest bytes aren't indexed yet
            length = (await segment_info(self._stores, self._segment)).write_offset
            if length > indexed:
                listed.append((max(page.appended_ms + 1, last_ms), length))
        return listed


class CutTimes:
    """Times of cuts. It requests the segments of each stream only once. by: as in `event_time_of`."""

    def __init__(self, manager: StreamManager, by: str | None = None) -> None:
        _check_by(by)
        self._manager, self._stores, self._by = manager, stores_of(manager), by
        self._slots = asyncio.Semaphore(PAGE_QUERIES_AT_ONCE)
        self._created_ms: dict[str, dict[int, int]] = {}
        self._event_times: dict[str, EventTime | None] = {}

    async def of(self, cut: StreamCut) -> int | None:
        """Return the time of the last byte before the cut, or else of the first byte after it, or else of the segments'
        creation. In ms since 1970; None if unknown, for example if the events lack an event time.

        Only the segments with most bytes before the cut are considered if there are very many. Times are those of
        `LaneTimes`: no later byte of the same segment gets an earlier time.
        """
        created_ms: dict[int, int] = {}
        try:
            clock = clock_by(await self._event_time(cut))
        except InvalidArgumentError:
            return None
        if clock == ARRIVAL and any(offset <= _LOOK_BACK_BYTES for offset in cut.positions.values()):
            created_ms = await self._created(cut)
        most = nlargest(PAGE_CUT_SEGMENTS, cut.positions.items(), key=lambda position: position[1])
        requests = (self._at(cut, segment, offset, created_ms.get(segment, 0), clock) for segment, offset in most)
        times = [(kind, at_ms) for kind, at_ms in await asyncio.gather(*requests) if at_ms is not None]
        best = max((kind for kind, _ in times), default=_CREATED)
        moments = [at_ms for kind, at_ms in times if kind == best]
        return max(moments) if best == _BEFORE else min(moments, default=None)

    async def _at(
        self, cut: StreamCut, segment: int, offset: int, begins_ms: int, clock: int
    ) -> tuple[int, int | None]:
        name, byte = segment_name(cut.scope, cut.stream, segment), max(offset - 1, 0)
        async with self._slots:
            try:
                if clock:
                    begins = await first_ms(self._stores, name, 0, clock)
                    if begins is None:
                        return _CREATED, None
                    begins_ms = begins
                times = LaneTimes(self._stores, name, begins_ms, clock)
                (at_ms,) = await times.of(np.array([byte], np.int64), byte + 1)
            except NotFoundError:
                return _CREATED, None
        kind = _BEFORE if offset > times.start else _AFTER if times.has_any else _CREATED
        return kind, int(at_ms) if at_ms > 0 or clock else None

    async def _event_time(self, cut: StreamCut) -> EventTime | None:
        key = f"{cut.scope}/{cut.stream}"
        if key not in self._event_times:
            try:
                self._event_times[key] = await event_time_of(self._manager, cut.scope, cut.stream, self._by)
            except (NotFoundError, AccessDeniedError):  # as in `_created`
                self._event_times[key] = None
        return self._event_times[key]

    async def _created(self, cut: StreamCut) -> dict[int, int]:
        key = f"{cut.scope}/{cut.stream}"
        if key not in self._created_ms:
            try:
                history = await self._manager.segment_history(cut.scope, cut.stream)
            except (NotFoundError, AccessDeniedError):  # the stream was deleted, or isn't accessible
                history = []
            self._created_ms[key] = {each.segment_id: each.created_ms for each in history}
        return self._created_ms[key]
