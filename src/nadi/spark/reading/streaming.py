"""The reader of a streaming query. It lives beside the driver for as long as the query runs; `read` runs in the tasks,
on a pickled copy, so only its options matter there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

from nadi.client.manager.streams import stores_of
from nadi.client.scan.pieces import divided
from nadi.client.scan.positions import with_positions
from nadi.client.segments.info import what_became_of
from nadi.errors import NadiError, QueryTruncatedError, SegmentNotFoundError, TruncatedError
from nadi.model.delivery import AT_MOST_ONCE
from nadi.naming import parse_segment_name
from nadi.spark.checkpoints.mirror import CheckpointMirror
from nadi.spark.connections import Client, batch_of_task, client_of
from nadi.spark.intents import Claims
from nadi.spark.options.read import NO_LIMITS, ReadOptions
from nadi.spark.reading.direct import read_pieces
from nadi.spark.reading.query.notes import BatchNotes
from nadi.spark.reading.query.offsets import Offsets
from nadi.spark.reading.query.streams import QueryStreams
from nadi.spark.reading.tasks import PiecesPartition, partitions_of


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streams from a cut on; offsets are those of `streams` as JSON, where `cut` is the text of a stream cut."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._streams: QueryStreams | None = None  # beside the driver only
        self._run = uuid4().hex
        self._mirror: CheckpointMirror | None = None

    def __reduce__(self) -> tuple[type[StreamReader], tuple[ReadOptions]]:
        return StreamReader, (self._options,)

    def initialOffset(self) -> dict[str, Any]:
        client, streams = self._begun()
        return client.run(streams.begin()).to_json(is_one=self._options.several is None)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark asks for it when it starts a query, before all batches: of one without rows that it planned before, it
        asks for nothing else."""
        client, _ = self._begun()
        if self._mirror is not None:
            client.run(self._mirror.begin())
        admission = self._options.admission
        if admission.max_bytes is not None:
            return ReadMaxBytes(admission.max_bytes)
        if admission.max_events is not None:
            return ReadMaxRows(admission.max_events)
        if admission.max_segment_bytes is not None:
            return ReadMaxBytes(admission.max_segment_bytes)
        return ReadAllAvailable() if admission.min_events is None else ReadMinRows(admission.min_events)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The limit is what `getDefaultReadLimit` says, for any of the options; or none, as `once` wants it."""
        client, streams = self._begun()
        begin = Offsets.from_json(start)
        admission = NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._options.admission
        end = client.run(streams.next(begin, admission))
        return start if end == begin else end.to_json(is_one=self._options.several is None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the query's progress only: the tail, and `behind`, what lies before it (see `lag`)."""
        client, streams = self._begun()
        return client.run(streams.latest())

    def prepareForTriggerAvailableNow(self) -> None:
        client, streams = self._begun()
        client.run(streams.stop_at_tails())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        client, streams = self._begun()
        ending = Offsets.from_json(end)
        claim = None
        if self._options.delivery == AT_MOST_ONCE:
            begin, batch = client.run(streams.hand_out(Offsets.from_json(start), ending))
            claim = batch, self._run
        else:
            begin = client.run(streams.begin_of(Offsets.from_json(start), ending))
        planned = client.run(self._planned(streams, begin, ending))
        for one in planned:
            one.claim = claim
        if self._options.output is not None:
            planned[0].borders = (begin.to_json(is_one=self._options.several is None), end)
        if self._mirror is not None and not self._mirror.is_own:
            client.run(self._mirror.keep(end))
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecesPartition)
        options = self._options
        if partition.claim is not None:
            client = client_of(options.controller)
            claims = Claims(client.manager, options.scope, f"group {options.group_id}")
            if not client.run(claims.task(*partition.claim)):
                return  # an attempt before this one may have handed them out
        batch = batch_of_task()
        if partition.borders is not None and batch is not None:
            client = client_of(options.controller)
            client.run(BatchNotes(client.manager, options).write(*batch, *partition.borders))
        try:
            yield from read_pieces(options, partition.pieces)
        except (TruncatedError, SegmentNotFoundError) as error:  # since the batch was planned
            gap: NadiError = error
            if isinstance(error, SegmentNotFoundError):
                client = client_of(options.controller)
                gap = client.run(what_became_of(stores_of(client.manager), error.segment))
            if not isinstance(gap, TruncatedError):
                raise gap from error
            scope, stream, _ = parse_segment_name(error.segment)
            raise QueryTruncatedError(f"{scope}/{stream}", gap, skips=options.skip_truncated) from error

    def commit(self, end: dict[str, Any]) -> None:
        """Move the query's group, if it has one. Spark keeps the offsets, and has the next batch's by now: with a
        mirror, that has them first."""
        client, streams = self._begun()
        if self._mirror is not None:
            client.run(self._mirror.keep(end))
        client.run(streams.commit(Offsets.from_json(end)))

    async def _planned(self, streams: QueryStreams, start: Offsets, end: Offsets) -> list[PiecesPartition]:
        manager, options = client_of(self._options.controller).manager, self._options
        pieces = await with_positions(manager, options, await streams.pieces(start, end))
        if options.ordered is False:
            pieces = await divided(manager, options.scope, pieces, options.max_partitions, options.min_partition_bytes)
        return partitions_of(options, pieces)

    def _begun(self) -> tuple[Client, QueryStreams]:
        client = client_of(self._options.controller)
        if self._streams is None:
            self._streams = QueryStreams(client.manager, self._options)
            if self._options.mirror is not None:
                self._mirror = CheckpointMirror(client.manager, self._options.scope, *self._options.mirror)
        return client, self._streams


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
