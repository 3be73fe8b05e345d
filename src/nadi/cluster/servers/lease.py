"""Whether this server may answer reads. It may not once another server could have its containers.

Each beat (`membership.py`) that succeeds extends the lease to LEASE after it was *sent*. Others take a server for dead
when its entry has been the same for DEAD, from the end of the look that showed it first to the start of one that shows
it still. Say the last version they saw was sent at t. No beat that took effect before their last look came after that
one, and that look began at t + DEAD or later; so a beat that would extend the lease further can only succeed after
t + DEAD, when the lease of the one at t is over, however long beats and looks took, as long as clocks that differ by a
fifth or so don't make LEASE longer than DEAD (`pace.py`). A beat whose outcome isn't known extends nothing.

That is why **a lease that has ended doesn't begin again by a beat alone**. Somebody may have taken the server for dead
meanwhile, and be about to claim its containers. So each unbroken stretch of beats is a `term`, and the next term is
valid only when the owner of the containers says so, by `affirm`: after it has set the record of each of its containers
anew, by compare-and-set, since the term began. A claim that was decided earlier replaces the record's earlier version,
so one of the two fails. In the first term there is nothing to affirm: nothing can be claimed before it.

The clock is the one that goes on while the machine is suspended, and not comparable with anybody else's.
"""

from __future__ import annotations

import math

from nadi.runtime import Runtime


class Lease:
    def __init__(self, runtime: Runtime, length_s: float) -> None:
        self._now = runtime.boottime
        self._length_s = length_s
        self._ends = -math.inf  # of the term
        self._valid_until = -math.inf
        self.term = 0  # 0 until the first beat has succeeded
        self.affirmed = 1  # the newest term that reads may be answered in

    def is_valid(self) -> bool:
        return self._now() < self._valid_until

    def extend(self, sent: float) -> bool:
        """A beat that was sent then, by the boot-time clock, has succeeded. True: it has begun a new term."""
        now, ends = self._now(), sent + self._length_s
        if ends <= now:  # it took too long to be of use
            return False
        is_new = now >= self._ends
        if is_new:
            self.term += 1
        self._ends = max(ends, self._ends)
        self._settle()
        return is_new

    def affirm(self, term: int) -> None:
        """All records of one's containers were set since that term began. Another term isn't meant by it."""
        assert term <= self.term, f"term {term} hasn't begun: this is {self.term}"
        self.affirmed = max(self.affirmed, term)
        self._settle()

    def end(self) -> None:
        """For good: no beat extends it any more."""
        self._length_s = self._ends = self._valid_until = -math.inf

    def _settle(self) -> None:
        self._valid_until = self._ends if self.affirmed == self.term else -math.inf
