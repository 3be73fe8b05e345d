"""When the bytes of a segment came, as its time index tells: to a second or so, and to ten where little came; or when
their events happened, by another clock of that index, to a stretch of events.

An entry (moment, offset) says that all bytes before the offset came before that moment, and those behind it at that
moment or later. Between two entries bytes are taken to have come evenly, but not over a longer time than an entry
covers: a second if that is many bytes, ten seconds if it is few. So an hour without any isn't spread over what came
after it. By the events' own time, a LATEST clock, an event that came late counts as one of the latest time before it.
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
    PAGE_ASKED_AT_ONCE,
    PAGE_CUT_SEGMENTS,
    TIME_INDEX_BYTES,
    TIME_INDEX_MOST_MS,
    TIME_INDEX_MS,
)
from nadi.model.event_time import EventTime
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire import commands as wire
from nadi.wire.time_index import ARRIVAL, Moments, clock_of, earliest_of, is_earliest

_LOOK_BACK_BYTES = 64 * KIB  # in which there is an entry, unless what comes in a second is more than that:
_FARTHER = 16  # times as far then
_BEFORE, _BEHIND, _MADE = 2, 1, 0  # the cut: which byte tells when the stream stood there
Numbers = np.ndarray[Any, np.dtype[np.int64]]
BY_ARRIVAL, BY_EVENT_TIME = "arrival", "event-time"


async def event_time_of(manager: StreamManager, scope: str, stream: str, by: str | None) -> EventTime | None:
    """The field with the time by which a stream is shown; None for arrival. by: BY_ARRIVAL, BY_EVENT_TIME, or None for
    the latter where the stream has a field. InvalidArgumentError."""
    _check_by(by)
    if by == BY_ARRIVAL:
        return None
    event_time = (await stores_of(manager).controller.stream_configuration(scope, stream)).event_time
    if event_time is None and by == BY_EVENT_TIME:
        raise InvalidArgumentError(
            f"{scope}/{stream} names no field with its events' time: name one by update_stream(event_time=...), or ask "
            f"by {BY_ARRIVAL}"
        )
    if event_time is not None:
        await asyncio.to_thread(import_module, "nadi.client.stream_cuts.event_index")  # its imports take a while
    return event_time


def _check_by(by: str | None) -> None:
    if by not in (None, BY_ARRIVAL, BY_EVENT_TIME):
        raise InvalidArgumentError(f"by is {BY_ARRIVAL} or {BY_EVENT_TIME}, not {by[:40]!r}")


def clock_by(event_time: EventTime | None) -> int:
    return ARRIVAL if event_time is None else clock_of(str(event_time))


async def entries(stores: SegmentStores, segment: str, start: int, end: int, clock: int) -> Moments | None:
    """As `list_moments`, in ms by each clock: what happened before a moment did before that ms."""
    page = await list_moments(stores, segment, start, end, clock)
    if page is None or clock == ARRIVAL:
        return page
    return replace(page, moments=page.moments // 1000 if is_earliest(clock) else -(-page.moments // 1000))


async def first_ms(stores: SegmentStores, segment: str, start: int, clock: int) -> int | None:
    """The earliest time of the events behind there, as far as they are in the index of a LATEST clock."""
    page = await entries(stores, segment, start, start + 1, earliest_of(clock))
    if page is not None and page.start > start:
        page = await entries(stores, segment, page.start, page.start + 1, earliest_of(clock))
    return None if page is None or not len(page.moments) else int(page.moments[0])


async def is_indexed(stores: SegmentStores, segment: str, clock: int) -> bool:
    """Whether the times of all events of a segment are in the index of a LATEST clock."""
    request = wire.LocateMoment(0, segment, EVENT_TIME_MIN, earliest_of(clock), "")  # answered with its end if not
    offset = (await stores.ask(request, wire.MomentLocated)).offset
    return offset == (await segment_info(stores, segment)).start_offset


class LaneTimes:
    """Of one segment. `of` is asked for offsets in order. begins_ms: nothing came earlier. start: of the segment, as
    it was when asked. clock: ARRIVAL, or a LATEST one for the events' own times."""

    def __init__(self, stores: SegmentStores, segment: str, begins_ms: int, clock: int = ARRIVAL) -> None:
        self._stores, self._segment, self._begins_ms, self._clock = stores, segment, begins_ms, clock
        self.start = 0
        self._from = self._known = 0  # bytes in between are known: up to an entry, the moment of which is
        self._last_ms = begins_ms
        self._at: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(0)  # offsets, and the moments at them
        self._moments: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(0)

    async def of(self, offsets: Numbers, end: int) -> Numbers:
        """When the bytes at these offsets, and up to `end`, came: in ms since 1970, never earlier than those before; 0
        if unknown."""
        if not len(offsets):
            return offsets
        start = int(offsets[0])
        if not self._from <= start <= self._known:
            await self._go_to(start)
        if end > self._known:
            await self._go_on(start, end)
        if not len(self._at):
            return np.full(len(offsets), self._last_ms, np.int64)
        found: Numbers = np.interp(offsets, self._at, self._moments).astype(np.int64)
        return found

    @property
    def has_any(self) -> bool:
        """Whether there were bytes where it looked."""
        return len(self._at) > 0

    async def _go_to(self, start: int) -> None:
        """Begin at the last entry up to there, or where the segment begins."""
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
            offset, back = offset if offset > page.start else 0, back * _FARTHER
        self._from, self._known, self._last_ms = 0, 0, self._begins_ms

    async def _go_on(self, start: int, end: int) -> None:
        """Learn the moments of the bytes up to `end` at least, and forget those before `start`."""
        first = max(int(np.searchsorted(self._at, start, side="right")) - 1, 0)
        places, moments = self._at[first:].tolist(), self._moments[first:].tolist()
        while end > self._known:
            page = await entries(self._stores, self._segment, self._known, end, self._clock)
            if page is None:
                break
            self.start = page.start
            if page.start >= end:  # what was asked for is truncated away: the first byte that is left
                self._known, end = page.start, page.start + 1
                continue
            self._known = max(self._known, page.start)
            for moment, until in await self._entries(page, end):
                if moment > 0 or self._clock:
                    longest = TIME_INDEX_MS if until - self._known > 2 * TIME_INDEX_BYTES else TIME_INDEX_MOST_MS
                    places += [self._known, max(until - 0.5, self._known)]
                    moments += [self._last_ms if self._clock else max(self._last_ms, moment - longest), moment - 1]
                self._last_ms, self._known = moment, until
            if page.is_last:
                break
        self._at, self._moments = np.array(places), np.maximum.accumulate(np.array(moments))

    async def _entries(self, page: Moments, end: int) -> list[tuple[int, int]]:
        found = list(zip(page.moments.tolist(), page.offsets.tolist(), strict=True))
        last_ms, reached = found[-1] if found else (self._last_ms, max(page.start, self._known))
        if (
            page.is_last and page.appended_ms and reached < end and not self._clock
        ):  # the latest bytes have no entry yet
            length = (await segment_info(self._stores, self._segment)).write_offset
            if length > reached:
                found.append((max(page.appended_ms + 1, last_ms), length))
        return found


class CutTimes:
    """When streams stood at cuts. What there is to know of a stream's segments it asks once. by: as in
    `event_time_of`."""

    def __init__(self, manager: StreamManager, by: str | None = None) -> None:
        _check_by(by)
        self._manager, self._stores, self._by = manager, stores_of(manager), by
        self._turns = asyncio.Semaphore(PAGE_ASKED_AT_ONCE)
        self._made_ms: dict[str, dict[int, int]] = {}
        self._event_times: dict[str, EventTime | None] = {}

    async def of(self, cut: StreamCut) -> int | None:
        """When the last byte before the cut came; if there is none, the first one behind it; and if there is neither,
        when its segments were made. In ms since 1970; None if that isn't known, as by a time that its events haven't.

        Of very many segments those with most bytes before the cut are asked. It is told as `LaneTimes` does: no byte
        behind the cut in the same segment is told to have come earlier.
        """
        made_ms: dict[int, int] = {}
        try:
            clock = clock_by(await self._event_time(cut))
        except InvalidArgumentError:
            return None
        if clock == ARRIVAL and any(offset <= _LOOK_BACK_BYTES for offset in cut.positions.values()):
            made_ms = await self._made(cut)
        most = nlargest(PAGE_CUT_SEGMENTS, cut.positions.items(), key=lambda one: one[1])
        asked = (self._at(cut, segment, offset, made_ms.get(segment, 0), clock) for segment, offset in most)
        found = [(kind, at_ms) for kind, at_ms in await asyncio.gather(*asked) if at_ms is not None]
        best = max((kind for kind, _ in found), default=_MADE)
        moments = [at_ms for kind, at_ms in found if kind == best]
        return max(moments) if best == _BEFORE else min(moments, default=None)

    async def _at(
        self, cut: StreamCut, segment: int, offset: int, begins_ms: int, clock: int
    ) -> tuple[int, int | None]:
        name, byte = segment_name(cut.scope, cut.stream, segment), max(offset - 1, 0)
        async with self._turns:
            try:
                if clock:
                    begins = await first_ms(self._stores, name, 0, clock)
                    if begins is None:
                        return _MADE, None
                    begins_ms = begins
                times = LaneTimes(self._stores, name, begins_ms, clock)
                (at_ms,) = await times.of(np.array([byte], np.int64), byte + 1)
            except NotFoundError:
                return _MADE, None
        kind = _BEFORE if offset > times.start else _BEHIND if times.has_any else _MADE
        return kind, int(at_ms) if at_ms > 0 or clock else None

    async def _event_time(self, cut: StreamCut) -> EventTime | None:
        key = f"{cut.scope}/{cut.stream}"
        if key not in self._event_times:
            try:
                self._event_times[key] = await event_time_of(self._manager, cut.scope, cut.stream, self._by)
            except (NotFoundError, AccessDeniedError):  # as in `_made`
                self._event_times[key] = None
        return self._event_times[key]

    async def _made(self, cut: StreamCut) -> dict[int, int]:
        key = f"{cut.scope}/{cut.stream}"
        if key not in self._made_ms:
            try:
                history = await self._manager.segment_history(cut.scope, cut.stream)
            except (NotFoundError, AccessDeniedError):  # a place of a stream that is gone, or that one may not look at
                history = []
            self._made_ms[key] = {one.segment_id: one.created_ms for one in history}
        return self._made_ms[key]
