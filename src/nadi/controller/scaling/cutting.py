"""Where a hot segment's key range is cut, from a sample of the keys that pass: so that each piece gets as much.

A key can't be divided. One that has more than its piece's share gets a piece of its own where that leaves the others
something to divide; one that alone is over what a segment may have is a hot key, and no splitting helps it.
"""

from __future__ import annotations

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
        """Where a range that begins behind the position of that index, and not behind the next one, may begin."""
        position, following = self.positions[after : after + 2]
        middle = (position + following) / 2
        return middle if middle > position else following  # else they are as near as numbers can be


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
    return list(pairwise([sample.low, *borders, sample.high]))


def around(sample: Sampled, key: HotKey, pieces: int) -> list[KeyRange]:
    """The range with the key in as narrow a piece as the sample allows, and the rest of it in pieces of like load: at
    most so many in all. With too few pieces for both sides of the key, the lighter one stays with it."""
    index = sample.positions.index(key.position)
    before, after = sum(sample.shares[:index]), sum(sample.shares[index + 1 :])
    left = round((pieces - 1) * before / (before + after)) if before + after else 0
    right = pieces - 1 - left if after else 0
    start = sample.border(index - 1) if left else sample.low
    end = sample.border(index) if right else sample.high
    ranges = [(start, end)]
    if left:
        ranges = _cut_by_keys(_within(sample, sample.low, start), left) + ranges
    if right:
        ranges += _cut_by_keys(_within(sample, end, sample.high), right)
    return ranges


def _within(sample: Sampled, low: float, high: float) -> Sampled:
    kept = [(p, s) for p, s in zip(sample.positions, sample.shares, strict=True) if low <= p < high]
    total = sum(share for _, share in kept)
    part = round(sample.count * total)
    return Sampled(low, high, tuple(p for p, _ in kept), tuple(s / total for _, s in kept), part)
