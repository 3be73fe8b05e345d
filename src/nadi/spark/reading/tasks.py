"""What the tasks of a read get: pieces of segments, dealt out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from nadi.client.scan.pieces import Piece, deal
from nadi.spark.options.read import ReadOptions


class PiecesPartition(InputPartition):
    """What one task reads. borders: the offsets of its batch, if this task is to note them. claim: the number of the
    batch and of the query's run, if only the first attempt at this task may read."""

    claim: tuple[int, str] | None = None

    def __init__(self, pieces: tuple[Piece, ...], borders: tuple[dict[str, Any], dict[str, Any]] | None = None) -> None:
        super().__init__(pieces)
        self.pieces, self.borders = pieces, borders


def partitions_of(
    options: ReadOptions, pieces: Sequence[Piece], chains: Iterable[Sequence[Piece]] | None = None
) -> list[PiecesPartition]:
    """The partitions, at least one: with none, Spark calls `read` with None. chains: the pieces by who must be read in
    one task."""
    tasks = deal(pieces, options.max_partitions, options.min_partition_bytes, chains)
    return [PiecesPartition(task) for task in tasks] or [PiecesPartition(())]
