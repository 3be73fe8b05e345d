"""A source in Python with ready batches, in memory-mapped files: Spark's own time for rows of that shape, from any
source in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nadi.spark.columns import spark_schema
from nadi.spark.connections import begin_task


class ReadyReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self._folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        begin_task()
        with pa.memory_map(partition.value) as mapped:
            opened = pa.ipc.open_file(mapped)
            for number in range(opened.num_record_batches):
                yield opened.get_batch(number)


class ReadySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> Any:
        with pa.memory_map(str(next(Path(self.options["folder"]).iterdir()))) as mapped:
            return spark_schema(pa.ipc.open_file(mapped).schema)

    def reader(self, schema: Any) -> ReadyReader:
        return ReadyReader(self.options["folder"])


def make(folder: Path, parts: Iterable[Iterable[pa.RecordBatch]], schema: pa.Schema) -> Path:
    """Write a file for each task."""
    folder.mkdir()
    for number, batches in enumerate(parts):
        with pa.ipc.new_file(str(folder / f"{number:03}.arrow"), schema) as file:
            for batch in batches:
                file.write_batch(batch)
    return folder


def registered(spark: Any) -> str:
    """Register its format in that session; return the name."""
    spark.dataSource.register(ReadySource)
    return ReadySource.name()
