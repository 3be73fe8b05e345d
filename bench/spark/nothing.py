"""A source in Python that generates its rows, one per batch, and a sink that drops its rows: Spark's own time for any
source and sink in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)


class NothingReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield _rows()


class NothingStreamReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"batch": start["batch"] + 1}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(0)]

    def commit(self, end: Any) -> None:
        pass

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield _rows()


class NothingStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:
        pass

    def abort(self, messages: Any, batchId: int) -> None:
        pass


def _rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"event": [b"x"]})


class NothingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return "event binary"

    def reader(self, schema: Any) -> NothingReader:
        return NothingReader()

    def streamReader(self, schema: Any) -> NothingStreamReader:
        return NothingStreamReader()

    def streamWriter(self, schema: Any, overwrite: bool) -> NothingStreamWriter:
        return NothingStreamWriter()


def registered(spark: Any) -> str:
    """Register its format in that session; return the name."""
    spark.dataSource.register(NothingSource)
    return NothingSource.name()
