"""The reader of a batch: everything between two cuts, planned beside the driver, read in the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from nadi.client.aio import StreamManager
from nadi.client.scan.divided import chained, divided
from nadi.client.scan.pieces import Piece, pieces_of
from nadi.client.scan.positions import with_positions
from nadi.errors import InvalidArgumentError
from nadi.spark.connections import client_of
from nadi.spark.options.read import ReadOptions
from nadi.spark.reading import plan
from nadi.spark.reading.rows import read_pieces
from nadi.spark.reading.tasks import PiecesPartition, partitions_of


class BatchReader(DataSourceReader):
    """Everything between two cuts."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return client_of(self._options.controller).run(self._planned())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecesPartition)
        return read_pieces(self._options, partition.pieces)

    async def _planned(self) -> list[PiecesPartition]:
        manager, options = client_of(self._options.controller).manager, self._options
        sizes = options.max_partitions, options.min_partition_bytes
        pieces = await with_positions(manager, options, await _pieces(manager, options))
        if options.ordered:
            return partitions_of(options, pieces, await chained(manager, options.scope, pieces))
        return partitions_of(options, await divided(manager, options.scope, pieces, *sizes))


async def _pieces(manager: StreamManager, options: ReadOptions) -> list[Piece]:
    pieces = []
    names = await plan.streams_of(manager, options)
    if not names:
        raise InvalidArgumentError(f"scope {options.scope} has no stream that {options.several} takes: check it")
    for name in names:
        pieces += pieces_of(name, await plan.batch_slices(manager, options.of_stream(name)))
    return pieces
