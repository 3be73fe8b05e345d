"""What clients were told of a stream's segments, one call after another, and whether any of it was taken back.

A segment that was current and isn't any more was replaced, and never is current again; it has successors for good; and
one that was ever told of is known for good. Of calls at the same time nobody knows which was first: an answer is
compared with what was known when it was asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


class TakenBackError(AssertionError):
    """What had been told before was told otherwise."""


@dataclass(frozen=True, slots=True)
class Known:
    """When a call began. current: at some time. former: no longer so since. replaced: with known successors."""

    current: frozenset[int] = frozenset()
    former: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()


@dataclass(slots=True)
class SegmentsTold:
    """Of one stream.

    >>> told = SegmentsTold()
    >>> told.of_current([0, 1], told.known)
    >>> told.of_current([1, 2], told.known)
    >>> sorted(told.known.former)
    [0]
    """

    known: Known = field(default_factory=Known)

    def of_current(self, segments: Collection[int], before: Known) -> None:
        if again := before.former.intersection(segments):
            raise TakenBackError(f"{sorted(again)} are current segments, and had been replaced before")
        known = self.known
        former = known.former | before.current.difference(segments)
        self.known = Known(known.current.union(segments), former, known.replaced)

    def of_successors(self, segment: int, successors: Collection[int], before: Known) -> None:
        if segment in before.replaced and not successors:
            raise TakenBackError(f"segment {segment} has no successors, and had some before")
        if successors:
            known = self.known
            self.known = Known(known.current, known.former, known.replaced | {segment})

    def of_none(self, segment: int, before: Known) -> None:
        """It was said not to be there."""
        if segment in before.current:
            raise TakenBackError(f"segment {segment} is not there, and was a current one before")
