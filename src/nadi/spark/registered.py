"""The data source that Spark registers. Every Python process that Spark starts to look for formats imports this module,
so it imports as little as possible; `source_requests` has the implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError as error:
    raise ImportError(f"Spark's formats need pyspark: run pip install 'nadi[spark]' ({error})") from error

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from nadi.spark.reading.streaming import RefusedStreamReader, StreamReader
    from nadi.spark.source_requests import SourceRequest


class RegisteredFormat(DataSource):
    """A format registered by its name."""

    def _source(self) -> SourceRequest:
        from nadi.spark.options.table import SparkFormat
        from nadi.spark.source_requests import SourceRequest

        return SourceRequest(self.options, SparkFormat(self.name()))

    def schema(self) -> StructType | str:
        from nadi.spark.columns import named_schema, refuse_tables

        refuse_tables(self.options)
        return named_schema({name.lower(): value for name, value in self.options.items()}) or self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> StreamReader | RefusedStreamReader:
        return self._source().stream_reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._source().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return self._source().stream_writer(schema, overwrite)
