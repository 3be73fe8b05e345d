"""Answers about a stream's segments, and checks that they never contradict earlier ones.

A segment that was current and isn't any longer was replaced: it never becomes current again, and keeps its successors;
a segment once known stays known. Concurrent calls have no order: an answer is compared with what was known when it was
requested.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


class ContradictionError(AssertionError):
    """An answer contradicts an earlier one."""


@dataclass(frozen=True, slots=True)
class Known:
    """Knowledge when a call started. current: at some time. former: no longer current. replaced: with successors."""

    current: frozenset[int] = frozenset()
    former: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()


@dataclass(slots=True)
class SegmentAnswers:
    """The answers about one stream.

    >>> answers = SegmentAnswers()
    >>> answers.add_current([0, 1], answers.known)
    >>> answers.add_current([1, 2], answers.known)
    >>> sorted(answers.known.former)
    [0]
    """

    known: Known = field(default_factory=Known)

    def add_current(self, segments: Collection[int], before: Known) -> None:
        if again := before.former.intersection(segments):
            raise ContradictionError(f"{sorted(again)} are current segments, but had been replaced before")
        known = self.known
        former = known.former | before.current.difference(segments)
        self.known = Known(known.current.union(segments), former, known.replaced)

    def add_successors(self, segment: int, successors: Collection[int], before: Known) -> None:
        if segment in before.replaced and not successors:
            raise ContradictionError(f"segment {segment} has no successors, but had some before")
        if successors:
            known = self.known
            self.known = Known(known.current, known.former, known.replaced | {segment})

    def add_missing(self, segment: int, before: Known) -> None:
        """Add an answer that a segment doesn't exist."""
        if segment in before.current:
            raise ContradictionError(f"segment {segment} does not exist, but was current before")
