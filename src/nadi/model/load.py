"""The load of a stream segment, measured by its segment store for the controller's scaling decisions.

Rates are exponentially weighted means over the windows `WINDOWS_S`; until a window is full, over the segment's age.
Writers report samples of routing keys, which give the distribution of the load in the key space.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nadi.display import Displayed

WINDOWS_S = (2.0, 10.0, 120.0, 300.0, 600.0, 1200.0)


class ScaleType(IntEnum):
    """The unit of a scaling policy's target, as in Pravega's CreateSegment."""

    FIXED = 0
    KIB_PER_SECOND = 1
    EVENTS_PER_SECOND = 2


@dataclass(frozen=True, slots=True)
class KeySample:
    """A sample of recently written keys: positions in the key space, and the number of events each represents.

    Positions repeat for keys with much of the load.
    """

    positions: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SegmentLoad(Displayed):
    """The write rates of one segment.

    segment: its qualified name. age_s: how long it has been measured. events_per_s, bytes_per_s: a rate for each of
    WINDOWS_S. keys: None if no writer reports its keys; empty if the segment is far from a split, which needs them.
    """

    segment: str
    age_s: float
    events_per_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
    keys: KeySample | None = None
