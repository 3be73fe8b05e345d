"""What the option `metadata` reads instead of events: a scope's streams, a stream's ends, its bookmarks and slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nadi.client.aio import StreamManager
from nadi.spark.connections import client_of
from nadi.spark.options.read import ReadOptions

Row = tuple[str | None, ...]


class MetadataReader(DataSourceReader):
    """All rows in one task, as they are when it runs."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, _: InputPartition) -> Iterator[Row]:
        client = client_of(self._options.controller)
        return iter(client.run(_rows(client.manager, self._options)))


async def _rows(manager: StreamManager, options: ReadOptions) -> list[Row]:
    scope, stream = options.scope, options.stream
    if options.metadata == "Streams":
        return [(scope, name) for name in sorted(await manager.list_streams(scope))]
    if options.metadata == "StreamInfo":
        info = await manager.stream_info(scope, stream)
        return [(info.head.as_text(), info.tail.as_text())]
    await manager.stream_configuration(scope, stream)  # StreamNotFoundError
    bookmarks = await manager.bookmarks(scope).list(stream=stream)
    slices = await manager.slices(scope).list(stream=stream)
    return [
        *(("bookmark", one.name, one.cut.as_text(), None) for one in bookmarks),
        *(("slice", one.name, one.start.as_text(), one.end.as_text()) for one in slices),
    ]
