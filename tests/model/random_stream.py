"""A random stream as a value: its events, and the events that a reader must get between two positions.

Everything derives from the random source: uneven key ranges, splits and merges in one scaling, empty segments, scalings
whose old segments are sealed one by one during writes, the two scalings of a transaction of an older epoch, truncation.
The history of segments is the controller's real one; tests define the readers. Events before a cut are computed without
the code under test: key by key.
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
    """An event: `number` counts the events of its key."""

    key: float
    number: int
    segment: int
    start: int
    end: int


class RandomStream:
    """The stream. segments: the events of each segment, in order; lengths, starts: its end and its truncated start."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.keys = sorted({chance.random() for _ in range(chance.randint(1, 12))} | {0.0})
        self.history = EpochHistory([first_epoch(chance.choice([1, 1, 2, 3, 4]), 0)])
        self.segments: dict[int, list[Written]] = {}
        self.lengths: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.sealed: set[int] = set()
        self.head: dict[int, int] = self.history.first_cut()
        self.counts = dict.fromkeys(self.keys, 0)
        self._to_seal: list[int] = []
        self._open: list[int] = []  # not sealed, older ones first
        self._begin(self.history.changes[0])

    # --- what happens to it -----------------------------------------------------------------

    def live(self) -> None:
        """Do a random step."""
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
        """Mostly to few keys, so that segments stay empty."""
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
        """Commit a transaction of an older epoch: that epoch's segments again for its events, then the newest again;
        return False if the epoch doesn't exist.
        """
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
        """Finish all scalings."""
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
        """Return the tail: a scaling counts once all replaced segments are sealed."""
        epoch = self.history.newest - bool(self._to_seal)
        return {piece.id: self.lengths[piece.id] for piece in self.history.epoch(epoch)}

    def somewhere(self) -> dict[int, int]:
        """Return a position between head and tail that readers can reach: each segment is read independently, and its
        successors start once all their predecessors were read.
        """
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
        """Return whether a cut with these segments has read everything before one of them."""
        return all(self.standing(cut, key) == segment for key in self._places(segment))

    def range_of(self, segment: int) -> SegmentRange:
        found = self.history.segments[segment]
        return SegmentRange(found.id, found.low, found.high)

    def successors(self, segment: int) -> list[SegmentRange]:
        return [self.range_of(new.id) for new, _ in self.history.successors(segment)]

    def is_end(self, segment: int) -> bool:
        """Return whether no segment will follow."""
        return segment not in self.history.sealed_in

    def events(self) -> list[Written]:
        return [event for events in self.segments.values() for event in events]

    def in_slice(self, segment: int, start: int, end: int) -> list[Written]:
        """Return the events of a part of a segment, whose borders must be event boundaries."""
        found = [event for event in self.segments[segment] if start <= event.start and event.end <= end]
        size = sum(event.end - event.start for event in found)
        assert size == end - start, f"{start} or {end} of segment {segment} is within an event"
        return found

    def standing(self, cut: Iterable[int], key: float) -> int:
        """Return the segment of a cut for a key: the oldest that has it."""
        return min(segment for segment in cut if self._has(segment, key))

    def is_before(self, event: Written, cut: Mapping[int, int]) -> bool:
        at = self.standing(cut, event.key)
        return event.segment < at or (event.segment == at and event.end <= cut[at])

    # --- inside -----------------------------------------------------------------------------

    def _has(self, segment: int, key: float) -> bool:
        piece = self.history.segments[segment]
        return piece.low <= key < piece.high

    def _places(self, segment: int) -> list[float]:
        """Return positions in the key space in every part of a segment that any other segment can have."""
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
    """Check that each event occurs once, and that events of a key are in the order of writing."""
    last: dict[float, int] = {}
    for event in events:
        assert event.number > last.get(event.key, -1), f"event {event} comes after {last[event.key]} of its key"
        last[event.key] = event.number
