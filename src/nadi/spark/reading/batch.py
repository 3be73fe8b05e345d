"""The reader of a batch: everything between two cuts, planned beside the driver, read in the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from nadi.client.aio import StreamManager
from nadi.errors import InvalidArgumentError
from nadi.spark.connections import client_of
from nadi.spark.options.read import ReadOptions
from nadi.spark.reading import plan
from nadi.spark.reading.rows import read_pieces
from nadi.spark.reading.tasks import Piece, PiecesPartition, partitions_of, pieces_of


class BatchReader(DataSourceReader):
    """Everything between two cuts."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        client = client_of(self._options.controller)
        return partitions_of(self._options, client.run(_pieces(client.manager, self._options)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecesPartition)
        return read_pieces(self._options, partition.pieces)


async def _pieces(manager: StreamManager, options: ReadOptions) -> list[Piece]:
    pieces = []
    names = await plan.streams_of(manager, options)
    if not names:
        raise InvalidArgumentError(f"scope {options.scope} has no stream that {options.several} takes: check it")
    for name in names:
        pieces += pieces_of(name, await plan.batch_slices(manager, options.of_stream(name)))
    return pieces
