"""The reader of a streaming query. It lives in the driver's process as long as the query; `read` runs in tasks, on a
pickled copy, which only needs the options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NoReturn
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.scan.pieces import ScanRange, split_large
from nadi.client.scan.positions import with_positions
from nadi.client.segments.info import resolve_missing
from nadi.errors import NadiError, QueryTruncatedError, SegmentNotFoundError, TruncatedError
from nadi.model.delivery import AT_MOST_ONCE
from nadi.naming import parse_segment_name
from nadi.spark.connections import TaskClient, batch_of_task, client_of
from nadi.spark.intents import Claims
from nadi.spark.mirror import CheckpointMirror
from nadi.spark.options.parsed import NO_LIMITS, ReadOptions
from nadi.spark.reading.direct import read_pieces
from nadi.spark.reading.group import BatchNotes
from nadi.spark.reading.offsets import Offsets
from nadi.spark.reading.plan import PiecesPartition, partitions_of
from nadi.spark.reading.streams import QueryStreams


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams from a cut on; its offsets are JSON (see `offsets`), where `cut` is the text of a stream cut."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._run = uuid4().hex

    def __reduce__(self) -> tuple[type[StreamReader], tuple[ReadOptions]]:
        return StreamReader, (self._options,)

    @property
    def _client(self) -> TaskClient:
        return client_of(self._options.controller)

    @cached_property
    def _streams(self) -> QueryStreams:
        """In the driver's process only."""
        return QueryStreams(self._client.manager, self._options)

    @cached_property
    def _mirror(self) -> CheckpointMirror | None:
        mirror = self._options.mirror
        return CheckpointMirror(self._client.manager, self._options.scope, *mirror) if mirror is not None else None

    def _json(self, offsets: Offsets) -> dict[str, Any]:
        return offsets.to_json(is_one=self._options.several is None)

    def initialOffset(self) -> dict[str, Any]:
        return self._json(self._client.run(self._streams.begin()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of batches. Spark calls it when a query starts, before all batches; for a planned batch
        without rows, it is the only call."""
        if self._mirror is not None:
            self._client.run(self._mirror.begin())
        admission = self._options.admission
        if (size := admission.max_bytes) is not None:
            return ReadMaxBytes(size)
        if (events := admission.max_events) is not None:
            return ReadMaxRows(events)
        if (of_segment := admission.max_segment_bytes) is not None:
            return ReadMaxBytes(of_segment)
        return ReadAllAvailable() if admission.min_events is None else ReadMinRows(admission.min_events)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of a batch. limit: that of `getDefaultReadLimit` for any of the options, or none for
        `once`."""
        begin = Offsets.from_json(start)
        admission = NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._options.admission
        end = self._client.run(self._streams.next(begin, admission))
        return start if end == begin else self._json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the tail and the lag, `lag`, for the query's progress (see `consumer_lag`)."""
        return self._client.run(self._streams.latest())

    def prepareForTriggerAvailableNow(self) -> None:
        self._client.run(self._streams.stop_at_tails())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options, client = self._options, self._client
        begin, ending, claim = Offsets.from_json(start), Offsets.from_json(end), None
        if options.delivery == AT_MOST_ONCE:
            begin, batch = client.run(self._streams.hand_out(begin, ending))
            claim = batch, self._run
        else:
            begin = client.run(self._streams.begin_of(begin, ending))
        pieces = client.run(self._pieces(client.manager, begin, ending))
        planned = partitions_of(options, pieces)
        for task in planned:
            task.claim = claim
        if options.output is not None:
            planned[0].borders = (self._json(begin), end)
        if self._mirror is not None and not self._mirror.is_own:
            client.run(self._mirror.keep(end))
        return planned

    async def _pieces(self, manager: StreamManager, start: Offsets, end: Offsets) -> list[ScanRange]:
        options = self._options
        pieces = await with_positions(manager, options, await self._streams.pieces(start, end))
        if options.ordered is not False:
            return pieces
        return await split_large(manager, options.scope, pieces, options.max_partitions, options.min_partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecesPartition)
        options, client = self._options, self._client
        if partition.claim is not None:
            claims = Claims(client.manager, options.scope, f"group {options.group_id}")
            if not client.run(claims.task(*partition.claim)):
                return  # an earlier attempt may have handed the events out
        batch = batch_of_task()
        if partition.borders is not None and batch is not None:
            client.run(BatchNotes(client.manager, options).write(*batch, *partition.borders))
        try:
            yield from read_pieces(options, partition.pieces)
        except (TruncatedError, SegmentNotFoundError) as error:  # truncated after the batch was planned
            gap: NadiError = error
            if isinstance(error, SegmentNotFoundError):
                gap = client.run(resolve_missing(stores_of(client.manager), error.segment))
            if not isinstance(gap, TruncatedError):
                raise gap from error
            scope, stream, _ = parse_segment_name(error.segment)
            raise QueryTruncatedError(f"{scope}/{stream}", gap, skips=options.skip_truncated) from error

    def commit(self, end: dict[str, Any]) -> None:
        """Mirror the checkpoint and move the query's group, if it has them. At this moment Spark has already logged the
        next batch's offsets."""
        if self._mirror is not None:
            self._client.run(self._mirror.keep(end))
        self._client.run(self._streams.commit(Offsets.from_json(end)))


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises a query's error at Spark's first call: Spark would hide an error raised while a reader is created with its
    own, from stopping a reader that it doesn't have."""

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
