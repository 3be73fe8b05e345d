"""How much of a stream lies after a stream cut: the sum over the cut's own segments and all that follow them.

Sealed segments' lengths are recorded with the epoch that replaced them; only those that may still grow are asked for
at the store. So an answer costs as many questions as the stream has current segments, however often it was scaled.

>>> from nadi.controller.state.history import History, first_epoch
>>> history = History([first_epoch(1, 0)])
>>> split = history.plan_scale(0, [0], [(0.0, 0.5), (0.5, 1.0)], min_segments=1, time_ms=0)
>>> history.add(split)
>>> left, right = (segment.id for segment in split.added)
>>> past = Past(history, {}, {0: 100, left: 20, right: 3})
>>> past.bytes_after({0: 70}), past.bytes_after({left: 20, right: 1}), past.bytes_after({0: 100, left: -1, right: 0})
(53, 2, 23)
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.histories import ask
from nadi.controller.state.history import Cut, History
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.segments import together
from nadi.errors import InvalidStreamCutError, SegmentNotFoundError
from nadi.naming import segment_epoch, segment_id


@dataclass(frozen=True)
class Past:
    """A stream as it was when it was looked at. head: the cut at which it began; empty: it was never truncated.
    ends: the lengths of all segments that don't lie before the head."""

    history: History
    head: Cut
    ends: Mapping[int, int]

    def bytes_after(self, cut: Cut) -> int:
        """Bytes after a stream cut; of what was truncated, none counts.

        InvalidStreamCutError if the cut names a segment that the history doesn't have.
        """
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

    def over(self, history: History) -> Past:
        """The same over a copy of its history, for another thread."""
        past = Past(history, self.head, self.ends)
        past.__dict__["sums"] = self.sums
        return past

    @property
    def kept_bytes(self) -> int:
        """Bytes from head to tail."""
        return self.bytes_after({})


async def look(flow: Workflows, name: StreamName) -> Past:
    """The stream as it is now; StreamNotFoundError if there is none."""
    head = (await flow.metadata.stream(name)).value.head
    history = await flow.metadata.history(name)
    ends, grow = await ask(flow.clock, history, lambda known: _ends(known, head))

    async def measure(segment: int) -> None:
        try:
            ends[segment] = await flow.segments.length(name.segment(segment))
        except SegmentNotFoundError:  # truncated away meanwhile; a barrier; or the stream is being deleted
            ends[segment] = 0

    await together(measure(segment) for segment in grow)
    past = Past(history, head, ends)
    await ask(flow.clock, history, lambda _: past.sums)
    return past


def _ends(history: History, head: Cut) -> tuple[dict[int, int], list[int]]:
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


async def bytes_after(flow: Workflows, name: StreamName, cut: Cut) -> int:
    """How many bytes of the stream lie after the cut now, in its segments and all that follow them. What was truncated
    doesn't count, and an empty cut stands for the head.

    Raises StreamNotFoundError, and InvalidStreamCutError for a cut of another stream.
    """
    return (await look(flow, name)).bytes_after(cut)
