"""The RPCs of reader groups, key-value tables, transactions, event time, reports, and of KEDA; the others: `service`.

Each method makes calls of `Controller` from messages, and messages from what it returns. `outcomes` makes a reply's
status of how a call ended.
"""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from nadi.controller.controller import Controller
from nadi.controller.grpc.messages import (
    group_config_of,
    group_message,
    group_name,
    range_message,
    ranges_message,
    stream_name,
    txn_id_of,
    txn_message,
    uuid_of,
)
from nadi.controller.keda import metadata_of, trigger
from nadi.controller.state.metadata import GroupName, StreamName, TableName
from nadi.controller.state.records import TableConfig, TxnState
from nadi.controller.time.marks import InvalidTimeError
from nadi.controller.transactions.decisions import ExecutionTimeExceededError, LeaseTooLargeError
from nadi.errors import (
    AlreadyExistsError,
    GenerationMismatchError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidStreamCutError,
    KeyValueTableNotFoundError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSealedError,
    SubscriberNotFoundError,
    TransactionFailedError,
    TransactionNotFoundError,
    WriterNotFoundError,
)
from nadi.limits import TXN_TOGETHER_MAX
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc import externalscaler_pb2 as scaler_pb
from nadi.wire.rpc import reports_pb2 as reports_pb
from nadi.wire.rpc import transactions_pb2 as together_pb

S = TypeVar("S", bound="Rpcs")
Fields = dict[str, Any]  # of a reply, by name
Errors = type[Exception] | tuple[type[Exception], ...]


class Rpcs:
    """The methods of some RPCs, each named as in the protocol but in snake case."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller


def outcomes(
    kind: Any, *, field: str = "status", **errors: Errors
) -> Callable[[Callable[[S, Any], Awaitable[Any]]], Callable[[S, Any], Awaitable[Any]]]:
    """Let a method's reply be a `kind` whose status is SUCCESS, or the name in `errors` of what the method raised.

    The method returns the reply's other fields, or None; also the status where it isn't SUCCESS. `field` is its name.
    """
    statuses = [(one, getattr(kind, name)) for name, one in errors.items()]

    def with_status(method: Callable[[S, Any], Awaitable[Any]]) -> Callable[[S, Any], Awaitable[Any]]:
        @functools.wraps(method)
        async def answer(service: S, request: Any) -> Any:
            try:
                more = await method(service, request) or {}
            except Exception as error:
                found = [status for one, status in statuses if isinstance(error, one)]
                if not found:
                    raise
                return kind(**{field: found[0]})
            if field not in more:
                more[field] = kind.SUCCESS
            return kind(**more)

        return answer

    return with_status


class ReaderGroupService(Rpcs):
    @outcomes(pb.CreateReaderGroupResponse, INVALID_RG_NAME=InvalidNameError, SCOPE_NOT_FOUND=ScopeNotFoundError)
    async def create_reader_group(self, request: pb.ReaderGroupConfiguration) -> Fields:
        """An existing group is returned with its configuration: the client compares it with its own."""
        name, config = group_name(request), await group_config_of(request)
        given = uuid_of(request.readerGroupId)
        group_id = given if given.int else UUID(self._controller.clock.unique(), version=4)
        group = await self._controller.create_reader_group(name, config, str(group_id))
        return {"config": await group_message(name, group)}

    @outcomes(pb.ReaderGroupConfigResponse, RG_NOT_FOUND=ReaderGroupNotFoundError)
    async def get_reader_group_config(self, request: pb.ReaderGroupInfo) -> Fields:
        name = GroupName(request.scope, request.readerGroup)
        return {"config": await group_message(name, await self._controller.reader_group(name))}

    @outcomes(
        pb.UpdateReaderGroupResponse, RG_NOT_FOUND=ReaderGroupNotFoundError, INVALID_CONFIG=GenerationMismatchError
    )
    async def update_reader_group(self, request: pb.ReaderGroupConfiguration) -> Fields:
        name, config = group_name(request), await group_config_of(request)
        group_id = str(uuid_of(request.readerGroupId))
        generation = await self._controller.update_reader_group(name, config, group_id, request.generation)
        return {"generation": generation}

    @outcomes(pb.DeleteReaderGroupStatus, RG_NOT_FOUND=ReaderGroupNotFoundError)
    async def delete_reader_group(self, request: pb.ReaderGroupInfo) -> None:
        name = GroupName(request.scope, request.readerGroup)
        await self._controller.delete_reader_group(name, str(uuid_of(request.readerGroupId)))

    # --- subscribers -----------------------------------------------------------------------------

    @outcomes(pb.SubscribersResponse, STREAM_NOT_FOUND=StreamNotFoundError)
    async def list_subscribers(self, request: pb.StreamInfo) -> Fields:
        return {"subscribers": await self._controller.subscribers(stream_name(request))}

    @outcomes(
        pb.UpdateSubscriberStatus,
        STREAM_NOT_FOUND=StreamNotFoundError,
        SUBSCRIBER_NOT_FOUND=SubscriberNotFoundError,
        STREAM_CUT_NOT_VALID=InvalidStreamCutError,
        GENERATION_MISMATCH=GenerationMismatchError,
    )
    async def update_subscriber_stream_cut(self, request: pb.SubscriberStreamCut) -> None:
        name, cut = stream_name(request.streamCut.streamInfo), dict(request.streamCut.cut)
        group_id = str(uuid_of(request.readerGroupId))
        await self._controller.publish_cut(name, request.subscriber, group_id, request.generation, cut)


class KeyValueTableService(Rpcs):
    @outcomes(
        pb.CreateKeyValueTableStatus,
        INVALID_TABLE_NAME=InvalidNameError,
        SCOPE_NOT_FOUND=ScopeNotFoundError,
        TABLE_EXISTS=AlreadyExistsError,
    )
    async def create_key_value_table(self, request: pb.KeyValueTableConfig) -> None:
        config = TableConfig(
            request.partitionCount, request.primaryKeyLength, request.secondaryKeyLength, request.rolloverSizeBytes
        )
        await self._controller.create_table(_table_name(request), config)

    async def get_current_segments_key_value_table(self, request: pb.KeyValueTableInfo) -> pb.SegmentRanges:
        """Its partitions, under the table's own name: clients add the suffix themselves when they ask for a place."""
        name = _table_name(request)
        table = await self._controller.table(name)
        return await ranges_message(StreamName(*name), table.segments)

    async def list_key_value_tables_in_scope(self, request: pb.KVTablesInScopeRequest) -> pb.KVTablesInScopeResponse:
        scope, token = request.scope.scope, request.continuationToken.token
        status = pb.KVTablesInScopeResponse.SUCCESS
        names: list[str] = []
        try:
            names, token = await self._controller.list_tables(scope, token)
        except ScopeNotFoundError:
            status = pb.KVTablesInScopeResponse.SCOPE_NOT_FOUND
        return pb.KVTablesInScopeResponse(
            kvtables=[pb.KeyValueTableInfo(scope=scope, kvtName=name) for name in names],
            continuationToken=pb.ContinuationToken(token=token),
            status=status,
        )

    @outcomes(pb.KeyValueTableConfigResponse, TABLE_NOT_FOUND=KeyValueTableNotFoundError)
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

    @outcomes(pb.DeleteKVTableStatus, TABLE_NOT_FOUND=KeyValueTableNotFoundError)
    async def delete_key_value_table(self, request: pb.KeyValueTableInfo) -> None:
        await self._controller.delete_table(_table_name(request))


def _table_name(message: pb.KeyValueTableInfo | pb.KeyValueTableConfig) -> TableName:
    return TableName(message.scope, message.kvtName)


_NO_TIME = -(1 << 63)

# A decision that comes too late is answered TRANSACTION_NOT_FOUND: FAILURE would be retried.
_decided = outcomes(
    pb.TxnStatus,
    STREAM_NOT_FOUND=StreamNotFoundError,
    TRANSACTION_NOT_FOUND=(TransactionNotFoundError, TransactionFailedError),
)


class TransactionService(Rpcs):
    async def create_transaction(self, request: pb.CreateTxnRequest) -> pb.CreateTxnResponse:
        name = stream_name(request.streamInfo)
        try:
            begun = await self._controller.create_transaction(name, request.lease)
        except StreamSealedError as error:  # INVALID_ARGUMENT: that is not retried
            raise InvalidArgumentError(str(error)) from error
        return pb.CreateTxnResponse(
            txnId=txn_message(begun.txn_id),
            activeSegments=[range_message(name, segment) for segment in begun.ranges],
        )

    @_decided
    async def commit_transaction(self, request: pb.TxnRequest) -> None:
        time = request.timestamp if request.timestamp != _NO_TIME else None
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        await self._controller.commit_transaction(name, txn_id, request.writerId, time)

    @_decided
    async def abort_transaction(self, request: pb.TxnRequest) -> None:
        await self._controller.abort_transaction(stream_name(request.streamInfo), txn_id_of(request.txnId))

    @outcomes(
        pb.PingTxnStatus,
        LEASE_TOO_LARGE=LeaseTooLargeError,
        MAX_EXECUTION_TIME_EXCEEDED=ExecutionTimeExceededError,
        UNKNOWN=TransactionNotFoundError,
    )
    async def ping_transaction(self, request: pb.PingTxnRequest) -> Fields:
        status = pb.PingTxnStatus
        statuses = {
            TxnState.OPEN: status.OK,
            TxnState.COMMITTING: status.COMMITTED,
            TxnState.COMMITTED: status.COMMITTED,
            TxnState.ABORTING: status.ABORTED,
            TxnState.ABORTED: status.ABORTED,
        }
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        return {"status": statuses[await self._controller.ping_transaction(name, txn_id, request.lease)]}

    async def check_transaction_state(self, request: pb.TxnRequest) -> pb.TxnState:
        name, txn_id = stream_name(request.streamInfo), txn_id_of(request.txnId)
        try:
            state = await self._controller.transaction_state(name, txn_id)
        except TransactionNotFoundError:
            return pb.TxnState(state=pb.TxnState.UNKNOWN)
        return pb.TxnState(state=cast("pb.TxnState.State", int(state)))

    async def list_completed_transactions(self, request: pb.ListCompletedTxnRequest) -> pb.ListCompletedTxnResponse:
        found = await self._controller.transactions.completed(stream_name(request.streamInfo))
        kinds = {TxnState.COMMITTED: pb.TxnResponse.COMMITTED, TxnState.ABORTED: pb.TxnResponse.ABORTED}
        return pb.ListCompletedTxnResponse(
            response=[pb.TxnResponse(txnId=txn_message(txn_id), status=kinds[state]) for txn_id, state in found]
        )


_LOST = (TransactionFailedError, TransactionNotFoundError)


class CommitService(Rpcs):
    async def commit_together(self, request: together_pb.CommitTogetherRequest) -> together_pb.CommitTogetherStatus:
        time = request.timestamp if request.HasField("timestamp") else None
        name, status = stream_name(request), together_pb.CommitTogetherStatus
        try:
            await self._controller.commit_together(name, _ids(request.transactions), request.writerId, time)
        except StreamNotFoundError:
            return status(status=status.STREAM_NOT_FOUND)
        except _LOST as error:
            return status(status=status.FAILED, reason=str(error))
        return status(status=status.SUCCESS)

    async def find_commit(self, request: together_pb.FindCommitRequest) -> together_pb.Commit:
        try:
            found = await self._controller.find_commit(stream_name(request), _ids(request.transactions))
        except StreamNotFoundError:
            return together_pb.Commit(status=together_pb.Commit.STREAM_NOT_FOUND)
        except _LOST as error:
            return together_pb.Commit(status=together_pb.Commit.FAILED, reason=str(error))
        return together_pb.Commit(
            status=together_pb.Commit.MERGED if found.is_merged else together_pb.Commit.MERGING, cut=found.cut or {}
        )


def _ids(found: Sequence[bytes]) -> list[int]:
    if len(found) > TXN_TOGETHER_MAX:
        raise InvalidArgumentError(f"{len(found):,} transactions at once: at most {TXN_TOGETHER_MAX:,} are taken")
    if any(len(one) != 16 for one in found):
        raise InvalidArgumentError("a transaction's id has 16 bytes")
    return [int.from_bytes(one) for one in found]


class EventTimeService(Rpcs):
    @outcomes(
        pb.TimestampResponse, field="result", INVALID_TIME=InvalidTimeError, INVALID_POSITION=InvalidStreamCutError
    )
    async def note_timestamp_from_writer(self, request: pb.TimestampFromWriter) -> None:
        """A missing stream is NOT_FOUND: the reply has no status for it."""
        name, position = stream_name(request.position.streamInfo), dict(request.position.cut)
        steps = [(step.timestamp, dict(step.cut)) for step in request.steps]
        await self._controller.note_time(name, request.writer, request.timestamp, position, steps or None)

    @outcomes(
        pb.RemoveWriterResponse,
        field="result",
        STREAM_DOES_NOT_EXIST=StreamNotFoundError,
        UNKNOWN_WRITER=WriterNotFoundError,
    )
    async def remove_writer(self, request: pb.RemoveWriterRequest) -> None:
        await self._controller.remove_writer(stream_name(request.stream), request.writer)


class ReportService(Rpcs):
    async def report(self, request: reports_pb.ReportRequest) -> reports_pb.ReportPage:
        records, token = await self._controller.report(stream_name(request), request.kind, request.token)
        return reports_pb.ReportPage(records=msgspec.json.encode(records), token=token)


_MOST = (1 << 63) - 1


class ScalerService(Rpcs):
    async def is_active(self, request: scaler_pb.ScaledObjectRef) -> scaler_pb.IsActiveResponse:
        return scaler_pb.IsActiveResponse(result=await self._controller.demand.is_active(trigger(metadata_of(request))))

    async def stream_is_active(
        self, request: scaler_pb.ScaledObjectRef
    ) -> AsyncGenerator[scaler_pb.IsActiveResponse, None]:
        async with aclosing(self._controller.demand.watch(trigger(metadata_of(request)))) as changes:
            async for active in changes:
                yield scaler_pb.IsActiveResponse(result=active)

    async def get_metric_spec(self, request: scaler_pb.ScaledObjectRef) -> scaler_pb.GetMetricSpecResponse:
        asked = trigger(metadata_of(request))
        spec = scaler_pb.MetricSpec(
            metricName=asked.metric_name, targetSize=_whole(asked.target), targetSizeFloat=asked.target
        )
        return scaler_pb.GetMetricSpecResponse(metricSpecs=[spec])

    async def get_metrics(self, request: scaler_pb.GetMetricsRequest) -> scaler_pb.GetMetricsResponse:
        asked = trigger(metadata_of(request))
        if request.metricName != asked.metric_name:
            raise InvalidArgumentError(
                f"this trigger has no metric {request.metricName[:40]!r}: ask for {asked.metric_name}"
            )
        value = await self._controller.demand.value(asked)
        found = scaler_pb.MetricValue(metricName=asked.metric_name, metricValue=_whole(value), metricValueFloat=value)
        return scaler_pb.GetMetricsResponse(metricValues=[found])


def _whole(number: float) -> int:
    """Rounded up, so that little isn't nothing."""
    return min(math.ceil(number), _MOST)
