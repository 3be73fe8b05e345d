"""The two scaling profiles: `fast`, the default, follows a load within seconds; `classic`, as Pravega does, within tens
of minutes.

A rule compares a segment's mean rate over a window with its target. Windows are named by their seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from nadi.defaults import DEFAULT_SCALING
from nadi.errors import InvalidArgumentError
from nadi.model.load import WINDOWS_S, SegmentLoad


@dataclass(frozen=True, slots=True)
class Rule:
    """The mean over `window_s` is over (or under) `times` the target, in a segment measured for longer than age_s."""

    window_s: float
    times: float
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """period_s: between two looks. hot: rules of which one is enough to split, unless `still` isn't met; a segment is
    split if it is older than fresh_s, and once its rate no longer grows by the factor `rising` from look to look, so
    that it is split once and far enough, nor falls by `falling`, so that it isn't for what is over. wanted_s: windows
    whose highest mean says how many pieces it needs, each with `share` of the target, rounded up or down. stays_s: a
    hot key gets a segment of its own when it has been hot for so long. cold: rules that must all be met to merge, for
    quiet_s, and a little longer while a neighbour is within together_s of that; and together with its neighbours, a
    segment must stay under `joint` times the target. idle_s: a segment without any load for so long is cold.
    merge_at_once: segments that one merge takes. rest_s: a segment made by a change is left alone for so long, unless
    its rate is over `urgent` times the target."""

    name: str
    period_s: float
    hot: tuple[Rule, ...]
    still: Rule | None
    fresh_s: float
    rising: float
    falling: float
    wanted_s: tuple[float, ...]
    share: float
    round_up: bool
    stays_s: float
    cold: tuple[Rule, ...]
    quiet_s: float
    together_s: float
    joint: float | None
    rest_s: float
    urgent: float
    idle_s: float
    merge_at_once: int


CLASSIC = Profile(
    "classic",
    period_s=5.0,
    hot=(Rule(120.0, 5.0, 120.0), Rule(300.0, 2.0, 300.0), Rule(600.0, 1.0, 600.0)),
    still=None,
    fresh_s=600.0,
    rising=float("inf"),
    falling=float("inf"),
    wanted_s=(120.0, 300.0, 600.0),
    share=1.0,
    round_up=False,
    stays_s=0.0,
    cold=(Rule(120.0, 1.0, 1200.0), Rule(300.0, 1.0), Rule(600.0, 1.0), Rule(1200.0, 0.5)),
    quiet_s=0.0,
    together_s=0.0,
    joint=None,
    rest_s=600.0,
    urgent=float("inf"),
    idle_s=1200.0,
    merge_at_once=3,
)
FAST = Profile(
    "fast",
    period_s=1.0,
    hot=(Rule(10.0, 1.2, 4.0), Rule(120.0, 1.0, 120.0)),
    still=Rule(2.0, 1.0),
    fresh_s=4.0,
    rising=1.1,
    falling=1.25,
    wanted_s=(2.0, 10.0),
    share=2 / 3,
    round_up=True,
    stays_s=30.0,
    cold=(Rule(2.0, 0.5), Rule(10.0, 0.5, 10.0)),
    quiet_s=60.0,
    together_s=10.0,
    joint=0.5,
    rest_s=60.0,
    urgent=1.5,
    idle_s=0.0,
    merge_at_once=1_000,
)
PROFILES = {profile.name: profile for profile in (FAST, CLASSIC)}
DEFAULT_PROFILE = PROFILES[DEFAULT_SCALING]


def profile_of(name: str) -> Profile:
    """The profile of that name; InvalidArgumentError if there is none."""
    found = PROFILES.get(name)
    if found is None:
        raise InvalidArgumentError(f"there is no scaling profile {name[:40]!r}: choose {' or '.join(PROFILES)}")
    return found


def mean(load: SegmentLoad, window_s: float, *, in_bytes: bool) -> float:
    """A segment's mean rate over a window, in the unit of its stream's target: events/s, or KiB/s if `in_bytes`."""
    at = WINDOWS_S.index(window_s)
    return load.bytes_per_s[at] / 1024 if in_bytes else load.events_per_s[at]
