"""A naive model of a stream's history: every query scans all segments that ever existed, and nothing is forgotten.
`EpochHistory` must give the same answers for whatever it retains."""

from __future__ import annotations

from nadi.controller.state.history import Cut
from nadi.controller.state.records import EpochChange, EpochSegment
from nadi.errors import InvalidStreamCutError
from nadi.model.frontier import check_legal
from nadi.model.segments import ids_under, oldest_by_key, share_keys
from nadi.naming import segment_epoch

_NEVER = 1 << 62


class PlainHistory:
    def __init__(self) -> None:
        self.changes: list[EpochChange] = []
        self.segments: dict[int, EpochSegment] = {}
        self.sealed_in: dict[int, int] = {}

    def add(self, change: EpochChange) -> None:
        self.changes.append(change)
        self.segments |= {segment.id: segment for segment in change.added}
        self.sealed_in |= dict.fromkeys(change.removed, change.epoch)

    def epoch(self, epoch: int) -> tuple[EpochSegment, ...]:
        live = [s for s in self.segments.values() if segment_epoch(s.id) <= epoch < self.sealed_in.get(s.id, _NEVER)]
        return tuple(sorted(live, key=lambda segment: segment.low))

    def successors(self, segment: int) -> list[tuple[EpochSegment, list[int]]]:
        own, sealed = self.segments[segment], self.sealed_in.get(segment)
        if sealed is None:
            return []
        before = self.epoch(sealed - 1)
        return [
            (new, [old.id for old in before if share_keys(old, new)])
            for new in self.epoch(sealed)
            if share_keys(new, own)
        ]

    def is_valid_cut(self, cut: Cut) -> bool:
        if not cut or any(segment not in self.segments for segment in cut):
            return False
        epochs = {segment_epoch(segment) for segment in cut}
        between = (s for i, s in self.segments.items() if min(epochs) <= segment_epoch(i) <= max(epochs))
        try:
            check_legal(cut, [self.segments[i] for i in cut], between)
        except InvalidStreamCutError:
            return False
        return True

    def span(self, cut: Cut) -> dict[int, int]:
        top = max(segment_epoch(i) for i in cut)
        return {i: min(top, self.sealed_in.get(i, top + 1) - 1) for i in cut}

    def has_passed(self, cut: Cut, segment: int) -> bool:
        place = oldest_by_key(self.segments[i] for i in cut)
        return min(ids_under(place, self.segments[segment])) > segment

    def is_at_or_after(self, later: Cut, earlier: Cut) -> bool:
        if any(later[i] < offset for i, offset in earlier.items() if i in later):
            return False
        place = oldest_by_key(self.segments[i] for i in earlier)
        return all(i >= before for i in later for before in ids_under(place, self.segments[i]))

    def between(self, start: Cut, end: Cut) -> list[int]:
        """Return the segments from one cut to another at or after it."""
        place = oldest_by_key(self.segments[i] for i in start)
        first, last = min(self.span(start).values()), max(self.span(end).values())
        sure = range(max(self.span(start).values()), min(self.span(end).values()) + 1)
        chosen = []
        for segment in self.segments.values():
            born, sealed = segment_epoch(segment.id), self.sealed_in.get(segment.id, _NEVER)
            if born > last or sealed <= first:
                continue
            if (
                segment.id in start
                or segment.id in end
                or (sure and born < sure.stop and sealed > sure.start)
                or (
                    all(before <= segment.id for before in ids_under(place, segment))
                    and all(segment.id <= i for i in end if share_keys(self.segments[i], segment))
                )
            ):
                chosen.append(segment.id)
        return sorted(chosen)
