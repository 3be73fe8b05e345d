"""What the tasks of a read get: pieces of segments, dealt out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition

from nadi.client.places.cuts import SegmentSlice
from nadi.spark.options.read import ReadOptions


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """The events of a segment from `start` to `end`, both of them event boundaries; of a stream in the read's scope.
    others: (segment, offset) of where others stand in the stream cuts of its rows, if these are wanted."""

    stream: str
    segment_id: int
    start: int
    end: int
    others: tuple[tuple[int, int], ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class PiecesPartition(InputPartition):
    """What one task reads. borders: the offsets of its batch, if this task is to note them."""

    def __init__(self, pieces: tuple[Piece, ...], borders: tuple[dict[str, Any], dict[str, Any]] | None = None) -> None:
        super().__init__(pieces)
        self.pieces, self.borders = pieces, borders


def pieces_of(stream: str, slices: Iterable[SegmentSlice]) -> list[Piece]:
    """The slices of one stream, for tasks."""
    return [Piece(stream, one.segment_id, one.start, one.end) for one in slices]


def partitions_of(
    options: ReadOptions, pieces: Sequence[Piece], chains: Iterable[Sequence[Piece]] | None = None
) -> list[PiecesPartition]:
    """The partitions, at least one: with none, Spark calls `read` with None. chains: the pieces by who must be read in
    one task."""
    tasks = deal(pieces, options.max_partitions, options.min_partition_bytes, chains)
    return [PiecesPartition(task) for task in tasks] or [PiecesPartition(())]


def deal(
    pieces: Sequence[Piece], most: int, min_bytes: int, chains: Iterable[Sequence[Piece]] | None = None
) -> list[tuple[Piece, ...]]:
    """The pieces dealt out to at most `most` tasks, about equally long, few if there is little to read.

    Within a task, older segments come first, and a segment's bytes in order.

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
