"""When the bytes of a segment came, as its time index tells: to a second or so, and to ten where little came.

An entry (moment, offset) says that all bytes before the offset came before that moment, and those behind it at that
moment or later. Between two entries bytes are taken to have come evenly, but not over a longer time than an entry
covers: a second if that is many bytes, ten seconds if it is few. So an hour without any isn't spread over what came
after it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from nadi.client.segments.located import list_moments
from nadi.client.segments.stores import SegmentStores
from nadi.errors import NotFoundError
from nadi.limits import KIB, PAGE_ASKED_AT_ONCE, TIME_INDEX_BYTES, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire.moments import Moments

_LOOK_BACK_BYTES = 64 * KIB  # in which there is an entry, unless what comes in a second is more than that
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class AppendTimes:
    """Of one segment. `of` is asked for offsets in order. begins_ms: nothing came earlier."""

    def __init__(self, stores: SegmentStores, segment: str, begins_ms: int) -> None:
        self._stores, self._segment, self._begins_ms = stores, segment, begins_ms
        self._known = self._from = 0  # bytes in between are known
        self._at: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(0)  # offsets, and the moments at them
        self._moments: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(0)
        self._last_ms = 0

    async def of(self, offsets: Numbers, end: int) -> Numbers:
        """When the bytes at these offsets, and up to `end`, came: in ms since 1970, never earlier than those before; 0
        if unknown."""
        if not len(offsets):
            return offsets
        start = int(offsets[0])
        if not self._from <= start or end > self._known:
            await self._look(start, end)
        if not len(self._at):
            return np.full(len(offsets), self._last_ms, np.int64)
        found: Numbers = np.interp(offsets, self._at, self._moments).astype(np.int64)
        return found

    async def _look(self, start: int, end: int) -> None:
        """Learn the moments of the bytes from `start` to `end` at least."""
        before_ms, offset = self._last_ms, start
        if self._known != start:
            before_ms, offset = 0, max(start - _LOOK_BACK_BYTES, 0)
        if not offset:
            before_ms = self._begins_ms
        places: list[float] = []
        moments: list[float] = []
        while True:
            page = await list_moments(self._stores, self._segment, offset, end)
            if page is None:
                break
            for moment, until in _entries(page, end):
                if moment > 0:
                    is_busy = until - offset > 2 * TIME_INDEX_BYTES or not before_ms
                    longest = TIME_INDEX_MS if is_busy else TIME_INDEX_MOST_MS
                    places += [offset, max(until - 0.5, offset)]
                    moments += [max(before_ms, moment - longest), moment - 1]
                    before_ms, offset = moment, until
            if page.is_last or offset >= end:
                break
        self._from, self._known, self._last_ms = start, max(offset, end), before_ms
        self._at, self._moments = np.array(places), np.maximum.accumulate(np.array(moments))


def _entries(page: Moments, end: int) -> list[tuple[int, int]]:
    found = list(zip(page.moments.tolist(), page.offsets.tolist(), strict=True))
    if page.is_last and page.appended_ms and (not found or found[-1][1] < end):
        found.append((max(page.appended_ms + 1, found[-1][0] if found else 0), end))  # what came last has none yet
    return found


async def time_of(stores: SegmentStores, cut: StreamCut) -> int | None:
    """When the stream stood there, in ms since 1970: when the last byte before the cut came, and if there is none,
    the first one behind it; None if there is neither."""
    turns = asyncio.Semaphore(PAGE_ASKED_AT_ONCE)

    async def one(segment: int, offset: int) -> tuple[bool, int]:
        name = segment_name(cut.scope, cut.stream, segment)
        async with turns:
            try:
                page = await list_moments(stores, name, max(offset - 1, 0), max(offset, 1))
            except NotFoundError:
                return False, 0
        if page is None:
            return False, 0
        if len(page.moments):
            at_ms = int(page.moments[0])
            return offset > page.start, at_ms if offset > page.start else at_ms - TIME_INDEX_MS
        return offset > page.start, page.appended_ms

    found = await asyncio.gather(*(one(segment, offset) for segment, offset in cut.positions.items()))
    before = [at_ms for is_before, at_ms in found if is_before and at_ms > 0]
    after = [at_ms for is_before, at_ms in found if not is_before and at_ms > 0]
    return max(before) if before else min(after, default=None)
