"""A stream's past as retention sees it: how much lies after a cut, which of two cuts is the earlier, and the cut with
so many bytes after it.

Sealed segments' lengths are recorded with the epoch that replaced them; only those that may still grow are asked for at
the store, however often the stream was scaled.

>>> from nadi.controller.state.history import History, first_epoch
>>> history = History([first_epoch(1, 0)])
>>> split = history.plan_scale(0, [0], [(0.0, 0.5), (0.5, 1.0)], min_segments=1, time_ms=0)
>>> history.add(split)
>>> left, right = (segment.id for segment in split.added)
>>> past = Past(history, {}, {0: 100, left: 20, right: 3})
>>> past.bytes_after({0: 70}), past.bytes_after({left: 20, right: 1}), past.bytes_after({0: 100, left: -1, right: 0})
(53, 2, 23)

A place between a segment and its successors has two names: the segment's end, and its successors' starts. Comparisons
are of *settled* cuts, moved past segments that were read to their ends, for which each place has one name. The earliest
of cuts is that of any; of two names for a place it gives the older, so the segments that both name stay.
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
from nadi.errors import EpochGoneError, InvalidStreamCutError
from nadi.limits import TIME_INDEX_MS
from nadi.model import cutorder
from nadi.model.cutorder import CutOrder
from nadi.model.frontier import Frontier
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch, segment_id


@dataclass(frozen=True)
class Past:
    """A stream as it was when it was looked at. head: the cut at which it began; empty: it was never truncated.
    ends: the lengths of all segments that don't lie before the head."""

    history: EpochHistory
    head: Cut
    ends: Mapping[int, int]

    def bytes_after(self, cut: Cut) -> int:
        """Bytes after a stream cut, without what was truncated; InvalidStreamCutError for segments that never were."""
        if any(segment not in self.history.segments for segment in cut):
            raise InvalidStreamCutError("the stream cut names a segment that this stream never had")
        ids, sums = self.sums
        if not cut:
            return sums[-1]
        epochs = [segment_epoch(segment) for segment in cut]
        first = bisect.bisect_left(ids, segment_id(0, min(epochs)))  # those of older epochs lie before it,
        last = bisect.bisect_left(ids, segment_id(0, max(epochs) + 1))  # and of newer ones after it
        is_passed = self.history.passed(cut)
        total = sums[-1] - sums[last]
        for segment in ids[first:last]:
            if not is_passed(segment):
                total += max(0, self.ends[segment] - max(cut.get(segment, 0), self.head.get(segment, 0), 0))
        return total

    @cached_property
    def sums(self) -> tuple[list[int], list[int]]:
        """The ids of the segments, in order, and how many bytes those before each have, and all together."""
        ids = sorted(self.ends)
        sizes = (max(0, self.ends[segment] - max(self.head.get(segment, 0), 0)) for segment in ids)
        return ids, list(accumulate(sizes, initial=0))

    def over(self, history: EpochHistory) -> Past:
        """The same over a copy of its history, for another thread."""
        past = Past(history, self.head, self.ends)
        past.__dict__["sums"] = self.sums
        return past

    @property
    def kept_bytes(self) -> int:
        return self.bytes_after({})

    @property
    def start(self) -> Cut:
        return self.settled(self.head or self.history.head_of_time())

    def is_of_stream(self, cut: Cut) -> bool:
        """Whether a reader of the stream could stand there; False too if epochs it needs are forgotten."""
        try:
            return self.history.is_valid_cut(cut)
        except EpochGoneError:
            return False

    def is_forgotten(self, cut: Cut) -> bool:
        """Whether the cut stands in epochs that are forgotten: under some keys, at least, before the head."""
        history = self.history
        return not any(map(history.is_unknown, cut)) and any(map(history.is_forgotten, cut))

    def is_gone(self, cut: Cut) -> bool:
        """Whether such a cut has nothing of what is left before it, under any key."""
        head, history = self.start, self.history
        is_passed = history.passed(head)
        known = (segment for segment in cut if not history.is_forgotten(segment))
        return all(is_passed(segment) or cut[segment] <= head.get(segment, -1) for segment in known)

    def settled(self, cut: Cut) -> Cut:
        """The same place, after all segments that end there."""
        frontier, offsets = self.standing(cut)
        return frontier.positions(offsets)

    def standing(self, cut: Cut) -> tuple[Frontier, dict[int, int]]:
        """The segments that the settled cut stands in, and how far it has read them. InvalidStreamCutError if it isn't
        legal."""
        history = self.history
        segments = [history.segments[segment].as_range for segment in cut]
        frontier = Frontier(segments, [segment for segment, offset in cut.items() if offset < 0])
        offsets = {segment: max(cut[segment], 0) for segment in frontier.active}
        self.pass_finished(frontier, offsets)
        return frontier, offsets

    def pass_finished(self, frontier: Frontier, offsets: dict[int, int]) -> list[int]:
        """Lead a frontier over segments that are sealed (so their lengths are known) and read to their ends; the
        segments that it begins thereby."""
        sizes, look, begun = self.history.sizes, list(frontier.active), list[int]()
        while look:
            segment = look.pop()
            if offsets[segment] < sizes.get(segment, offsets[segment] + 1):
                continue
            following = [new.as_range for new, _ in self.history.successors(segment)]
            if following:  # else the stream was sealed with it
                del offsets[segment]
                for piece in frontier.complete(segment, following):
                    offsets[piece.segment_id] = 0
                    look.append(piece.segment_id)
                    begun.append(piece.segment_id)
        return [segment for segment in begun if segment in offsets]

    def earliest(self, one: Cut, other: Cut) -> Cut:
        """The cut before which lies exactly what lies before both."""
        return cutorder.earliest(*self._compared(one, other)).positions

    def latest(self, one: Cut, other: Cut) -> Cut:
        """The cut before which lies everything that lies before either."""
        return cutorder.latest(*self._compared(one, other)).positions

    def is_at_or_after(self, one: Cut, other: Cut) -> bool:
        """Whether no part of one settled cut lies before another."""
        return cutorder.compare(*self._compared(one, other)).is_at_or_after

    def is_same(self, one: Cut, other: Cut) -> bool:
        """Whether two settled cuts are one place."""
        return cutorder.compare(*self._compared(one, other)) is CutOrder.EQUAL

    def _compared(self, one: Cut, other: Cut) -> tuple[StreamCut, StreamCut, cutorder.KeyRanges]:
        segments = self.history.segments
        ranges = {i: (segments[i].low, segments[i].high) for cut in (one, other) for i in cut}
        return StreamCut("", "", one), StreamCut("", "", other), ranges


async def look(flow: Workflows, name: StreamName) -> Past:
    head = (await flow.metadata.stream(name)).value.head
    history = await flow.metadata.history(name)
    ends, grow = await ask(flow.clock, history, lambda known: _ends(known, head))
    lengths = await together(flow.segments.length_if_there(name.segment(segment)) for segment in grow)
    ends |= zip(grow, lengths, strict=True)
    past = Past(history, head, ends)
    await ask(flow.clock, history, lambda _: past.sums)
    return past


def _ends(history: EpochHistory, head: Cut) -> tuple[dict[int, int], list[int]]:
    """Of the segments that the head has not passed, the lengths that are on record, and those without one."""
    ends: dict[int, int] = {}
    grow: list[int] = []
    oldest = min(map(segment_epoch, head)) if head else 0
    newest = max(map(segment_epoch, head)) if head else -1
    is_passed = history.passed(head)
    for segment in history.segments:
        epoch = segment_epoch(segment)  # most are told by it alone
        if epoch > newest or (epoch >= oldest and not is_passed(segment)):
            size = history.sizes.get(segment)
            if size is None:
                grow.append(segment)
            else:
                ends[segment] = size
    return ends, grow


MOMENTS_TRIED = 60
BOUNDARIES_TRIED = 40
CutAt = Callable[[int], Awaitable[Cut]]  # the cut of a moment, in ms since 1970
Locate = Callable[[int, int], Awaitable[int]]  # of a segment, the first boundary of events at or after an offset


@dataclass(frozen=True, slots=True)
class CutSearch:
    """All keys should go back equally far, so a cut lies between two cuts of moments, at most a second apart, which are
    found by halving the time between them. Between those two, segments are passed one after another, and one of them in
    part, up to a boundary between its events. The questions to the store are limited. since_ms: the cut of that moment
    leaves enough, as far as known; the head is taken instead if it doesn't."""

    past: Past
    cut_at: CutAt
    locate: Locate
    since_ms: int
    now_ms: int

    async def find(self, limit: int, *, at_most: bool) -> tuple[Cut, int]:
        """A cut, and a moment whose cut lies at or before it: the newest with at least that much after it, less than
        one event's more, unless it stands at the head or an event is larger than what can be told apart in so many
        questions. at_most: the oldest with no more than that."""
        past, head = self.past, self.past.start
        after = past.bytes_after(head)
        if after <= limit:
            return head, self.since_ms
        low_ms, low = self.since_ms, past.settled(await self.cut_at(self.since_ms))
        low_after = past.bytes_after(low)
        if low_after < limit:  # the clock has gone back, or less is to be kept than before
            low_ms, low, low_after = 0, head, after
        high_ms, high = self.now_ms, self.past.settled(await self.cut_at(self.now_ms))
        high_after = past.bytes_after(high)
        if high_after >= limit:  # a moment ago, or by a clock that was fast
            return await self._between(high, None, high_after - limit, at_most=at_most), self.now_ms
        for tried in range(MOMENTS_TRIED):
            if high_ms - low_ms <= TIME_INDEX_MS or low_after == limit:
                break
            part = 0.5 if tried % 2 or low_ms == 0 else (low_after - limit) / (low_after - high_after)
            middle_ms = low_ms + max(1, min(high_ms - low_ms - 1, int((high_ms - low_ms) * part)))
            middle = self.past.settled(await self.cut_at(middle_ms))
            middle_after = past.bytes_after(middle)
            if middle_after >= limit:
                low_ms, low, low_after = middle_ms, middle, middle_after
            else:
                high_ms, high, high_after = middle_ms, middle, middle_after
        return await self._between(low, high, low_after - limit, at_most=at_most), low_ms

    async def _between(self, low: Cut, high: Cut | None, surplus: int, *, at_most: bool) -> Cut:
        """Read on from one cut towards another, or the tail, until as many bytes are passed as are too many."""
        past = self.past
        frontier, offsets = self.past.standing(low)
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
            look += self.past.pass_finished(frontier, offsets)
        return self.past.settled(frontier.positions(offsets))

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
