"""How fast a cluster's servers say that they are there, and when they take each other for dead."""

from __future__ import annotations

from dataclasses import dataclass

from nadi.errors import InvalidArgumentError
from nadi.limits import CLUSTER_BEAT_S, CLUSTER_DEAD_S, CLUSTER_LEASE_S

CLOCKS_DIFFER_TIMES = 1.25
"""Of two clocks one may be so much faster: one that is 10 % fast and one that is 10 % slow differ by 1.1 / 0.9."""


@dataclass(frozen=True, slots=True)
class MembershipPace:
    """Seconds. All servers of a cluster must have the same: one's lease has to end before others take it for dead.

    InvalidArgumentError if it can't.
    """

    beat_s: float = CLUSTER_BEAT_S
    lease_s: float = CLUSTER_LEASE_S
    dead_s: float = CLUSTER_DEAD_S

    def __post_init__(self) -> None:
        if self.lease_s < 2 * self.beat_s:
            raise InvalidArgumentError(
                f"a lease of {self.lease_s:g} s ends between two beats of {self.beat_s:g} s: make it two beats at least"
            )
        if self.dead_s < CLOCKS_DIFFER_TIMES * self.lease_s:
            raise InvalidArgumentError(
                f"a server that counts as dead after {self.dead_s:g} s may still have its lease of {self.lease_s:g} s, "
                f"for clocks differ: wait for {CLOCKS_DIFFER_TIMES * self.lease_s:g} s at least"
            )


GCS_PACE = MembershipPace(beat_s=2.0, lease_s=4.0, dead_s=6.0)
"""For Google's object store, which takes about one write a second to a name."""
