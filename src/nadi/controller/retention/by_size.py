"""The newest cut of a stream with at least so many bytes after it, or the oldest with at most so many.

All keys should go back equally far, so the cut lies between two cuts of moments, at most a second apart, which are
found by halving the time between them. Between those two, segments are passed one after another, and one of them in
part, up to a boundary between its events. The questions to the store are limited: `MOMENTS_TRIED` cuts of moments and
`BOUNDARIES_TRIED` looks for a boundary, however much the stream has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from nadi.controller.retention.cuts import Cuts
from nadi.controller.state.history import Cut
from nadi.limits import TIME_INDEX_MS

MOMENTS_TRIED = 60
BOUNDARIES_TRIED = 40
CutAt = Callable[[int], Awaitable[Cut]]  # the cut of a moment, in ms since 1970
Locate = Callable[[int, int], Awaitable[int]]  # of a segment, the first boundary of events at or after an offset


@dataclass(frozen=True, slots=True)
class Sized:
    """A cut, and a moment whose cut lies at or before it."""

    cut: Cut
    since_ms: int


@dataclass(frozen=True, slots=True)
class Search:
    """What a search needs of the stream. since_ms: the cut of that moment leaves enough, as far as known; the head is
    taken instead if it doesn't."""

    cuts: Cuts
    cut_at: CutAt
    locate: Locate
    since_ms: int
    now_ms: int

    async def newest_with(self, least_bytes: int) -> Sized:
        """The newest cut with at least so many bytes after it: less than one event's more, unless it stands at the
        head or an event is larger than what can be told apart in so many questions."""
        return await self._find(least_bytes, at_most=False)

    async def oldest_with(self, most_bytes: int) -> Sized:
        """The oldest cut with at most so many bytes after it."""
        return await self._find(most_bytes, at_most=True)

    async def _find(self, limit: int, *, at_most: bool) -> Sized:
        past, head = self.cuts.past, self.cuts.head
        after = past.bytes_after(head)
        if after <= limit:
            return Sized(head, self.since_ms)
        low_ms, low = self.since_ms, self.cuts.settled(await self.cut_at(self.since_ms))
        low_after = past.bytes_after(low)
        if low_after < limit:  # the clock has gone back, or less is to be kept than before
            low_ms, low, low_after = 0, head, after
        high_ms, high = self.now_ms, self.cuts.settled(await self.cut_at(self.now_ms))
        high_after = past.bytes_after(high)
        if high_after >= limit:  # a moment ago, or by a clock that was fast
            return Sized(await self._between(high, None, high_after - limit, at_most=at_most), self.now_ms)
        for tried in range(MOMENTS_TRIED):
            if high_ms - low_ms <= TIME_INDEX_MS or low_after == limit:
                break
            part = 0.5 if tried % 2 or low_ms == 0 else (low_after - limit) / (low_after - high_after)
            middle_ms = low_ms + max(1, min(high_ms - low_ms - 1, int((high_ms - low_ms) * part)))
            middle = self.cuts.settled(await self.cut_at(middle_ms))
            middle_after = past.bytes_after(middle)
            if middle_after >= limit:
                low_ms, low, low_after = middle_ms, middle, middle_after
            else:
                high_ms, high, high_after = middle_ms, middle, middle_after
        return Sized(await self._between(low, high, low_after - limit, at_most=at_most), low_ms)

    async def _between(self, low: Cut, high: Cut | None, surplus: int, *, at_most: bool) -> Cut:
        """Read on from one cut towards another, or the tail, until as many bytes are passed as are too many."""
        past = self.cuts.past
        frontier, offsets = self.cuts.standing(low)
        is_passed = past.history.passed(high) if high is not None else lambda _: True
        look = sorted(offsets)
        while look and surplus > 0:
            segment = look.pop(0)
            end = past.ends.get(segment, 0)
            if high is not None and segment in high:
                end = min(end, max(high[segment], 0))
            elif not is_passed(segment):
                continue
            left = end - offsets[segment]
            if left <= 0:
                continue
            if left > surplus:
                offsets[segment] = await self._boundary(segment, offsets[segment], surplus, at_most=at_most)
                break
            offsets[segment], surplus = end, surplus - left
            look += self.cuts.pass_finished(frontier, offsets)
        return self.cuts.settled(frontier.positions(offsets))

    async def _boundary(self, segment: int, start: int, count: int, *, at_most: bool) -> int:
        """The first boundary `count` bytes after `start` or later; or the last one that is no later."""
        goal = start + count
        found = await self.locate(segment, goal)
        if at_most or found == goal:
            return found
        low, high, step = start, goal, 256  # low is a boundary, and none lies from `high` to the goal
        for tried in range(BOUNDARIES_TRIED):
            if low == start:  # back from the goal in growing steps
                target, step = max(low + 1, goal - step), 4 * step
            else:  # one event on, or half of the way
                target = low + 1 if tried % 2 else (low + high + 1) // 2
            if target >= high:
                break
            found = await self.locate(segment, target)
            if found <= goal:
                low = found
            elif target == low + 1:
                break
            else:
                high = target
        return low
