"""The reader of a streaming query. It lives beside the driver for as long as the query runs; `read` runs in the tasks,
on a pickled copy, so only its options matter there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from nadi.client.manager.streams import stores_of
from nadi.client.places.moments import TAIL
from nadi.client.reading.read_ahead import what_became_of
from nadi.errors import NadiError, QueryTruncatedError, SegmentNotFoundError, TruncatedError
from nadi.spark.connections import Client, client_of
from nadi.spark.options.read import ReadOptions
from nadi.spark.reading import plan
from nadi.spark.reading.offsets import Offset
from nadi.spark.reading.progress import Progress, StreamView
from nadi.spark.reading.rows import read_pieces
from nadi.spark.reading.tasks import PiecesPartition, partitions_of, pieces_of


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream from a cut on; offsets are those of `progress` as JSON, where `cut` is the text of a stream cut."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._progress: Progress | None = None  # beside the driver only

    def __reduce__(self) -> tuple[type[StreamReader], tuple[ReadOptions]]:
        return StreamReader, (self._options,)

    def initialOffset(self) -> dict[str, Any]:
        client = client_of(self._options.controller)
        return Offset(client.run(plan.start_of(client.manager, self._options))).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_bytes_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        client, progress = self._begun()
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        return client.run(progress.next(Offset.from_json(start), max_bytes)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        client, progress = self._begun()
        tail = client.run(plan.resolve(client.manager, self._options, TAIL))
        client.run(progress.limit_to("what is available now", tail))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        client, progress = self._begun()
        slices = client.run(progress.slices(Offset.from_json(start), Offset.from_json(end)))
        slices = client.run(plan.narrowed(client.manager, self._options, slices))
        return partitions_of(self._options, pieces_of(self._options.stream, slices))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecesPartition)
        options = self._options
        try:
            yield from read_pieces(options, partition.pieces)
        except (TruncatedError, SegmentNotFoundError) as error:  # since the batch was planned
            gap: NadiError = error
            if isinstance(error, SegmentNotFoundError):
                client = client_of(options.controller)
                gap = client.run(what_became_of(stores_of(client.manager), error.segment))
            if not isinstance(gap, TruncatedError):
                raise gap from error
            stream = f"{options.scope}/{options.stream}"
            raise QueryTruncatedError(stream, gap, is_skipping=options.skip_truncated) from error

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark keeps the offsets, and the stream has its own retention."""

    def _begun(self) -> tuple[Client, Progress]:
        client = client_of(self._options.controller)
        if self._progress is None:
            options = client.run(plan.with_slice(client.manager, self._options))
            view = StreamView(client.manager, options.scope, options.stream, options.on_damage)
            progress = Progress(view, skip_truncated=options.skip_truncated)
            if options.end is not None:
                end = client.run(plan.resolve(client.manager, options, options.end))
                client.run(progress.limit_to("end", end))
            self._progress = progress
        return client, self._progress


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises what is wrong with a query at Spark's first call: an error raised while a reader is created is hidden by
    Spark's own (it stops the reader that it doesn't have)."""

    def __init__(self, error: NadiError) -> None:
        self._error = error

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise self._error

    getDefaultReadLimit = _refuse
    initialOffset = _refuse
    latestOffset = _refuse
    prepareForTriggerAvailableNow = _refuse
    partitions = _refuse
    read = _refuse
