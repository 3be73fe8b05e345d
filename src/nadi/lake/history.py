"""Whether a stream's segments can be made anew as they were, by what a table knows of them. Pure.

They can if those of epoch 0 are what a new stream's are, if each later epoch replaced segments by others of the same
keys, numbered on, and if of each segment all events are there from its first on: their sizes add up to where the last
one ends.

>>> whole = Extent(0, 0, 10, 20, 20)
>>> history_of([(0, 0.0, 1.0)], {0: whole}, {0: 0}, {0: 20}).epochs
[0]
>>> history_of([(0, 0.0, 1.0)], {0: Extent(0, 10, 20, 30, 20)}, {0: 0}, {0: 30}) is None
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nadi.model.keyspace import equal_ranges
from nadi.naming import segment_epoch, segment_number

_HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Extent:
    """What there is of a segment: its first and last event's offset, where the last ends, and the bytes of all with
    their headers; the latter two are 0 if sizes aren't known."""

    segment: int
    first: int = -1
    last: int = -1
    end: int = 0
    total: int = 0

    def with_rows(self, offsets: pa.Array, sizes: pa.Array | None) -> Extent:
        low, high = pc.min_max(offsets).values()
        first = low.as_py() if self.first < 0 else min(self.first, low.as_py())
        last = max(self.last, high.as_py())
        if sizes is None:
            return Extent(self.segment, first, last)
        whole = pc.add(pc.cast(sizes, pa.int64()), _HEADER_BYTES)
        end = max(self.end, pc.max(pc.add(offsets, whole)).as_py())
        return Extent(self.segment, first, last, end, self.total + pc.sum(whole).as_py())

    @property
    def is_whole(self) -> bool:
        return self.first == 0 and self.total == self.end


@dataclass(frozen=True, slots=True)
class History:
    """Segments by id with their keys: all of a stream's, as far as there are events."""

    segments: Mapping[int, tuple[float, float]]

    @property
    def epochs(self) -> list[int]:
        return sorted({segment_epoch(one) for one in self.segments})

    def born(self, epoch: int) -> list[int]:
        return sorted(one for one in self.segments if segment_epoch(one) == epoch)

    def ranges_of(self, epoch: int) -> list[tuple[float, float]]:
        return [self.segments[one] for one in self.born(epoch)]

    def middle(self, segment: int) -> float:
        low, high = self.segments[segment]
        return (low + high) / 2

    def sealed_by(self, epoch: int) -> list[int]:
        """Those that the epoch's segments replaced."""
        active: dict[int, tuple[float, float]] = {}
        for one in self.epochs:
            new = {segment: self.segments[segment] for segment in self.born(one)}
            replaced = [
                segment
                for segment, (low, high) in active.items()
                if any(low < other_high and other_low < high for other_low, other_high in new.values())
            ]
            if one == epoch:
                return sorted(replaced)
            for segment in replaced:
                del active[segment]
            active |= new
        raise AssertionError(f"there is no epoch {epoch}")


def history_of(
    segments: Iterable[Sequence[float]], extents: Mapping[int, Extent], start: Mapping[int, int], end: Mapping[int, int]
) -> History | None:
    """None if positions can't be kept. start, end: the cuts between which the table has everything, by segment."""
    history = History({int(segment): (low, high) for segment, low, high in segments})
    if any(offset > 0 for offset in start.values()) or not extents.keys() | end.keys() <= history.segments.keys():
        return None
    ends = {segment: extents[segment].end if segment in extents else 0 for segment in history.segments}
    if not all(one.is_whole for one in extents.values()) or any(ends[one] != max(end[one], 0) for one in end):
        return None
    if history.epochs != list(range(len(history.epochs))):
        return None
    number = 0
    for epoch in history.epochs:
        born = history.born(epoch)
        if [segment_number(one) for one in born] != list(range(number, number + len(born))):
            return None
        number += len(born)
        if epoch == 0:
            if history.ranges_of(0) != equal_ranges(len(born)):
                return None
        elif _covered(history.ranges_of(epoch)) != _covered(history.segments[one] for one in history.sealed_by(epoch)):
            return None
    return history


def _covered(ranges: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for low, high in sorted(ranges):
        if joined and joined[-1][1] == low:
            joined[-1] = joined[-1][0], high
        else:
            joined.append((low, high))
    return joined
