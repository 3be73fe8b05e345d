"""How much of what is there a batch gets: room for it, shared by what has something to give; and when it is enough."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from nadi.client.places.cuts import SegmentSlice
from nadi.spark.options.read import Admission

_Key = TypeVar("_Key", int, str)
Take = Callable[[str, SegmentSlice, int], Awaitable[tuple[int, SegmentSlice]]]


@dataclass(frozen=True, slots=True)
class Room:
    """For how much a batch has room, in all and from one segment; None: for anything."""

    size_bytes: int | None = None
    events: int | None = None
    segment_bytes: int | None = None

    @property
    def is_limited(self) -> bool:
        return (self.size_bytes, self.events, self.segment_bytes) != (None, None, None)


class Minimum:
    """Whether there is enough for a batch. Events are counted once, as they come, for as long as a batch waits."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._began_at: float | None = None  # the batch before
        self._counted: dict[tuple[str, int], tuple[int, int, int]] = {}  # from where, to where, how many events

    def begin_batch(self) -> None:
        self._began_at = time.monotonic()
        self._counted.clear()

    async def is_reached(self, slices: Iterable[tuple[str, SegmentSlice]], take: Take) -> bool:
        """Whether the slices have as many events as there must be, or the longest delay has passed."""
        least = self._admission.min_events
        if least is None or self._began_at is None:
            return True
        if time.monotonic() - self._began_at >= self._admission.max_delay_s:
            return True
        total = 0
        for stream, piece in slices:
            key = (stream, piece.segment_id)
            start, reached, events = self._counted.get(key, (piece.start, piece.start, 0))
            if start != piece.start:
                start, reached, events = piece.start, piece.start, 0
            if events < least and reached < piece.end:
                more, head = await take(stream, SegmentSlice(piece.segment_id, reached, piece.end), least - events)
                reached, events = head.end, events + more
                self._counted[key] = (start, reached, events)
            total += events
            if total >= least:
                return True
        return False


async def dealt(sizes: Mapping[_Key, int], events: int, turn: int, take: Callable[[_Key, int], Awaitable[int]]) -> int:
    """Deal out `events` events among those that have something, the ones with little first, whose rest goes to the
    others; where there are too few events for all, another one is first each turn. `take` says how many it took. How
    many were taken in all."""
    order: list[_Key] = sorted(sizes, key=lambda key: sizes[key])
    if events < len(order):
        first: int = turn % len(order)
        order = order[first:] + order[:first]
    left = events
    for done, key in enumerate(order):
        if left <= 0:
            break
        left -= await take(key, max(1, left // (len(order) - done)))
    return events - left


def shares(sizes: Mapping[_Key, int], total: int) -> dict[_Key, int]:
    """`total` divided so that nobody gets more than its size, and who gets less gets as much as any.

    >>> shares({1: 10, 2: 500, 3: 700}, 210)
    {1: 10, 2: 100, 3: 100}
    """
    given: dict[_Key, int] = {}
    left = total
    for done, (key, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        given[key] = min(size, left // (len(sizes) - done))
        left -= given[key]
    return given
