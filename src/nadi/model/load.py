"""The load of a stream segment, as its segment store measured it and the controller weighs it.

Rates are exponentially weighted means over the windows `WINDOWS_S`; until a window is full, over the segment's age.
Where in the key space the load falls is known from samples: positions of routing keys, as writers report them.
"""

from __future__ import annotations

from dataclasses import dataclass

from nadi.display import Displayed

WINDOWS_S = (2.0, 10.0, 120.0, 300.0, 600.0, 1200.0)


@dataclass(frozen=True, slots=True)
class KeySample:
    """A sample of the keys that passed lately: positions in the key space, and how many events each stands for.

    A position may come more than once: a key that takes much of the load does.
    """

    positions: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SegmentLoad(Displayed):
    """What passes into one segment.

    segment: its qualified name. age_s: for how long it has been measured. events_per_s, bytes_per_s: a rate for each
    of WINDOWS_S. keys: None if no writer reports its keys.
    """

    segment: str
    age_s: float
    events_per_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
    keys: KeySample | None = None
