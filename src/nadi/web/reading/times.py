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

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.segments.info import segment_info
from nadi.client.segments.located import list_moments
from nadi.client.segments.stores import SegmentStores
from nadi.errors import AccessDeniedError, NotFoundError
from nadi.limits import KIB, PAGE_ASKED_AT_ONCE, TIME_INDEX_BYTES, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire.moments import Moments

_LOOK_BACK_BYTES = 64 * KIB  # in which there is an entry, unless what comes in a second is more than that
_BEFORE, _BEHIND, _MADE = 2, 1, 0  # the cut: which byte tells when the stream stood there
Numbers = np.ndarray[Any, np.dtype[np.int64]]


class AppendTimes:
    """Of one segment. `of` is asked for offsets in order. begins_ms: nothing came earlier. start: of the segment, as
    it was when asked."""

    def __init__(self, stores: SegmentStores, segment: str, begins_ms: int) -> None:
        self._stores, self._segment, self._begins_ms = stores, segment, begins_ms
        self.start = 0
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

    @property
    def has_any(self) -> bool:
        """Whether there were bytes where it looked."""
        return len(self._at) > 0

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
            self.start = page.start
            if page.start >= end:  # what was asked for is truncated away: the first byte that is left
                offset, end = page.start, page.start + 1
                continue
            offset = max(offset, page.start)
            for moment, until in await self._entries(page, end):
                if moment > 0:
                    longest = TIME_INDEX_MS if until - offset > 2 * TIME_INDEX_BYTES else TIME_INDEX_MOST_MS
                    places += [offset, max(until - 0.5, offset)]
                    moments += [max(before_ms, moment - longest), moment - 1]
                    before_ms, offset = moment, until
            if page.is_last or offset >= end:
                break
        self._from, self._known, self._last_ms = start, max(offset, end), before_ms
        self._at, self._moments = np.array(places), np.maximum.accumulate(np.array(moments))

    async def _entries(self, page: Moments, end: int) -> list[tuple[int, int]]:
        found = list(zip(page.moments.tolist(), page.offsets.tolist(), strict=True))
        last_ms, reached = found[-1] if found else (0, page.start)
        if page.is_last and page.appended_ms and reached < end:  # the latest bytes have no entry yet
            length = (await segment_info(self._stores, self._segment)).write_offset
            if length > reached:
                found.append((max(page.appended_ms + 1, last_ms), length))
        return found


class CutTimes:
    """When streams stood at cuts. What there is to know of a stream's segments it asks once."""

    def __init__(self, manager: StreamManager) -> None:
        self._manager, self._stores = manager, stores_of(manager)
        self._turns = asyncio.Semaphore(PAGE_ASKED_AT_ONCE)
        self._made_ms: dict[str, dict[int, int]] = {}

    async def of(self, cut: StreamCut) -> int | None:
        """When the last byte before the cut came; if there is none, the first one behind it; and if there is neither,
        when its segments were made. In ms since 1970; None if that isn't known.

        It is told as `AppendTimes` does: no byte behind the cut in the same segment is told to have come earlier.
        """
        made_ms: dict[int, int] = {}
        if any(offset <= _LOOK_BACK_BYTES for offset in cut.positions.values()):
            made_ms = await self._made(cut)
        asked = (self._at(cut, segment, offset, made_ms.get(segment, 0)) for segment, offset in cut.positions.items())
        found = [(kind, at_ms) for kind, at_ms in await asyncio.gather(*asked) if at_ms > 0]
        best = max((kind for kind, _ in found), default=_MADE)
        moments = [at_ms for kind, at_ms in found if kind == best]
        return max(moments) if best == _BEFORE else min(moments, default=None)

    async def _at(self, cut: StreamCut, segment: int, offset: int, begins_ms: int) -> tuple[int, int]:
        times = AppendTimes(self._stores, segment_name(cut.scope, cut.stream, segment), begins_ms)
        async with self._turns:
            try:
                byte = max(offset - 1, 0)
                (at_ms,) = await times.of(np.array([byte], np.int64), byte + 1)
            except NotFoundError:
                return _MADE, 0
        return (_BEFORE if offset > times.start else _BEHIND if times.has_any else _MADE), int(at_ms)

    async def _made(self, cut: StreamCut) -> dict[int, int]:
        key = f"{cut.scope}/{cut.stream}"
        if key not in self._made_ms:
            try:
                history = await self._manager.segment_history(cut.scope, cut.stream)
            except (NotFoundError, AccessDeniedError):  # a place of a stream that is gone, or that one may not look at
                history = []
            self._made_ms[key] = {one.segment_id: one.created_ms for one in history}
        return self._made_ms[key]
