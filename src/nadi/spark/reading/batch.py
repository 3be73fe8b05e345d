"""The reader of a batch: everything between two cuts, planned beside the driver, read in the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from nadi.spark.connections import client_of
from nadi.spark.options.read import ReadOptions
from nadi.spark.reading import plan
from nadi.spark.reading.rows import read_pieces
from nadi.spark.reading.tasks import PiecesPartition, partitions_of, pieces_of


class BatchReader(DataSourceReader):
    """Everything between two cuts."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        client = client_of(self._options.controller)
        slices = client.run(plan.batch_slices(client.manager, self._options))
        return partitions_of(self._options, pieces_of(self._options.stream, slices))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecesPartition)
        return read_pieces(self._options, partition.pieces)
