"""A stream's segments by the keys they take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nadi.model.keyspace import key_position


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A segment and the keys it takes: low ≤ position < high of the key space."""

    segment_id: int
    low: float
    high: float

    def takes_any(self, routing_keys: Iterable[str]) -> bool:
        """Whether events of one of these keys are in it, if there are any."""
        return any(self.low <= key_position(key) < self.high for key in routing_keys)


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows others, and the ids of all those."""

    segment: SegmentRange
    predecessors: tuple[int, ...]
