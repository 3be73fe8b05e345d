"""Sizes and comparisons of stream cuts for retention and lag: the bytes after a cut, the earlier of two cuts, and the
cut with a given number of bytes after it.

Sealed segments' lengths are recorded with the epoch that replaced them; the store is asked only for the lengths of
segments that may still grow, however often the stream was scaled.

>>> from nadi.controller.state.history import EpochHistory, first_epoch
>>> history = EpochHistory([first_epoch(1, 0)])
>>> split = history.plan_scale(0, [0], [(0.0, 0.5), (0.5, 1.0)], min_segments=1, time_ms=0)
>>> history.add(split)
>>> left, right = (segment.id for segment in split.added)
>>> past = Past(history, {}, {0: 100, left: 20, right: 3})
>>> past.bytes_after({0: 70}), past.bytes_after({left: 20, right: 1}), past.bytes_after({0: 100, left: -1, right: 0})
(53, 2, 23)

A position between a segment and its successors has two forms: the segment's end, and its successors' starts. Settled
cuts, moved past segments that were read to their ends, have one form per position, so comparisons use them. The
earliest of several cuts is as given; of two forms it is the older one, so that the segments named by both are retained.
"""

from __future__ import annotations

import bisect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import Cut, EpochHistory, ask
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.segments import together
from nadi.errors import EpochExpiredError, InvalidStreamCutError
from nadi.limits import TIME_INDEX_MS
from nadi.model import cutorder
from nadi.model.cutorder import CutOrder
from nadi.model.frontier import Frontier
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch, segment_id


@dataclass(frozen=True)
class Past:
    """A stream's state when it was measured. head: empty if never truncated. ends: the lengths of all segments that
    aren't before the head."""

    history: EpochHistory
    head: Cut
    ends: Mapping[int, int]

    def bytes_after(self, cut: Cut) -> int:
        """Return the bytes retained after a stream cut; InvalidStreamCutError for unknown segments."""
        if any(segment not in self.history.segments for segment in cut):
            raise InvalidStreamCutError("the stream cut names a segment that this stream never had")
        ids, sums = self.sums
        if not cut:
            return sums[-1]
        epochs = [segment_epoch(segment) for segment in cut]
        first = bisect.bisect_left(ids, segment_id(0, min(epochs)))  # segments of older epochs are before the cut,
        last = bisect.bisect_left(ids, segment_id(0, max(epochs) + 1))  # and those of newer ones after it
        is_passed = self.history.passed(cut)
        total = sums[-1] - sums[last]
        for segment in ids[first:last]:
            if not is_passed(segment):
                total += max(0, self.ends[segment] - max(cut.get(segment, 0), self.head.get(segment, 0), 0))
        return total

    @cached_property
    def sums(self) -> tuple[list[int], list[int]]:
        """The segments' ids in order, and the cumulative sizes: before each of them, and in total."""
        ids = sorted(self.ends)
        sizes = (max(0, self.ends[segment] - max(self.head.get(segment, 0), 0)) for segment in ids)
        return ids, list(accumulate(sizes, initial=0))

    def over(self, history: EpochHistory) -> Past:
        """Return the same sizes over a copy of the history, for another thread."""
        past = Past(history, self.head, self.ends)
        past.__dict__["sums"] = self.sums
        return past

    @property
    def retained_bytes(self) -> int:
        return self.bytes_after({})

    @property
    def start(self) -> Cut:
        return self.settled(self.head or self.history.first_cut())

    def is_of_stream(self, cut: Cut) -> bool:
        """Return whether the cut is a valid reader position; False also if epochs it needs are forgotten."""
        try:
            return self.history.is_valid_cut(cut)
        except EpochExpiredError:
            return False

    def is_forgotten(self, cut: Cut) -> bool:
        """Return whether the cut refers to forgotten epochs: for some keys, at least, it is before the head."""
        history = self.history
        return not any(map(history.is_unknown, cut)) and any(map(history.is_forgotten, cut))

    def is_gone(self, cut: Cut) -> bool:
        """Return whether nothing before such a cut is retained, for any key."""
        head, history = self.start, self.history
        is_passed = history.passed(head)
        known = (segment for segment in cut if not history.is_forgotten(segment))
        return all(is_passed(segment) or cut[segment] <= head.get(segment, -1) for segment in known)

    def settled(self, cut: Cut) -> Cut:
        """Return the settled form of a cut: past all segments that end there."""
        frontier, offsets = self.standing(cut)
        return frontier.positions(offsets)

    def standing(self, cut: Cut) -> tuple[Frontier, dict[int, int]]:
        """Return the segments that the settled cut is in, with its offsets. InvalidStreamCutError if it isn't legal."""
        history = self.history
        segments = [history.segments[segment].as_range for segment in cut]
        frontier = Frontier(segments, [segment for segment, offset in cut.items() if offset < 0])
        offsets = {segment: max(cut[segment], 0) for segment in frontier.active}
        self.pass_finished(frontier, offsets)
        return frontier, offsets

    def pass_finished(self, frontier: Frontier, offsets: dict[int, int]) -> list[int]:
        """Advance a frontier past segments that are sealed (with known lengths) and read to their ends; return the
        segments entered."""
        sizes, pending, entered = self.history.sizes, list(frontier.active), list[int]()
        while pending:
            segment = pending.pop()
            if offsets[segment] < sizes.get(segment, offsets[segment] + 1):
                continue
            following = [new.as_range for new, _ in self.history.successors(segment)]
            if following:  # else the stream was sealed with it
                del offsets[segment]
                for piece in frontier.complete(segment, following):
                    offsets[piece.segment_id] = 0
                    pending.append(piece.segment_id)
                    entered.append(piece.segment_id)
        return [segment for segment in entered if segment in offsets]

    def earliest(self, first: Cut, second: Cut) -> Cut:
        """Return the latest cut that is at or before both."""
        return cutorder.earliest(*self._compared(first, second)).positions

    def latest(self, first: Cut, second: Cut) -> Cut:
        """Return the earliest cut that is at or after both."""
        return cutorder.latest(*self._compared(first, second)).positions

    def is_at_or_after(self, first: Cut, second: Cut) -> bool:
        """Return whether a settled cut is at or after another for all keys."""
        return cutorder.compare(*self._compared(first, second)).is_at_or_after

    def is_same(self, first: Cut, second: Cut) -> bool:
        """Return whether two settled cuts are the same position."""
        return cutorder.compare(*self._compared(first, second)) is CutOrder.EQUAL

    def _compared(self, first: Cut, second: Cut) -> tuple[StreamCut, StreamCut, cutorder.KeyRanges]:
        segments = self.history.segments
        ranges = {i: (segments[i].low, segments[i].high) for cut in (first, second) for i in cut}
        return StreamCut("", "", first), StreamCut("", "", second), ranges


async def measure(flow: Workflows, name: StreamName) -> Past:
    head = (await flow.metadata.stream(name)).value.head
    history = await flow.metadata.history(name)
    ends, grow = await ask(flow.clock, history, lambda known: _ends(known, head))
    lengths = await together(flow.segments.length_or_zero(name.segment(segment)) for segment in grow)
    ends |= zip(grow, lengths, strict=True)
    past = Past(history, head, ends)
    await ask(flow.clock, history, lambda _: past.sums)
    return past


def _ends(history: EpochHistory, head: Cut) -> tuple[dict[int, int], list[int]]:
    """Return the known lengths of segments not passed by the head, and the segments without one."""
    ends: dict[int, int] = {}
    growing: list[int] = []
    oldest = min(map(segment_epoch, head)) if head else 0
    newest = max(map(segment_epoch, head)) if head else -1
    is_passed = history.passed(head)
    for segment in history.segments:
        epoch = segment_epoch(segment)  # decides most cases alone
        if epoch > newest or (epoch >= oldest and not is_passed(segment)):
            size = history.sizes.get(segment)
            if size is None:
                growing.append(segment)
            else:
                ends[segment] = size
    return ends, growing


MOMENTS_TRIED = 60
BOUNDARIES_TRIED = 40
CutAt = Callable[[int], Awaitable[Cut]]  # returns the cut at a time in ms since 1970
Locate = Callable[[int, int], Awaitable[int]]  # returns a segment's first event boundary at or after an offset


@dataclass(frozen=True, slots=True)
class CutSearch:
    """A search for a cut by size. All keys should go back equally far, so the search first bisects time until two cuts
    are at most a second apart. Between those, segments are passed one after another, the last one up to an event
    boundary. Queries to the store are limited. since_ms: a time whose cut had enough bytes after it when last known; if
    not, the head is used instead."""

    past: Past
    cut_at: CutAt
    locate: Locate
    since_ms: int
    now_ms: int

    async def find(self, limit: int, *, at_most: bool) -> tuple[Cut, int]:
        """Return a cut, and a time whose cut is at or before it. The cut is the newest with at least `limit` bytes
        after it; the excess is less than an event, unless the cut is the head or an event is too large for the number
        of queries. at_most: the oldest cut with at most `limit`."""
        past, head = self.past, self.past.start
        after = past.bytes_after(head)
        if after <= limit:
            return head, self.since_ms
        low_ms, low = self.since_ms, past.settled(await self.cut_at(self.since_ms))
        low_after = past.bytes_after(low)
        if low_after < limit:  # the clock was set back, or the limit has grown
            low_ms, low, low_after = 0, head, after
        high_ms, high = self.now_ms, self.past.settled(await self.cut_at(self.now_ms))
        high_after = past.bytes_after(high)
        if high_after >= limit:  # written just now, or under a clock that was ahead
            return await self._between(high, None, high_after - limit, at_most=at_most), self.now_ms
        for attempt in range(MOMENTS_TRIED):
            if high_ms - low_ms <= TIME_INDEX_MS or low_after == limit:
                break
            part = 0.5 if attempt % 2 or low_ms == 0 else (low_after - limit) / (low_after - high_after)
            middle_ms = low_ms + max(1, min(high_ms - low_ms - 1, int((high_ms - low_ms) * part)))
            middle = self.past.settled(await self.cut_at(middle_ms))
            middle_after = past.bytes_after(middle)
            if middle_after >= limit:
                low_ms, low, low_after = middle_ms, middle, middle_after
            else:
                high_ms, high, high_after = middle_ms, middle, middle_after
        return await self._between(low, high, low_after - limit, at_most=at_most), low_ms

    async def _between(self, low: Cut, high: Cut | None, surplus: int, *, at_most: bool) -> Cut:
        """Advance from one cut towards another, or the tail, until the surplus bytes are passed."""
        past = self.past
        frontier, offsets = self.past.standing(low)
        is_passed = past.history.passed(high) if high is not None else lambda _: True
        pending = sorted(offsets)
        while pending and surplus > 0:
            segment = pending.pop(0)
            end = past.ends.get(segment, 0)
            if high is not None and segment in high:
                end = min(end, max(high[segment], 0))
            elif not is_passed(segment):
                continue
            remaining = end - offsets[segment]
            if remaining <= 0:
                continue
            if remaining > surplus:
                offsets[segment] = await self._boundary(segment, offsets[segment], surplus, at_most=at_most)
                break
            offsets[segment], surplus = end, surplus - remaining
            pending += self.past.pass_finished(frontier, offsets)
        return self.past.settled(frontier.positions(offsets))

    async def _boundary(self, segment: int, start: int, count: int, *, at_most: bool) -> int:
        """Return the first boundary at least `count` bytes after `start`; at_most False: the last one at most that
        far."""
        goal = start + count
        boundary = await self.locate(segment, goal)
        if at_most or boundary == goal:
            return boundary
        low, high, step = start, goal, 256  # low is a boundary; there is none from `high` to the goal
        for attempt in range(BOUNDARIES_TRIED):
            if low == start:  # back from the goal in growing steps
                target, step = max(low + 1, goal - step), 4 * step
            else:  # one event further, or halfway
                target = low + 1 if attempt % 2 else (low + high + 1) // 2
            if target >= high:
                break
            boundary = await self.locate(segment, target)
            if boundary <= goal:
                low = boundary
            elif target == low + 1:
                break
            else:
                high = target
        return low
