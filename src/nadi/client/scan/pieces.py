"""Pieces of segments, which are read one by one, and dealt out to those who read them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nadi.client.places.cuts import SegmentSlice
from nadi.client.reading.damage import OnDamage
from nadi.client.values.options import Target


class Wanted(Protocol):
    """What is read of pieces. columns: of those in `naming`. event_time_unit: of the times that writers note.
    target: what events are parsed as, if they are. on_damage: whether damaged data is an error, or skipped."""

    @property
    def scope(self) -> str: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def event_time_unit(self) -> str: ...
    @property
    def target(self) -> Target | None: ...
    @property
    def on_damage(self) -> OnDamage: ...


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """The events of a segment from `start` to `end`, both of them event boundaries; of a stream in the scope that is
    read. others: (segment, offset) of where others stand in the stream cuts of its rows, if these are wanted."""

    stream: str
    segment_id: int
    start: int
    end: int
    others: tuple[tuple[int, int], ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def pieces_of(stream: str, slices: Iterable[SegmentSlice]) -> list[Piece]:
    return [Piece(stream, one.segment_id, one.start, one.end) for one in slices]


def deal(
    pieces: Sequence[Piece], most: int, min_bytes: int, chains: Iterable[Sequence[Piece]] | None = None
) -> list[tuple[Piece, ...]]:
    """The pieces dealt out to at most `most` readers, about equally long, few if there is little to read. chains: the
    pieces by who must be read by one.

    Within a reader's, older segments come first, and a segment's bytes in order.

    >>> [[one.segment_id for one in task] for task in deal([Piece("s", i, 0, 9 - i) for i in range(4)], 2, 1)]
    [[0, 3], [1, 2]]
    """
    total = sum(piece.size_bytes for piece in pieces)
    parts = [(sum(one.size_bytes for one in chain), list(chain)) for chain in chains or ([one] for one in pieces)]
    count = min(most, len(parts), max(1, -(-total // min_bytes)))
    loads: list[tuple[int, int, list[Piece]]] = [(0, number, []) for number in range(count)]
    for size, part in sorted(parts, key=lambda part: (-part[0], part[1])):
        load, number, mine = heapq.heappop(loads)
        mine += part
        heapq.heappush(loads, (load + size, number, mine))
    return sorted(tuple(sorted(mine)) for _, _, mine in loads)
