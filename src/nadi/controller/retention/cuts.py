"""The order of one stream's cuts, for the rules of retention: the earliest and latest of two, in one form.

A place between a segment and its successors has two names: the segment's end, and its successors' starts. Comparisons
are of *settled* cuts, moved past segments that were read to their ends, for which each place has one name. The earliest
of cuts is that of any; of two names for a place it gives the older, so the segments that both name stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from nadi.controller.retention.past import Past
from nadi.controller.state.history import Cut
from nadi.controller.state.records import EpochSegment
from nadi.errors import EpochGoneError
from nadi.model import cutorder
from nadi.model.cutorder import CutOrder
from nadi.model.frontier import Frontier
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut


@dataclass(frozen=True)
class Cuts:
    """The cuts of the stream that `past` looked at."""

    past: Past

    @property
    def head(self) -> Cut:
        """Where the stream begins, settled."""
        return self.settled(self.past.head or self.past.history.head_of_time())

    def is_of_stream(self, cut: Cut) -> bool:
        """Whether a reader of the stream could stand there; False too if epochs it needs are forgotten."""
        try:
            return self.past.history.is_valid_cut(cut)
        except EpochGoneError:
            return False

    def is_forgotten(self, cut: Cut) -> bool:
        """Whether the cut stands in epochs that are forgotten: under some keys, at least, before the head."""
        history = self.past.history
        return not any(map(history.is_unknown, cut)) and any(map(history.is_forgotten, cut))

    def is_gone(self, cut: Cut) -> bool:
        """Whether such a cut has nothing of what is left before it, under any key."""
        head, history = self.head, self.past.history
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
        history = self.past.history
        segments = [_range_of(history.segments[segment]) for segment in cut]
        frontier = Frontier(segments, [segment for segment, offset in cut.items() if offset < 0])
        offsets = {segment: max(cut[segment], 0) for segment in frontier.active}
        self.pass_finished(frontier, offsets)
        return frontier, offsets

    def pass_finished(self, frontier: Frontier, offsets: dict[int, int]) -> list[int]:
        """Lead a frontier over segments that are sealed and read to their ends; the segments that it begins thereby.

        A length is recorded once its segment is sealed: one without is passed later.
        """
        sizes, look, begun = self.past.history.sizes, list(frontier.active), list[int]()
        while look:
            segment = look.pop()
            if offsets[segment] < sizes.get(segment, offsets[segment] + 1):
                continue
            following = [_range_of(new) for new, _ in self.past.history.successors(segment)]
            if following:  # else the stream was sealed with it
                del offsets[segment]
                for piece in frontier.complete(segment, following):
                    offsets[piece.segment_id] = 0
                    look.append(piece.segment_id)
                    begun.append(piece.segment_id)
        return [segment for segment in begun if segment in offsets]

    def earliest(self, one: Cut, other: Cut) -> Cut:
        """The cut before which lies exactly what lies before both."""
        return cutorder.earliest(_cut(one), _cut(other), self._ranges(one, other)).positions

    def latest(self, one: Cut, other: Cut) -> Cut:
        """The cut before which lies everything that lies before either."""
        return cutorder.latest(_cut(one), _cut(other), self._ranges(one, other)).positions

    def is_at_or_after(self, one: Cut, other: Cut) -> bool:
        """Whether no part of one settled cut lies before another."""
        return self._order(one, other).is_at_or_after

    def is_same(self, one: Cut, other: Cut) -> bool:
        """Whether two settled cuts are one place."""
        return self._order(one, other) is CutOrder.EQUAL

    def _order(self, one: Cut, other: Cut) -> CutOrder:
        return cutorder.compare(_cut(one), _cut(other), self._ranges(one, other))

    def _ranges(self, one: Cut, other: Cut) -> cutorder.KeyRanges:
        segments = self.past.history.segments
        return {i: (segments[i].low, segments[i].high) for cut in (one, other) for i in cut}


def _cut(cut: Cut) -> StreamCut:
    return StreamCut("", "", cut)


def _range_of(segment: EpochSegment) -> SegmentRange:
    return SegmentRange(segment.id, segment.low, segment.high)
