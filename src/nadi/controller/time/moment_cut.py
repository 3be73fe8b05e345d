"""The stream cut of a moment: where the stream stood then, from the time index of its segments.

For each segment, the store says what came before the moment, and whether the segment was sealed by then. A cut must
not skip an event of the moment or later, nor enter a segment before all its predecessors are passed. So the search
moves as a reader does: from the segments of an epoch, over those that were sealed by then, to their successors, each
of which starts once all its predecessors are sealed. A segment that can't start yet, because a scale was in progress
at that moment, is in the cut at -1.

An epoch's time is when its scale was planned; the segments it replaced took events until they were sealed, a little
later. So the search starts at the newest epoch of that time, and goes back while a replaced segment was still open at
the moment. It looks one epoch further back, because committing older transactions makes two epochs at once, whose
segments are not sealed in epoch order.
"""

from __future__ import annotations

from collections.abc import Iterable

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import Cut, History
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import EpochSegment
from nadi.controller.state.segments import together
from nadi.controller.time.watermarks import joined
from nadi.errors import SegmentNotFoundError, UnavailableError
from nadi.model.frontier import Frontier
from nadi.model.segments import SegmentRange
from nadi.wire.moments import ARRIVAL, is_earliest

_EPOCHS_SURE = 2
_TRIES = 5  # while truncations delete segments that are being asked for


async def cut_at(flow: Workflows, name: StreamName, at: int, clock: int = ARRIVAL) -> Cut:
    """The cut before which nothing of that time or later lies: the head if the time is before it. Of ARRIVAL it is the
    tail for a moment in the future, and otherwise always the same, until it is truncated away. Of an EARLIEST clock it
    is the cut behind which nothing of an earlier time lies."""
    for _ in range(_TRIES):
        head = (await flow.metadata.stream(name)).value.head
        history = await flow.metadata.history(name)
        try:
            look = _Look(flow, name, history, head, at, clock)
            return await (look.cut_behind() if is_earliest(clock) else look.cut())
        except SegmentNotFoundError:
            if (await flow.metadata.stream(name)).value.head == head:
                raise
    raise UnavailableError(f"{name} is being truncated again and again: try again")


class _Look:
    """One search. Segments before the head may be gone, and count as sealed long ago."""

    def __init__(self, flow: Workflows, name: StreamName, history: History, head: Cut, at: int, clock: int) -> None:
        self._segments, self._name, self._history, self._at, self._clock = flow.segments, name, history, at, clock
        self._head, self._is_before_head = head, history.passed(head)
        self._found: dict[int, tuple[int, bool]] = {}  # segment: where it stood, and whether it was sealed

    async def cut(self) -> Cut:
        frontier = Frontier(map(_range_of, self._history.epoch(await self._first_epoch())), ())
        look = list(frontier.active)
        while look:
            await self._ask(look)
            sealed = [segment for segment in look if self._found[segment][1]]
            look = []
            for segment in sealed:
                successors = [_range_of(new) for new, _ in self._history.successors(segment)]
                if successors:
                    look += [begun.segment_id for begun in frontier.complete(segment, successors)]
        return frontier.positions({segment: offset for segment, (offset, _) in self._found.items()})

    async def cut_behind(self) -> Cut:
        """The first cut of one epoch's segments behind which no earlier event lies."""
        first, last = self._lowest_epoch(), self._history.newest
        ids = {segment.id for epoch in range(first, last + 1) for segment in self._history.epoch(epoch)}
        await self._ask(ids)
        begun = {
            segment: self._found[segment][0] for segment in ids if self._found[segment][0] > self._head.get(segment, 0)
        }
        positions = [begun, self._head or {segment.id: 0 for segment in self._history.epoch(first)}]
        return {place.segment_id: place.offset for place in joined(positions, self._history)}

    def _lowest_epoch(self) -> int:
        return min(self._history.span(self._head).values()) if self._head else self._history.first

    async def _first_epoch(self) -> int:
        """An epoch before whose segments there is nothing of that time or later."""
        lowest = self._lowest_epoch()
        if self._clock != ARRIVAL:
            return lowest
        epoch = first = self._history.epoch_at(self._at)
        sure = 0
        while epoch > lowest and sure < _EPOCHS_SURE:
            replaced = self._history.change(epoch).removed
            await self._ask(replaced)
            epoch -= 1
            if all(self._found[segment][1] for segment in replaced):
                sure += 1
            else:
                first, sure = epoch, 0
        return max(first, lowest)

    async def _ask(self, segments: Iterable[int]) -> None:
        async def one(segment: int) -> None:
            if self._is_before_head(segment):
                self._found[segment] = 0, True
            else:
                offset, was_sealed = await self._segments.locate_moment(
                    self._name.segment(segment), self._at, self._clock
                )
                self._found[segment] = max(offset, self._head.get(segment, 0)), was_sealed

        await together(one(segment) for segment in segments if segment not in self._found)


def _range_of(segment: EpochSegment) -> SegmentRange:
    return SegmentRange(segment.id, segment.low, segment.high)
