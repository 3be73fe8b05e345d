"""What passes into a stream, from the loads of its segments.

A segment's mean is weighted over its own age, so right after a scaling those of the old segments still have all of the
load and those of the new ones have it as well. Here each counts for as much of the window as it has been measured,
and the sum for as much as the oldest has: so a constant rate stays what it is while the stream is scaled.

>>> old = SegmentLoad("home/meters/0.#epoch.0", 100.0, (0.0, 50.0), (0.0, 0.0))
>>> rate([old], events=True)
50.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nadi.model.load import WINDOWS_S, SegmentLoad

_SHORT, _WINDOW = 0, 1  # of WINDOWS_S: 2 and 10 s
RATE_S = WINDOWS_S[_WINDOW]
# Of a load that was even, the mean over 2 s is this part of that over 10 s once it has been over for 10 s; of a single
# event once it has been over for 14 s, however much it was.
_LEFT = math.exp(-RATE_S / WINDOWS_S[_SHORT] + 1)


def rate(loads: Sequence[SegmentLoad], *, events: bool) -> float:
    """Events, or bytes, a second into the stream, over the last ten seconds, or since it has been measured."""
    rates = [(load.events_per_s if events else load.bytes_per_s)[_WINDOW] for load in loads]
    oldest = max((load.age_s for load in loads), default=0.0)
    if oldest <= 0:
        return 0.0
    return sum(one * _share(load.age_s) for one, load in zip(rates, loads, strict=True)) / _share(oldest)


def _share(age_s: float) -> float:
    """Of the window, how much was measured."""
    return -math.expm1(-max(age_s, 0.0) / RATE_S)


def is_flowing(loads: Iterable[SegmentLoad]) -> bool:
    """Whether an event came in the last ten seconds, or a little before."""
    return any(load.events_per_s[_SHORT] > _LEFT * load.events_per_s[_WINDOW] for load in loads)
