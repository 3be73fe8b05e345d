"""The RPCs of Pravega's ControllerService, of nadi's own services, and of KEDA's.

Each method converts messages into calls of `Controller` and results into what the official clients understand.
Expected outcomes go into the reply's status (`outcomes`); other errors are raised and become gRPC codes (`server`).
In-band FAILURE makes the Python client stall for a minute, so it is used only where clients understand nothing else.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from nadi import errors
from nadi.controller.controller import Controller
from nadi.controller.event_time import InvalidTimeError
from nadi.controller.external_scaler import metadata_of, trigger
from nadi.controller.grpc.messages import (
    config_message,
    config_of,
    group_config_of,
    group_message,
    group_name,
    range_message,
    ranges_message,
    segment_id_message,
    stream_info,
    stream_name,
    txn_id_of,
    txn_message,
    uuid_of,
    with_all,
)
from nadi.controller.state.history import PreconditionError
from nadi.controller.state.metadata import GroupName, StreamName, TableName
from nadi.controller.state.records import TableConfig, TxnState
from nadi.controller.transactions.decisions import ExecutionTimeExceededError, LeaseTooLargeError
from nadi.errors import InvalidArgumentError, ScopeNotFoundError, StreamNotFoundError
from nadi.limits import STREAM_MAX_SEGMENTS, TXN_BATCH_MAX, TXN_WAIT_S
from nadi.model.quotas import QuotaLimits, QuotaUse
from nadi.naming import segment_name
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc import externalscaler_pb2 as scaler_pb
from nadi.wire.rpc import quotas_pb2 as quotas_pb
from nadi.wire.rpc import reports_pb2 as reports_pb
from nadi.wire.rpc import transactions_pb2 as together_pb
from nadi.wire.time_index import ARRIVAL

log = logging.getLogger(__name__)

_NO_TIME = -(1 << 63)
_MOST = (1 << 63) - 1
_UNFINISHED = together_pb.TransactionStates.UNFINISHED
_STATES = {
    None: together_pb.TransactionStates.UNKNOWN,
    TxnState.OPEN: _UNFINISHED,
    TxnState.COMMITTING: _UNFINISHED,
    TxnState.ABORTING: _UNFINISHED,
    TxnState.COMMITTED: together_pb.TransactionStates.COMMITTED,
    TxnState.ABORTED: together_pb.TransactionStates.ABORTED,
}
T = TypeVar("T")
Fields = dict[str, Any]  # of a reply, by name
Errors = type[Exception] | tuple[type[Exception], ...]
Method = Callable[[Any, Any], Awaitable[Any]]

_LOST = (errors.TransactionFailedError, errors.TransactionNotFoundError)
_ERRORS: dict[str, Errors] = {  # by the reply status that represents them
    "SCOPE_EXISTS": errors.AlreadyExistsError,
    "STREAM_EXISTS": errors.AlreadyExistsError,
    "TABLE_EXISTS": errors.AlreadyExistsError,
    "INVALID_SCOPE_NAME": errors.InvalidNameError,
    "INVALID_STREAM_NAME": errors.InvalidNameError,
    "INVALID_RG_NAME": errors.InvalidNameError,
    "INVALID_TABLE_NAME": errors.InvalidNameError,
    "SCOPE_NOT_FOUND": ScopeNotFoundError,
    "SCOPE_NOT_EMPTY": errors.NotEmptyError,
    "STREAM_NOT_FOUND": StreamNotFoundError,
    "STREAM_DOES_NOT_EXIST": StreamNotFoundError,
    "STREAM_SEALED": errors.StreamSealedError,
    "STREAM_NOT_SEALED": errors.StreamNotSealedError,
    "STREAM_CUT_NOT_VALID": errors.InvalidStreamCutError,
    "RG_NOT_FOUND": errors.ReaderGroupNotFoundError,
    "SUBSCRIBER_NOT_FOUND": errors.SubscriberNotFoundError,
    "INVALID_CONFIG": errors.GenerationMismatchError,
    "GENERATION_MISMATCH": errors.GenerationMismatchError,
    "TABLE_NOT_FOUND": errors.KeyValueTableNotFoundError,
    "TRANSACTION_NOT_FOUND": _LOST,  # also for requests that come too late: FAILURE would be retried
    "LEASE_TOO_LARGE": LeaseTooLargeError,
    "MAX_EXECUTION_TIME_EXCEEDED": ExecutionTimeExceededError,
    "UNKNOWN": errors.TransactionNotFoundError,
    "INVALID_TIME": InvalidTimeError,
    "INVALID_POSITION": errors.InvalidStreamCutError,
    "UNKNOWN_WRITER": errors.WriterNotFoundError,
}


def outcomes(kind: Any, *, field: str = "status", **more: Errors) -> Callable[[Method], Method]:
    """Make a method's reply a `kind` whose status is SUCCESS, or represents the error that the method raised. more:
    further errors by status. A reply with a `reason` gets the error's text. The method returns the reply's other
    fields, or None, and the status if it isn't SUCCESS. field: the status field's name."""
    has_reason = "reason" in kind.DESCRIPTOR.fields_by_name
    statuses = [
        (error_types, getattr(kind, name))
        for name, error_types in (*more.items(), *_ERRORS.items())
        if hasattr(kind, name)
    ]

    def with_status(method: Method) -> Method:
        @functools.wraps(method)
        async def answer(service: Any, request: Any) -> Any:
            try:
                fields = await method(service, request) or {}
            except Exception as error:
                status = next((status for error_types, status in statuses if isinstance(error, error_types)), None)
                if status is None:
                    raise
                fields = {field: status, **({"reason": str(error)} if has_reason else {})}
            if field not in fields:
                fields[field] = kind.SUCCESS
            return kind(**fields)

        return answer

    return with_status


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidArgumentError(f"the request about quotas is invalid: {error}") from error


class Service:
    """A method per RPC, named as in the protocol but in snake case."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def get_controller_server_list(self, request: pb.ServerRequest) -> pb.ServerResponse:
        host, port = self._controller.rpc_endpoint
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port)], restPort=self._controller.rest_port)

    async def get_uri(self, request: pb.SegmentId) -> pb.NodeUri:
        """Return the address of a segment's store; clients also ask about segments unknown to the controller."""
        stream = request.streamInfo
        host, port = self._controller.endpoint_of(segment_name(stream.scope, stream.stream, request.segmentId))
        return pb.NodeUri(endpoint=host, port=port)

    async def get_delegation_token(self, request: pb.StreamInfo) -> pb.DelegationToken:
        return pb.DelegationToken(delegationToken="")

    async def get_controller_to_bucket_mapping(
        self, request: pb.ControllerToBucketMappingRequest
    ) -> pb.ControllerToBucketMappingResponse:
        """Return the controllers in charge of retention and watermarks: this one, with a single bucket."""
        host, port = self._controller.rpc_endpoint
        return pb.ControllerToBucketMappingResponse(mapping={f"{host}:{port}": pb.BucketIds(id=[0])})

    @outcomes(pb.CreateScopeStatus)
    async def create_scope(self, request: pb.ScopeInfo) -> None:
        await self._controller.create_scope(request.scope)

    @outcomes(pb.DeleteScopeStatus)
    async def delete_scope(self, request: pb.ScopeInfo) -> None:
        await self._controller.delete_scope(request.scope)

    @outcomes(pb.DeleteScopeStatus, SUCCESS=ScopeNotFoundError)  # deletion is idempotent
    async def delete_scope_recursive(self, request: pb.ScopeInfo) -> None:
        await self._controller.delete_scope(request.scope, recursive=True)

    async def check_scope_exists(self, request: pb.ScopeInfo) -> pb.ExistsResponse:
        return pb.ExistsResponse(exists=await self._controller.scope_exists(request.scope))

    async def list_scopes(self, request: pb.ScopesRequest) -> pb.ScopesResponse:
        names, token = await self._controller.list_scopes(request.continuationToken.token)
        return pb.ScopesResponse(scopes=names, continuationToken=pb.ContinuationToken(token=token))

    @outcomes(pb.StreamsInScopeResponse)
    async def list_streams_in_scope(self, request: Any) -> Fields:
        """List streams; also serves `listStreamsInScopeForTag`, whose request has a tag."""
        scope, tag = request.scope.scope, getattr(request, "tag", None)
        names, token = await self._controller.list_streams(scope, request.continuationToken.token, tag=tag)
        streams = [stream_info(StreamName(scope, name)) for name in names]
        return {"streams": streams, "continuationToken": pb.ContinuationToken(token=token)}

    list_streams_in_scope_for_tag = list_streams_in_scope

    @outcomes(pb.CreateStreamStatus)
    async def create_stream(self, request: pb.StreamConfig) -> None:
        await self._controller.create_stream(stream_name(request.streamInfo), config_of(request))

    @outcomes(pb.UpdateStreamStatus)
    async def update_stream(self, request: pb.StreamConfig) -> None:
        await self._controller.update_stream(stream_name(request.streamInfo), config_of(request))

    @outcomes(pb.UpdateStreamStatus)
    async def truncate_stream(self, request: pb.StreamCut) -> None:
        await self._controller.truncate_stream(stream_name(request.streamInfo), dict(request.cut))

    @outcomes(pb.UpdateStreamStatus)
    async def seal_stream(self, request: pb.StreamInfo) -> None:
        await self._controller.seal_stream(stream_name(request))

    @outcomes(pb.DeleteStreamStatus, STREAM_NOT_FOUND=ScopeNotFoundError)
    async def delete_stream(self, request: pb.StreamInfo) -> None:
        await self._controller.delete_stream(stream_name(request))

    async def get_stream_configuration(self, request: pb.StreamInfo) -> pb.StreamConfig:
        name = stream_name(request)
        return config_message(name, (await self._controller.stream(name)).config)

    async def check_stream_exists(self, request: pb.StreamInfo) -> pb.ExistsResponse:
        return pb.ExistsResponse(exists=await self._controller.stream_exists(stream_name(request)))

    async def get_current_segments(self, request: pb.StreamInfo) -> pb.SegmentRanges:
        name = stream_name(request)
        return await ranges_message(name, await self._controller.current_segments(name))

    async def get_epoch_segments(self, request: pb.GetEpochSegmentsRequest) -> pb.SegmentRanges:
        name = stream_name(request.streamInfo)
        return await ranges_message(name, await self._controller.epoch_segments(name, request.epoch))

    async def get_segments(self, request: pb.GetSegmentsRequest) -> pb.SegmentsAtTime:
        """Return the cut at a point in time; without one, as Pravega's clients ask, the head of the stream."""
        name = stream_name(request.streamInfo)
        at, clock, controller = request.timestamp, request.clock, self._controller
        is_head = clock == ARRIVAL and at <= 0
        cut = await (controller.head(name) if is_head else controller.cut_at(name, at, clock))
        location = pb.SegmentsAtTime.SegmentLocation
        parts = (
            location(segmentId=segment_id_message(name, segment), offset=offset) for segment, offset in cut.items()
        )
        return await with_all(pb.SegmentsAtTime(), "segments", parts)

    async def get_segments_immediately_following(self, request: pb.SegmentId) -> pb.SuccessorResponse:
        name = stream_name(request.streamInfo)
        successors = await self._controller.successors(name, request.segmentId)
        entry = pb.SuccessorResponse.SegmentEntry
        return pb.SuccessorResponse(
            segments=[entry(segment=range_message(name, new), value=before) for new, before in successors]
        )

    get_segments_immediatly_following = get_segments_immediately_following  # old clients' spelling

    async def get_segments_between(self, request: pb.StreamCutRange) -> pb.StreamCutRangeResponse:
        name = stream_name(request.streamInfo)
        start, end = dict(getattr(request, "from")), dict(request.to)
        segment_ids = await self._controller.segments_between(name, start, end)
        parts = (segment_id_message(name, segment) for segment in segment_ids)
        return await with_all(pb.StreamCutRangeResponse(), "segments", parts)

    async def is_segment_valid(self, request: pb.SegmentId) -> pb.SegmentValidityResponse:
        valid = await self._controller.is_segment_valid(stream_name(request.streamInfo), request.segmentId)
        return pb.SegmentValidityResponse(response=valid)

    async def is_stream_cut_valid(self, request: pb.StreamCut) -> pb.StreamCutValidityResponse:
        valid = await self._controller.is_cut_valid(stream_name(request.streamInfo), dict(request.cut))
        return pb.StreamCutValidityResponse(response=valid)

    async def scale(self, request: pb.ScaleRequest) -> pb.ScaleResponse:
        name = stream_name(request.streamInfo)
        if max(len(request.newKeyRanges), len(request.sealedSegments)) > STREAM_MAX_SEGMENTS:
            log.info("scale of %s rejected: a stream has at most %d segments", name, STREAM_MAX_SEGMENTS)
            return pb.ScaleResponse(status=pb.ScaleResponse.FAILURE)
        ranges = [(entry.start, entry.end) for entry in request.newKeyRanges]
        sealed = list(request.sealedSegments)
        try:
            work = await self._controller.scale(name, sealed, ranges, request.scaleTimestamp)
        except PreconditionError:
            return pb.ScaleResponse(status=pb.ScaleResponse.PRECONDITION_FAILED)
        except (errors.ConflictError, InvalidArgumentError, StreamNotFoundError) as error:
            log.info("scale of %s rejected: %s", name, error)
            return pb.ScaleResponse(status=pb.ScaleResponse.FAILURE)
        return pb.ScaleResponse(
            status=pb.ScaleResponse.STARTED,
            segments=[range_message(name, segment) for segment in work.change.added],
            epoch=work.change.epoch - 1,
        )

    @outcomes(pb.ScaleStatusResponse, INVALID_INPUT=errors.NotFoundError)
    async def check_scale(self, request: pb.ScaleStatusRequest) -> Fields:
        done = await self._controller.is_scaled(stream_name(request.streamInfo), request.epoch)
        return {"status": pb.ScaleStatusResponse.SUCCESS if done else pb.ScaleStatusResponse.IN_PROGRESS}

    @outcomes(pb.CreateReaderGroupResponse)
    async def create_reader_group(self, request: pb.ReaderGroupConfiguration) -> Fields:
        """Create a group, or return the existing one with its configuration, which the client compares."""
        name, config = group_name(request), await group_config_of(request)
        requested = uuid_of(request.readerGroupId)
        group_id = requested if requested.int else UUID(self._controller.clock.unique(), version=4)
        group = await self._controller.create_reader_group(name, config, str(group_id))
        return {"config": await group_message(name, group)}

    @outcomes(pb.ReaderGroupConfigResponse)
    async def get_reader_group_config(self, request: pb.ReaderGroupInfo) -> Fields:
        name = GroupName(request.scope, request.readerGroup)
        return {"config": await group_message(name, await self._controller.reader_group(name))}

    @outcomes(pb.UpdateReaderGroupResponse)
    async def update_reader_group(self, request: pb.ReaderGroupConfiguration) -> Fields:
        name, config = group_name(request), await group_config_of(request)
        group_id = str(uuid_of(request.readerGroupId))
        generation = await self._controller.update_reader_group(name, config, group_id, request.generation)
        return {"generation": generation}

    @outcomes(pb.DeleteReaderGroupStatus)
    async def delete_reader_group(self, request: pb.ReaderGroupInfo) -> None:
        name = GroupName(request.scope, request.readerGroup)
        await self._controller.delete_reader_group(name, str(uuid_of(request.readerGroupId)))

    @outcomes(pb.SubscribersResponse)
    async def list_subscribers(self, request: pb.StreamInfo) -> Fields:
        return {"subscribers": await self._controller.subscribers(stream_name(request))}

    @outcomes(pb.UpdateSubscriberStatus)
    async def update_subscriber_stream_cut(self, request: pb.SubscriberStreamCut) -> None:
        name, cut = stream_name(request.streamCut.streamInfo), dict(request.streamCut.cut)
        group_id = str(uuid_of(request.readerGroupId))
        await self._controller.publish_cut(name, request.subscriber, group_id, request.generation, cut)

    @outcomes(pb.CreateKeyValueTableStatus)
    async def create_key_value_table(self, request: pb.KeyValueTableConfig) -> None:
        config = TableConfig(
            request.partitionCount, request.primaryKeyLength, request.secondaryKeyLength, request.rolloverSizeBytes
        )
        await self._controller.create_table(_table_name(request), config)

    async def get_current_segments_key_value_table(self, request: pb.KeyValueTableInfo) -> pb.SegmentRanges:
        """Return the table's partitions under its plain name: clients add the suffix when they locate a partition."""
        name = _table_name(request)
        table = await self._controller.table(name)
        return await ranges_message(StreamName(*name), table.segments)

    @outcomes(pb.KVTablesInScopeResponse)
    async def list_key_value_tables_in_scope(self, request: pb.KVTablesInScopeRequest) -> Fields:
        scope = request.scope.scope
        names, token = await self._controller.list_tables(scope, request.continuationToken.token)
        tables = [pb.KeyValueTableInfo(scope=scope, kvtName=name) for name in names]
        return {"kvtables": tables, "continuationToken": pb.ContinuationToken(token=token)}

    @outcomes(pb.KeyValueTableConfigResponse)
    async def get_key_value_table_configuration(self, request: pb.KeyValueTableInfo) -> Fields:
        name = _table_name(request)
        config = (await self._controller.table(name)).config
        message = pb.KeyValueTableConfig(
            scope=name.scope,
            kvtName=name.table,
            partitionCount=config.partitions,
            primaryKeyLength=config.primary_key_bytes,
            secondaryKeyLength=config.secondary_key_bytes,
            rolloverSizeBytes=config.rollover_size_bytes,
        )
        return {"config": message}

    @outcomes(pb.DeleteKVTableStatus)
    async def delete_key_value_table(self, request: pb.KeyValueTableInfo) -> None:
        await self._controller.delete_table(_table_name(request))

    async def create_transaction(self, request: pb.CreateTxnRequest) -> pb.CreateTxnResponse:
        name = stream_name(request.streamInfo)
        try:
            transaction = await self._controller.transactions.create(name, request.lease)
        except errors.StreamSealedError as error:  # INVALID_ARGUMENT isn't retried
            raise InvalidArgumentError(str(error)) from error
        return pb.CreateTxnResponse(
            txnId=txn_message(transaction.txn_id),
            activeSegments=[range_message(name, segment) for segment in transaction.ranges],
        )

    @outcomes(pb.TxnStatus)
    async def commit_transaction(self, request: pb.TxnRequest) -> None:
        time = request.timestamp if request.timestamp != _NO_TIME else None
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        await self._controller.transactions.commit(name, txn_id, request.writerId, time)

    @outcomes(pb.TxnStatus)
    async def abort_transaction(self, request: pb.TxnRequest) -> None:
        await self._controller.transactions.abort(stream_name(request.streamInfo), txn_id_of(request.txnId))

    @outcomes(pb.PingTxnStatus)
    async def ping_transaction(self, request: pb.PingTxnRequest) -> Fields:
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        state = await self._controller.transactions.ping(name, txn_id, request.lease)
        if state is TxnState.OPEN:
            return {"status": pb.PingTxnStatus.OK}
        is_committed = state in (TxnState.COMMITTING, TxnState.COMMITTED)
        return {"status": pb.PingTxnStatus.COMMITTED if is_committed else pb.PingTxnStatus.ABORTED}

    @outcomes(pb.TxnState, field="state")
    async def check_transaction_state(self, request: pb.TxnRequest) -> Fields:
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        return {"state": int(await self._controller.transactions.state(name, txn_id))}

    async def list_completed_transactions(self, request: pb.ListCompletedTxnRequest) -> pb.ListCompletedTxnResponse:
        completed = await self._controller.transactions.completed(stream_name(request.streamInfo))
        kinds = {TxnState.COMMITTED: pb.TxnResponse.COMMITTED, TxnState.ABORTED: pb.TxnResponse.ABORTED}
        return pb.ListCompletedTxnResponse(
            response=[pb.TxnResponse(txnId=txn_message(txn_id), status=kinds[state]) for txn_id, state in completed]
        )

    @outcomes(together_pb.CommitTogetherStatus, FAILED=_LOST)
    async def commit_together(self, request: together_pb.CommitTogetherRequest) -> None:
        time = request.timestamp if request.HasField("timestamp") else None
        name, ids = stream_name(request), _ids(request.transactions)
        await self._controller.transactions.commit_together(name, ids, request.writerId, time)

    @outcomes(together_pb.Commit, FAILED=_LOST)
    async def find_commit(self, request: together_pb.FindCommitRequest) -> Fields:
        name, ids = stream_name(request), _ids(request.transactions)
        commit = await self._controller.transactions.find_commit(name, ids, _wait_s(request.waitMs))
        status = together_pb.Commit.MERGED if commit.is_merged else together_pb.Commit.MERGING
        return {"status": status, "cut": commit.cut or {}}

    async def begin_transactions(self, request: together_pb.BeginTransactionsRequest) -> together_pb.BegunTransactions:
        try:
            begun = await self._controller.transactions.create_all(stream_name(request), list(request.leasesMs))
        except errors.StreamSealedError as error:  # INVALID_ARGUMENT isn't retried
            raise InvalidArgumentError(str(error)) from error
        segment = together_pb.BegunTransactions.Segment
        return together_pb.BegunTransactions(
            transactions=[txn_id.to_bytes(16) for txn_id in begun.txn_ids],
            segments=[segment(segment=piece.id, low=piece.low, high=piece.high) for piece in begun.ranges],
        )

    @outcomes(together_pb.CommitTransactionsStatus)
    async def commit_transactions(self, request: together_pb.CommitTransactionsRequest) -> Fields:
        ids = _ids([commit.id for commit in request.transactions])
        commits = zip(ids, request.transactions, strict=True)
        times = {txn_id: commit.timestamp if commit.HasField("timestamp") else None for txn_id, commit in commits}
        lost = await self._controller.transactions.commit_each(stream_name(request), times, request.writerId)
        return {"lost": [txn_id.to_bytes(16) for txn_id in lost]}

    async def await_transactions(self, request: together_pb.AwaitTransactionsRequest) -> together_pb.TransactionStates:
        name, ids = stream_name(request), _ids(request.transactions)
        states = await self._controller.transactions.await_any(name, ids, _wait_s(request.waitMs))
        return together_pb.TransactionStates(states=[_STATES[state] for state in states])

    @outcomes(pb.TimestampResponse, field="result")
    async def note_timestamp_from_writer(self, request: pb.TimestampFromWriter) -> None:
        """Record a writer's time. A missing stream is NOT_FOUND since the reply has no status for it."""
        name, position = stream_name(request.position.streamInfo), dict(request.position.cut)
        steps = [(step.timestamp, dict(step.cut)) for step in request.steps]
        await self._controller.note_time(name, request.writer, request.timestamp, position, steps or None)

    @outcomes(pb.RemoveWriterResponse, field="result")
    async def remove_writer(self, request: pb.RemoveWriterRequest) -> None:
        await self._controller.remove_writer(stream_name(request.stream), request.writer)

    async def list_quotas(self, request: quotas_pb.QuotasRequest) -> quotas_pb.QuotaRecords:
        quotas = self._controller.quotas
        found = [await quotas.get(request.owner)] if request.owner else await quotas.list()
        return quotas_pb.QuotaRecords(records=msgspec.json.encode(found))

    async def change_quota(self, request: quotas_pb.QuotaChange) -> quotas_pb.QuotaRecords:
        quotas = self._controller.quotas
        if request.kind == request.DELETE:
            await quotas.delete(request.owner)
            return quotas_pb.QuotaRecords(records=b"[]")
        quota = await quotas.put(
            request.owner, _decoded(request.limits, QuotaLimits), creates=request.kind == request.CREATE
        )
        return quotas_pb.QuotaRecords(records=msgspec.json.encode([quota]))

    async def share_quotas(self, request: quotas_pb.QuotaUses) -> quotas_pb.QuotaRecords:
        shares = await self._controller.quotas.share(request.server, _decoded(request.uses, list[QuotaUse]))
        return quotas_pb.QuotaRecords(records=msgspec.json.encode(shares))

    async def report(self, request: reports_pb.ReportRequest) -> reports_pb.ReportPage:
        records, token = await self._controller.report(stream_name(request), request.kind, request.token)
        return reports_pb.ReportPage(records=msgspec.json.encode(records), token=token)

    async def is_active(self, request: scaler_pb.ScaledObjectRef) -> scaler_pb.IsActiveResponse:
        return scaler_pb.IsActiveResponse(result=await self._controller.demand.is_active(trigger(metadata_of(request))))

    async def stream_is_active(
        self, request: scaler_pb.ScaledObjectRef
    ) -> AsyncGenerator[scaler_pb.IsActiveResponse, None]:
        async with aclosing(self._controller.demand.watch(trigger(metadata_of(request)))) as changes:
            async for active in changes:
                yield scaler_pb.IsActiveResponse(result=active)

    async def get_metric_spec(self, request: scaler_pb.ScaledObjectRef) -> scaler_pb.GetMetricSpecResponse:
        parsed = trigger(metadata_of(request))
        spec = scaler_pb.MetricSpec(
            metricName=parsed.metric_name, targetSize=_whole(parsed.target), targetSizeFloat=parsed.target
        )
        return scaler_pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def get_metrics(self, request: scaler_pb.GetMetricsRequest) -> scaler_pb.GetMetricsResponse:
        parsed = trigger(metadata_of(request))
        if request.metricName != parsed.metric_name:
            raise InvalidArgumentError(
                f"this trigger does not have the metric {request.metricName[:40]!r}: request {parsed.metric_name}"
            )
        value = await self._controller.demand.value(parsed)
        metric = scaler_pb.MetricValue(metricName=parsed.metric_name, metricValue=_whole(value), metricValueFloat=value)
        return scaler_pb.GetMetricsResponse(metricValues=[metric])


def _table_name(message: pb.KeyValueTableInfo | pb.KeyValueTableConfig) -> TableName:
    return TableName(message.scope, message.kvtName)


def _ids(raw_ids: Sequence[bytes]) -> list[int]:
    if len(raw_ids) > TXN_BATCH_MAX:
        raise InvalidArgumentError(f"{len(raw_ids):,} transactions in one request: send at most {TXN_BATCH_MAX:,}")
    if any(len(raw_id) != 16 for raw_id in raw_ids):
        raise InvalidArgumentError("the id of a transaction has the wrong length: send 16 bytes")
    return [int.from_bytes(raw_id) for raw_id in raw_ids]


def _wait_s(wait_ms: int) -> float:
    return min(wait_ms / 1000, TXN_WAIT_S)


def _whole(number: float) -> int:
    """Round up, so that a small value doesn't become 0."""
    return min(math.ceil(number), _MOST)
