"""Where a hot segment's key range is cut, from a sample of the keys that pass: so that each piece gets as much.

A key can't be divided. One that has more than its piece's share gets a piece of its own where that leaves the others
something to divide; one that alone is over what a segment may have is a hot key, and no splitting helps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nadi.model.keyspace import equal_ranges
from nadi.model.load import KeySample
from nadi.model.segments import KeyRange

LEAST_SAMPLES = 20  # with fewer, nothing is known of where the load falls
SAMPLES_A_PIECE = 8


@dataclass(frozen=True, slots=True)
class HotKey:
    """A position in the key space that has `share` of its segment's load, from 0 to 1."""

    position: float
    share: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """The distinct positions of a sample within one range, ascending, and each one's share of the load."""

    low: float
    high: float
    positions: tuple[float, ...]
    shares: tuple[float, ...]
    count: int

    @property
    def is_enough(self) -> bool:
        return self.count >= LEAST_SAMPLES

    def heaviest(self) -> HotKey | None:
        if not self.is_enough:
            return None
        share = max(self.shares)
        return HotKey(self.positions[self.shares.index(share)], share)

    def border(self, after: int) -> float:
        """A key between the position of that index and the next one."""
        return (self.positions[after] + self.positions[after + 1]) / 2


def sampled(keys: KeySample | None, low: float, high: float) -> Sampled:
    """What a sample says of a key range; positions outside it, of other segments, don't count."""
    weights: dict[float, float] = {}
    count = 0
    for position, weight in zip(keys.positions, keys.weights, strict=True) if keys is not None else ():
        if low <= position < high and weight > 0:
            weights[position] = weights.get(position, 0.0) + weight
            count += 1
    total = sum(weights.values())
    positions = tuple(sorted(weights))
    return Sampled(low, high, positions, tuple(weights[position] / total for position in positions), count)


def cut(sample: Sampled, pieces: int) -> list[KeyRange]:
    """The range in at most so many pieces of like load, tiling it; a single one if it can't be cut. Evenly, if too
    little is known of its keys; in fewer pieces, if there aren't enough samples for so many.

    >>> sample = sampled(KeySample((0.1, 0.2, 0.3, 0.4) * 8, (1.0,) * 32), 0.0, 1.0)
    >>> [round(high, 2) for _, high in cut(sample, 2)]
    [0.25, 1.0]
    """
    if sample.is_enough or pieces < 2:
        return _cut_by_keys(sample, pieces)
    return [piece for piece in equal_ranges(pieces, sample.low, sample.high) if piece[0] < piece[1]]


def _cut_by_keys(sample: Sampled, pieces: int) -> list[KeyRange]:
    pieces = min(pieces, sample.count // SAMPLES_A_PIECE)
    if pieces < 2:
        return [(sample.low, sample.high)]
    borders: list[float] = []
    passed, wanted = 0.0, 1 / pieces
    for index, share in enumerate(sample.shares[:-1]):
        passed += share
        following = sample.shares[index + 1]
        # behind this key, if that is nearer to the next border that is wanted than behind the following one
        if passed >= wanted or abs(passed - wanted) <= abs(passed + following - wanted):
            borders.append(sample.border(index))
            remaining = pieces - len(borders)
            if remaining < 2:
                break
            wanted = passed + (1 - passed) / remaining
    inside = [border for border in borders if sample.low < border < sample.high]
    edges = [sample.low, *sorted(set(inside)), sample.high]
    return list(pairwise(edges))


def around(sample: Sampled, key: HotKey, pieces: int) -> list[KeyRange]:
    """The range with the key in as narrow a piece as the sample allows, and the rest of it in pieces of like load."""
    index = sample.positions.index(key.position)
    start = sample.border(index - 1) if index else sample.low
    end = sample.border(index) if index + 1 < len(sample.positions) else sample.high
    others = max(pieces - 1, 1)
    before, after = sum(sample.shares[:index]), sum(sample.shares[index + 1 :])
    left = round(others * before / (before + after)) if before + after else 0
    ranges: list[KeyRange] = []
    for low, high, share, count in ((sample.low, start, before, left), (end, sample.high, after, others - left)):
        if low < high and share:
            ranges += _cut_by_keys(_within(sample, low, high), count)
    return _tiling([*ranges, (start, end)], sample.low, sample.high)


def _within(sample: Sampled, low: float, high: float) -> Sampled:
    kept = [(p, s) for p, s in zip(sample.positions, sample.shares, strict=True) if low <= p < high]
    total = sum(share for _, share in kept)
    part = round(sample.count * total)
    return Sampled(low, high, tuple(p for p, _ in kept), tuple(s / total for _, s in kept), part)


def _tiling(ranges: Sequence[KeyRange], low: float, high: float) -> list[KeyRange]:
    """The ranges in order, stretched over the gaps that pieces without load left at the ends."""
    made = sorted(ranges)
    made[0] = (low, made[0][1])
    made[-1] = (made[-1][0], high)
    return made
