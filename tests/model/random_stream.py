"""A stream that lives at random, as a value: what was written where, and what a reader must get between two places.

Everything follows from the chance it is given: uneven key ranges, splits and merges in one scaling, segments that
nothing is written to, scalings whose old segments are sealed one by one while writing goes on, the two scalings at
once of a transaction of an older epoch, truncation. The history of segments is the controller's own; who reads, and
how, is for tests to say. What lies before a cut is told here without the code under test: key by key.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nadi.controller.state.history import EpochHistory, first_epoch
from nadi.controller.state.records import EpochChange
from nadi.model.keyspace import equal_ranges
from nadi.model.segments import SegmentRange

HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Written:
    """An event: `number` counts those of its key."""

    key: float
    number: int
    segment: int
    start: int
    end: int


class RandomStream:
    """`segments`: the events of each segment, in order; `lengths`, `starts`: its end and its truncated begin."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.keys = sorted({chance.random() for _ in range(chance.randint(1, 12))} | {0.0})
        self.history = EpochHistory([first_epoch(chance.choice([1, 1, 2, 3, 4]), 0)])
        self.segments: dict[int, list[Written]] = {}
        self.lengths: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.sealed: set[int] = set()
        self.head: dict[int, int] = self.history.head_of_time()
        self.counts = dict.fromkeys(self.keys, 0)
        self._to_seal: list[int] = []
        self._open: list[int] = []  # not sealed, older ones first
        self._begin(self.history.changes[0])

    # --- what happens to it -----------------------------------------------------------------

    def live(self) -> None:
        """Something happens."""
        what = self.chance.random()
        if what < 0.55:
            self.write(self.chance.randint(1, 8))
        elif self._to_seal:
            self.seal_some(self.chance.randint(1, len(self._to_seal)))
        elif what < 0.95 or not self.roll():
            self.scale()
        if self.chance.random() < 0.5:
            self.seal_all()

    def write(self, count: int) -> None:
        """To few keys mostly, so that segments stay empty."""
        keys = self.chance.sample(self.keys, self.chance.randint(1, len(self.keys)))
        for _ in range(count):
            self._append(self.chance.choice(keys))

    def scale(self) -> None:
        """Replace some of the segments, adjacent or not; adjacent ranges are divided at new borders."""
        self.seal_all()
        newest = self.history.newest
        active = self.history.epoch(newest)
        first = self.chance.randrange(len(active))
        replaced = set(active[first : first + self.chance.choice([1, 2, 3, len(active), len(active)])])
        if self.chance.random() < 0.2:
            replaced.add(self.chance.choice(active))
        ranges: list[tuple[float, float]] = []
        run: list[float] = []  # borders of neighbours that are replaced
        for piece in active:
            if piece in replaced:
                run = [piece.low, piece.high] if not run else [run[0], piece.high]
            elif run:
                ranges += self._cut_anew(run[0], run[1], len(active))
                run = []
        if run:
            ranges += self._cut_anew(run[0], run[1], len(active))
        sealed = [piece.id for piece in replaced]
        self._change(self.history.plan_scale(newest, sealed, ranges, min_segments=1, time_ms=newest))

    def roll(self) -> bool:
        """A transaction of an older epoch is committed: that epoch's segments again for its events, then the newest
        again; False if the epoch doesn't exist."""
        self.seal_all()
        newest = self.history.newest
        old = self.history.reference(self.chance.randrange(newest + 1))
        if old == self.history.reference(newest):
            return False
        merge, restore = self.history.plan_roll(newest, old, newest)
        self._change(merge)
        self.seal_all()
        self.write(self.chance.randint(0, 3))
        self._change(restore)
        self.seal_all()
        return True

    def seal_some(self, count: int) -> None:
        """Seal some of the replaced segments: events with their keys go to the new segments from now on."""
        for _ in range(count):
            segment = self._to_seal.pop(self.chance.randrange(len(self._to_seal)))
            self.sealed.add(segment)
            self._open.remove(segment)

    def seal_all(self) -> None:
        """No scaling is under way any more."""
        self.seal_some(len(self._to_seal))

    def truncate(self, cut: Mapping[int, int]) -> None:
        """Drop the events before the cut, which must be legal and not before the head."""
        self.head = dict(cut)
        for segment in self.segments:
            if segment in cut:
                self.starts[segment] = max(self.starts[segment], cut[segment])
            elif all(self.standing(cut, key) > segment for key in self._places(segment)):
                self.starts[segment] = -1  # gone

    # --- what can be asked ------------------------------------------------------------------

    def is_gone(self, segment: int) -> bool:
        return self.starts[segment] < 0

    def tail(self) -> dict[int, int]:
        """A scaling counts once all that it replaces is sealed."""
        epoch = self.history.newest - bool(self._to_seal)
        return {piece.id: self.lengths[piece.id] for piece in self.history.epoch(epoch)}

    def somewhere(self) -> dict[int, int]:
        """A place between head and tail where readers may stand: each segment that one has is read on by itself, and
        what follows it begins once all before it was read."""
        cut = {segment: max(offset, 0) for segment, offset in self.head.items() if self.begins(self.head, segment)}
        waiting = self.head.keys() - cut.keys()
        for _ in range(self.chance.randint(0, 2 * len(self.segments))):
            segment = self.chance.choice(sorted(cut))
            ends = [event.end for event in self.segments[segment] if event.end > cut[segment]]
            if self.chance.random() < 0.3:
                ends = ends[:1]
            if ends:
                cut[segment] = self.chance.choice(ends)
            elif segment in self.sealed and self.successors(segment):
                del cut[segment]
                waiting |= {piece.segment_id for piece in self.successors(segment)}
                begun = {new for new in waiting if self.begins(cut.keys() | waiting, new)}
                cut |= dict.fromkeys(begun, 0)
                waiting -= begun
        for segment, offset in cut.items():
            if offset == 0 and self.chance.random() < 0.1:
                cut[segment] = -1  # said in another way
        return cut | dict.fromkeys(waiting, -1)

    def begins(self, cut: Iterable[int], segment: int) -> bool:
        """Whether a cut with these segments has read all that comes before one of them."""
        return all(self.standing(cut, key) == segment for key in self._places(segment))

    def range_of(self, segment: int) -> SegmentRange:
        found = self.history.segments[segment]
        return SegmentRange(found.id, found.low, found.high)

    def successors(self, segment: int) -> list[SegmentRange]:
        return [self.range_of(new.id) for new, _ in self.history.successors(segment)]

    def is_end(self, segment: int) -> bool:
        """Nothing will follow."""
        return segment not in self.history.sealed_in

    def events(self) -> list[Written]:
        return [event for events in self.segments.values() for event in events]

    def in_slice(self, segment: int, start: int, end: int) -> list[Written]:
        """The events of a part of a segment, whose borders must be those of events."""
        found = [event for event in self.segments[segment] if start <= event.start and event.end <= end]
        size = sum(event.end - event.start for event in found)
        assert size == end - start, f"{start} or {end} of segment {segment} is within an event"
        return found

    def standing(self, cut: Iterable[int], key: float) -> int:
        """The segment in which a cut stands over a key: the oldest that it has."""
        return min(segment for segment in cut if self._has(segment, key))

    def is_before(self, event: Written, cut: Mapping[int, int]) -> bool:
        at = self.standing(cut, event.key)
        return event.segment < at or (event.segment == at and event.end <= cut[at])

    # --- inside -----------------------------------------------------------------------------

    def _has(self, segment: int, key: float) -> bool:
        piece = self.history.segments[segment]
        return piece.low <= key < piece.high

    def _places(self, segment: int) -> list[float]:
        """Places of the key space in every part of a segment that any other can have."""
        piece = self.history.segments[segment]
        lows = {other.low for other in self.history.segments.values()}
        return [piece.low, *(low for low in lows if piece.low < low < piece.high)]

    def _cut_anew(self, low: float, high: float, active: int) -> list[tuple[float, float]]:
        count = self.chance.choice([1, 2, 2, 3, 5]) if active < 8 else self.chance.choice([1, 2])
        if self.chance.random() < 0.5:
            return equal_ranges(count, low, high)
        places = [self.chance.uniform(low, high) for _ in range(count - 1)]
        if self.chance.random() < 0.5:
            places = [round(place * 16) / 16 for place in places]
        borders = [low, *sorted({place for place in places if low < place < high}), high]
        return list(itertools.pairwise(borders))

    def _change(self, change: EpochChange) -> None:
        self.seal_all()
        self.history.add(change)
        self._begin(change)
        self._to_seal = list(change.removed)

    def _begin(self, change: EpochChange) -> None:
        for piece in change.added:
            self.segments[piece.id], self.lengths[piece.id], self.starts[piece.id] = [], 0, 0
            self._open.append(piece.id)

    def _append(self, key: float) -> None:
        segment = next(i for i in self._open if self._has(i, key))  # the old one, until it is sealed
        start = self.lengths[segment]
        end = start + HEADER_BYTES + self.chance.choice([0, 1, 5, 20, 20, 300])
        self.segments[segment].append(Written(key, self.counts[key], segment, start, end))
        self.counts[key] += 1
        self.lengths[segment] = end


def check_order(events: list[Written]) -> None:
    """Each event once, and those of each key as they were written."""
    last: dict[float, int] = {}
    for event in events:
        assert event.number > last.get(event.key, -1), f"event {event} comes after {last[event.key]} of its key"
        last[event.key] = event.number
