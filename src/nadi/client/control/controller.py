"""Make the controller's RPCs as typed calls and map its statuses to nadi's errors.

`calls` sends the requests and handles transport failures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from nadi.backoff import Backoff
from nadi.client.control.calls import DEFAULT_TIMEOUT_S, ControllerCalls
from nadi.client.control.policy import (
    KeyValueTableConfiguration,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
)
from nadi.client.control.security import Security
from nadi.errors import (
    ConflictError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidStreamCutError,
    KeyValueTableNotFoundError,
    NadiError,
    NotEmptyError,
    NotFoundError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamRecreatedError,
    StreamSealedError,
    SubscriberNotFoundError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.limits import PREFIXED_NAME_MAX_CHARS, RPC_STREAMS_MAX, TXN_WAIT_S
from nadi.model.event_time import EventTime
from nadi.model.quotas import Quota
from nadi.model.segments import SegmentRange, Successor
from nadi.model.streamcut import StreamCut
from nadi.naming import check_name, container_key, parse_segment_name
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc import reports_pb2 as own
from nadi.wire.rpc import transactions_pb2 as together
from nadi.wire.rpc.quotas_pb2 import QuotaRecords
from nadi.wire.time_index import ARRIVAL

_MASK_64 = (1 << 64) - 1


_NAME_RULE = "letters, digits, '.' and '-', at most 255 characters"
_ERRORS: dict[str, Callable[[str, str], NadiError]] = {  # by status, given a scope and the name of an object in it
    "SCOPE_NOT_FOUND": lambda scope, _: ScopeNotFoundError(scope),
    "SCOPE_NOT_EMPTY": lambda scope, _: NotEmptyError(
        f"scope {scope} is not empty: delete its streams, reader groups and tables first, or all with it (recursive)"
    ),
    "INVALID_SCOPE_NAME": lambda scope, _: InvalidNameError("scope", scope, _NAME_RULE),
    "STREAM_NOT_FOUND": StreamNotFoundError,
    "STREAM_SEALED": lambda scope, stream: StreamSealedError(f"stream {scope}/{stream}"),
    "STREAM_NOT_SEALED": StreamNotSealedError,
    "INVALID_STREAM_NAME": lambda _, stream: InvalidNameError("stream", stream, _NAME_RULE),
    "RG_NOT_FOUND": ReaderGroupNotFoundError,
    "INVALID_RG_NAME": lambda _, group: InvalidNameError("reader group", group, _NAME_RULE),
    "TABLE_NOT_FOUND": KeyValueTableNotFoundError,
    "INVALID_TABLE_NAME": lambda _, table: InvalidNameError("key-value table", table, _NAME_RULE),
}


def succeeded(
    reply: Any, action: str, scope: str, name: str = "", *, no: str = "", failure: type[NadiError] = NadiError
) -> bool:
    """Return True for the status SUCCESS and False for `no`; raise the error of any other status, `failure` if the
    status is generic. action: a clause for its message, such as "creating scope sc"."""
    known = reply.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number.get(reply.status)
    status = known.name if known is not None else ""
    if status in ("SUCCESS", no):
        return status == "SUCCESS"
    if status in _ERRORS:
        raise _ERRORS[status](scope, name)
    raise failure(f"{action} failed at the controller: see its log")


def check_txn(reply: pb.TxnStatus, scope: str, stream: str, txn_id: UUID) -> None:
    if reply.status == reply.STREAM_NOT_FOUND:
        raise StreamNotFoundError(scope, stream)
    if reply.status == reply.TRANSACTION_NOT_FOUND:
        raise TransactionNotFoundError(str(txn_id))
    if reply.status != reply.SUCCESS:
        raise TransactionFailedError(f"transaction {txn_id} has already ended in another way: check its status")


def stream_message(scope: str, stream: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def tokenless_stream_message(scope: str, stream: str) -> pb.StreamInfo:
    """Return a stream message that requests the reply without a delegation token."""
    return pb.StreamInfo(scope=scope, stream=stream, accessOperation=pb.StreamInfo.AccessOperation.NONE)


def cut_message(cut: StreamCut) -> pb.StreamCut:
    return pb.StreamCut(streamInfo=stream_message(cut.scope, cut.stream), cut=dict(cut.positions))


def config_message(scope: str, stream: str, config: StreamConfiguration) -> pb.StreamConfig:
    scaling, retention = config.scaling, config.retention
    fields: Mapping[str, int] = {
        "scaleType": scaling.kind,
        "targetRate": scaling.target_rate,
        "scaleFactor": scaling.scale_factor,
        "minNumSegments": scaling.min_segments,
    }
    message = pb.StreamConfig(
        streamInfo=stream_message(scope, stream),
        scalingPolicy=pb.ScalingPolicy(**fields),  # type: ignore[arg-type]
        tags=pb.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
        rolloverSizeBytes=config.rollover_size_bytes,
        eventTime=str(config.event_time) if config.event_time is not None else "",
    )
    if retention is not None:
        message.retentionPolicy.retentionType = retention.kind  # type: ignore[assignment]
        message.retentionPolicy.retentionParam = retention.minimum
        message.retentionPolicy.retentionMax = retention.maximum
        message.retentionPolicy.overBookmarks = retention.over_bookmarks
        message.retentionPolicy.byEventTime = retention.by_event_time
    return message


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def txn_id_message(txn_id: UUID) -> pb.TxnId:
    return pb.TxnId(highBits=_signed(txn_id.int >> 64), lowBits=_signed(txn_id.int & _MASK_64))


def txn_id_of(message: pb.TxnId) -> UUID:
    return UUID(int=(message.highBits & _MASK_64) << 64 | message.lowBits & _MASK_64)


def txn_message(scope: str, stream: str, txn_id: UUID) -> pb.TxnRequest:
    return pb.TxnRequest(streamInfo=stream_message(scope, stream), txnId=txn_id_message(txn_id))


def range_of(message: pb.SegmentRange) -> SegmentRange:
    return SegmentRange(message.segmentId.segmentId, message.minKey, message.maxKey)


def ranges_of(messages: Iterable[pb.SegmentRange]) -> list[SegmentRange]:
    return sorted((range_of(message) for message in messages), key=lambda r: r.low)


WORKFLOW_TIMEOUT_S = 130.0  # the controller answers a workflow's caller within 120 s
_Record = TypeVar("_Record")


class ControllerClient(ControllerCalls):
    """Typed client of one controller."""

    def __init__(self, address: str, security: Security | None = None, timeout_s: float | None = None) -> None:
        super().__init__(address, security, timeout_s)
        self._waits = asyncio.Semaphore(RPC_STREAMS_MAX // 2)  # so that waiting calls leave capacity for others
        self._wait_ms = round(min(TXN_WAIT_S, (timeout_s or DEFAULT_TIMEOUT_S) / 2) * 1000)

    # --- scopes -----------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> bool:
        reply = await self.call("createScope", pb.ScopeInfo(scope=scope), pb.CreateScopeStatus)
        return succeeded(reply, f"creating scope {scope}", scope, no="SCOPE_EXISTS")

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        rpc = "deleteScopeRecursive" if recursive else "deleteScope"
        reply = await self.call(rpc, pb.ScopeInfo(scope=scope), pb.DeleteScopeStatus, WORKFLOW_TIMEOUT_S)
        return succeeded(reply, f"deleting scope {scope}", scope, no="SCOPE_NOT_FOUND")

    async def list_scopes(self) -> list[str]:
        return await self._all_pages("listScopes", pb.ScopesRequest(), pb.ScopesResponse, lambda reply: reply.scopes)

    async def _all_pages(
        self, rpc: str, request: Any, kind: type[Any], names_of: Callable[[Any], Iterable[str]], scope: str = ""
    ) -> list[str]:
        """Return the names in all pages of a list. With `scope`, raise ScopeNotFoundError if it doesn't exist."""
        names: list[str] = []
        while True:
            reply = await self.call(rpc, request, kind)
            if scope:
                succeeded(reply, f"listing the contents of scope {scope}", scope)
            page = list(names_of(reply))
            names += page
            if not page or reply.continuationToken.token in ("", request.continuationToken.token):
                return names
            request.continuationToken.CopyFrom(reply.continuationToken)

    async def scope_exists(self, scope: str) -> bool:
        reply = await self.call("checkScopeExists", pb.ScopeInfo(scope=scope), pb.ExistsResponse)
        return reply.exists

    # --- streams ----------------------------------------------------------------------------

    async def create_stream(self, scope: str, stream: str, config: StreamConfiguration) -> bool:
        request = config_message(scope, stream, config)
        reply = await self.call("createStream", request, pb.CreateStreamStatus, WORKFLOW_TIMEOUT_S)
        return succeeded(reply, f"creating {scope}/{stream}", scope, stream, no="STREAM_EXISTS")

    async def update_stream(self, scope: str, stream: str, config: StreamConfiguration) -> None:
        await self._update("updateStream", scope, stream, config_message(scope, stream, config))

    async def truncate_stream(self, cut: StreamCut) -> None:
        await self._update("truncateStream", cut.scope, cut.stream, cut_message(cut))

    async def seal_stream(self, scope: str, stream: str) -> None:
        await self._update("sealStream", scope, stream, stream_message(scope, stream))

    async def _update(self, rpc: str, scope: str, stream: str, request: Any) -> None:
        reply = await self.call(rpc, request, pb.UpdateStreamStatus, WORKFLOW_TIMEOUT_S)
        succeeded(reply, f"changing {scope}/{stream}", scope, stream)

    async def delete_stream(self, scope: str, stream: str) -> bool:
        request = stream_message(scope, stream)
        reply = await self.call("deleteStream", request, pb.DeleteStreamStatus, WORKFLOW_TIMEOUT_S)
        return succeeded(reply, f"deleting {scope}/{stream}", scope, stream, no="STREAM_NOT_FOUND")

    async def stream_exists(self, scope: str, stream: str) -> bool:
        return (await self.call("checkStreamExists", stream_message(scope, stream), pb.ExistsResponse)).exists

    async def stream_configuration(self, scope: str, stream: str) -> StreamConfiguration:
        request = stream_message(scope, stream)
        reply = await self.stream_call("getStreamConfiguration", scope, stream, request, pb.StreamConfig)
        scaling, retention = reply.scalingPolicy, reply.retentionPolicy
        return StreamConfiguration(
            ScalingPolicy(int(scaling.scaleType), scaling.targetRate, scaling.scaleFactor, scaling.minNumSegments),
            RetentionPolicy(
                int(retention.retentionType),
                retention.retentionParam,
                retention.retentionMax,
                retention.overBookmarks,
                retention.byEventTime,
            )
            if retention.retentionType
            else None,
            tuple(reply.tags.tag),
            reply.timestampAggregationTimeout,
            reply.rolloverSizeBytes,
            EventTime.parse(reply.eventTime) if reply.eventTime else None,
        )

    async def report(self, scope: str, stream: str, kind: str, record: type[_Record]) -> list[_Record]:
        records: list[_Record] = []
        request = own.ReportRequest(scope=scope, stream=stream, kind=kind)
        while True:
            page = await self.stream_call("report", scope, stream, request, own.ReportPage)
            records += msgspec.json.decode(page.records, type=list[record])  # type: ignore[valid-type]
            if not page.token:
                return records
            request.token = page.token

    async def quotas(self, rpc: str, request: Any) -> list[Quota]:
        return msgspec.json.decode((await self.call(rpc, request, QuotaRecords)).records, type=list[Quota])

    async def list_streams(self, scope: str, tag: str | None = None) -> list[str]:
        scope_info = pb.ScopeInfo(scope=scope)
        request: Any
        rpc, request = "listStreamsInScope", pb.StreamsInScopeRequest(scope=scope_info)
        if tag is not None:
            rpc, request = "listStreamsInScopeForTag", pb.StreamsInScopeWithTagRequest(scope=scope_info, tag=tag)
        kind = pb.StreamsInScopeResponse
        return await self._all_pages(rpc, request, kind, lambda reply: [info.stream for info in reply.streams], scope)

    # --- segments ---------------------------------------------------------------------------

    async def current_segments(self, scope: str, stream: str) -> list[SegmentRange]:
        reply = await self.stream_call(
            "getCurrentSegments", scope, stream, tokenless_stream_message(scope, stream), pb.SegmentRanges
        )
        return ranges_of(reply.segmentRanges)

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> list[SegmentRange]:
        request = pb.GetEpochSegmentsRequest(streamInfo=tokenless_stream_message(scope, stream), epoch=epoch)
        reply = await self.stream_call("getEpochSegments", scope, stream, request, pb.SegmentRanges)
        return ranges_of(reply.segmentRanges)

    async def head(self, scope: str, stream: str) -> StreamCut:
        return await self.cut_at(scope, stream, 0)

    async def cut_at(self, scope: str, stream: str, at: int, clock: int = ARRIVAL) -> StreamCut:
        """Return the stream cut at time `at` of a clock. ARRIVAL's unit is ms since 1970; 0 is before all events."""
        request = pb.GetSegmentsRequest(streamInfo=tokenless_stream_message(scope, stream), timestamp=at, clock=clock)
        reply = await self.stream_call("getSegments", scope, stream, request, pb.SegmentsAtTime)
        return StreamCut(scope, stream, {s.segmentId.segmentId: s.offset for s in reply.segments})

    async def successors(self, scope: str, stream: str, segment_id: int) -> list[Successor]:
        """Return the successors of a sealed segment; empty if the stream was sealed with it. Raises
        StreamRecreatedError if the stream was deleted and created again since."""
        request = pb.SegmentId(streamInfo=stream_message(scope, stream), segmentId=segment_id)
        name, kind = "getSegmentsImmediatelyFollowing", pb.SuccessorResponse
        try:
            reply = await self.stream_call(name, scope, stream, request, kind)
        except StreamNotFoundError:
            if not await self.stream_exists(scope, stream):
                raise
            raise StreamRecreatedError(scope, stream) from None
        return [Successor(range_of(entry.segment), tuple(entry.value)) for entry in reply.segments]

    async def is_stream_cut_valid(self, cut: StreamCut) -> bool:
        """Return whether the cut's segments and offsets are possible for a reader of the whole stream."""
        request, kind = cut_message(cut), pb.StreamCutValidityResponse
        reply = await self.stream_call("isStreamCutValid", cut.scope, cut.stream, request, kind)
        return bool(reply.response)

    async def segments_between(
        self, scope: str, stream: str, start: StreamCut | None, end: StreamCut | None
    ) -> list[int]:
        cuts: dict[str, Any] = {name: dict(cut.positions) for name, cut in (("from", start), ("to", end)) if cut}
        request = pb.StreamCutRange(streamInfo=stream_message(scope, stream), **cuts)
        reply = await self.stream_call("getSegmentsBetween", scope, stream, request, pb.StreamCutRangeResponse)
        return [segment.segmentId for segment in reply.segments]

    async def segment_endpoint(self, segment: str) -> tuple[str, int]:
        base = "/".join(segment.split("/")[:2] + [container_key(segment).rpartition("/")[2]])
        scope, stream, segment_id = parse_segment_name(base)
        request = pb.SegmentId(streamInfo=stream_message(scope, stream), segmentId=segment_id)
        reply = await self.call("getURI", request, pb.NodeUri)
        return reply.endpoint, reply.port

    async def rest_port(self) -> int:
        """Return the port of the server's REST API; 0 if it is off or unknown."""
        return (await self.call("getControllerServerList", pb.ServerRequest(), pb.ServerResponse)).restPort

    async def delegation_token(self, scope: str, stream: str, *, write: bool) -> str:
        """Return a token for the segment stores; empty if they require none."""
        operation = pb.StreamInfo.AccessOperation.WRITE if write else pb.StreamInfo.AccessOperation.READ
        request = pb.StreamInfo(scope=scope, stream=stream, accessOperation=operation)
        return (await self.call("getDelegationToken", request, pb.DelegationToken)).delegationToken

    async def scale(self, scope: str, stream: str, sealed: Iterable[int], ranges: Iterable[tuple[float, float]]) -> int:
        """Start a scale; return the epoch before it, for `scale_is_done`."""
        request = pb.ScaleRequest(
            streamInfo=stream_message(scope, stream),
            sealedSegments=sealed,
            newKeyRanges=[pb.ScaleRequest.KeyRangeEntry(start=low, end=high) for low, high in ranges],
            scaleTimestamp=int(time.time() * 1000),
        )
        reply = await self.stream_call("scale", scope, stream, request, pb.ScaleResponse)
        if reply.status == reply.PRECONDITION_FAILED:
            raise ConflictError(
                f"can't scale {scope}/{stream}: a segment to seal is not current, or too few segments would remain"
            )
        if reply.status != reply.STARTED:
            if not await self.stream_exists(scope, stream):
                raise StreamNotFoundError(scope, stream)
            raise InvalidArgumentError(
                f"can't scale {scope}/{stream}: the new ranges must cover the sealed segments' ranges exactly, "
                "and no other scale may be running"
            )
        return reply.epoch

    async def scale_is_done(self, scope: str, stream: str, epoch: int) -> bool:
        request = pb.ScaleStatusRequest(streamInfo=stream_message(scope, stream), epoch=epoch)
        reply = await self.call("checkScale", request, pb.ScaleStatusResponse)
        if reply.status in (reply.INVALID_INPUT, reply.INTERNAL_ERROR):
            raise InvalidArgumentError(
                f"{scope}/{stream} was not scaled after epoch {epoch}: pass the result of `scale`"
            )
        return reply.status == reply.SUCCESS

    # --- transactions -----------------------------------------------------------------------

    async def create_transaction(self, scope: str, stream: str, lease_ms: int) -> tuple[UUID, list[SegmentRange]]:
        request = pb.CreateTxnRequest(streamInfo=stream_message(scope, stream), lease=lease_ms)
        reply = await self.stream_call("createTransaction", scope, stream, request, pb.CreateTxnResponse)
        return txn_id_of(reply.txnId), ranges_of(reply.activeSegments)

    async def commit_transaction(
        self, scope: str, stream: str, txn_id: UUID, writer_id: str = "", timestamp_ms: int | None = None
    ) -> None:
        request = txn_message(scope, stream, txn_id)
        request.writerId = writer_id
        request.timestamp = -(1 << 63) if timestamp_ms is None else timestamp_ms  # the lowest value means none
        check_txn(await self.call("commitTransaction", request, pb.TxnStatus), scope, stream, txn_id)

    async def commit_together(
        self, scope: str, stream: str, txn_ids: Sequence[UUID], writer_id: str = "", timestamp_ms: int | None = None
    ) -> None:
        """Commit all transactions atomically; raise TransactionFailedError, without any effect, if one has ended."""
        request = together.CommitTogetherRequest(
            scope=scope,
            stream=stream,
            transactions=[txn_id.bytes for txn_id in txn_ids],
            writerId=writer_id,
            timestamp=timestamp_ms,
        )
        reply = await self.call("commitTogether", request, together.CommitTogetherStatus)
        if reply.status == reply.STREAM_NOT_FOUND:
            raise StreamNotFoundError(scope, stream)
        if reply.status != reply.SUCCESS:
            raise TransactionFailedError(f"{reply.reason}: none of the {len(txn_ids)} transactions was committed")

    async def await_commit(
        self, scope: str, stream: str, txn_ids: Sequence[UUID], *, longest_pause_s: float = 1.0
    ) -> StreamCut | None:
        """Wait until readers can see all events of the committed transactions; see `find_commit`. longest_pause_s:
        between two calls, for servers that answer at once."""
        backoff = Backoff(longest_s=longest_pause_s)
        while not (commit := await self.find_commit(scope, stream, txn_ids, wait=True))[0]:
            await backoff.pause()
        return commit[1]

    async def find_commit(
        self, scope: str, stream: str, txn_ids: Sequence[UUID], *, wait: bool = False
    ) -> tuple[bool, StreamCut | None]:
        """Return whether readers can see all events of the committed transactions, and a cut behind these events if the
        transactions were committed together. Raises TransactionFailedError if one isn't committed. wait: let the server
        wait some seconds until they can."""
        request = together.FindCommitRequest(
            scope=scope, stream=stream, transactions=[txn_id.bytes for txn_id in txn_ids]
        )
        if wait:
            request.waitMs = self._wait_ms
        async with self._waits if wait else nullcontext():
            reply = await self.call("findCommit", request, together.Commit)
        if reply.status == reply.STREAM_NOT_FOUND:
            raise StreamNotFoundError(scope, stream)
        if reply.status == reply.FAILED:
            raise TransactionFailedError(reply.reason)
        return reply.status == reply.MERGED, StreamCut(scope, stream, dict(reply.cut)) if reply.cut else None

    async def begin_transactions(
        self, scope: str, stream: str, leases_ms: Sequence[int]
    ) -> tuple[list[UUID], list[SegmentRange]]:
        """Begin transactions with these leases, or only the first of them, as the server decides; return their ids, and
        the segments of each. This and the next two raise UnsupportedCallError on servers other than nadi's."""
        request = together.BeginTransactionsRequest(scope=scope, stream=stream, leasesMs=leases_ms)
        reply = await self.stream_call("beginTransactions", scope, stream, request, together.BegunTransactions)
        ranges = [SegmentRange(piece.segment, piece.low, piece.high) for piece in reply.segments]
        return [UUID(bytes=txn_id) for txn_id in reply.transactions], sorted(ranges, key=lambda r: r.low)

    async def commit_transactions(
        self, scope: str, stream: str, times: Mapping[UUID, int | None], writer_id: str
    ) -> set[UUID]:
        """Commit each transaction by itself; return those that can't be. times: the time to note with each."""
        kind = together.CommitTransactionsRequest.Transaction
        transactions = [kind(id=txn_id.bytes, timestamp=time) for txn_id, time in times.items()]
        request = together.CommitTransactionsRequest(
            scope=scope, stream=stream, transactions=transactions, writerId=writer_id
        )
        reply = await self.call("commitTransactions", request, together.CommitTransactionsStatus)
        if reply.status == reply.STREAM_NOT_FOUND:
            raise StreamNotFoundError(scope, stream)
        return {UUID(bytes=txn_id) for txn_id in reply.lost}

    async def await_transactions(self, scope: str, stream: str, txn_ids: Sequence[UUID]) -> list[str]:
        """Wait some seconds until one of the transactions has ended; return the state of each: UNFINISHED, COMMITTED,
        ABORTED, or UNKNOWN."""
        request = together.AwaitTransactionsRequest(
            scope=scope,
            stream=stream,
            transactions=[txn_id.bytes for txn_id in txn_ids],
            waitMs=self._wait_ms,
        )
        async with self._waits:
            reply = await self.stream_call("awaitTransactions", scope, stream, request, together.TransactionStates)
        return [together.TransactionStates.State.Name(state) for state in reply.states]

    async def abort_transaction(self, scope: str, stream: str, txn_id: UUID) -> None:
        request = txn_message(scope, stream, txn_id)
        check_txn(await self.call("abortTransaction", request, pb.TxnStatus), scope, stream, txn_id)

    async def ping_transaction(self, scope: str, stream: str, txn_id: UUID, lease_ms: int) -> None:
        """Extend the lease to `lease_ms` from now; raise TransactionFailedError if that is impossible."""
        request = pb.PingTxnRequest(
            streamInfo=stream_message(scope, stream), txnId=txn_id_message(txn_id), lease=lease_ms
        )
        reply = await self.call("pingTransaction", request, pb.PingTxnStatus)
        if reply.status in (reply.OK, reply.COMMITTED):
            return
        if reply.status == reply.UNKNOWN:
            raise TransactionNotFoundError(str(txn_id))
        if reply.status == reply.DISCONNECTED:
            raise UnavailableError("the controller can't extend leases now: try again")
        status = pb.PingTxnStatus.Status.Name(reply.status)
        raise TransactionFailedError(f"the lease of transaction {txn_id} can't be extended: {status}")

    async def transaction_state(self, scope: str, stream: str, txn_id: UUID) -> str:
        request = txn_message(scope, stream, txn_id)
        reply = await self.stream_call("checkTransactionState", scope, stream, request, pb.TxnState)
        if reply.state == reply.UNKNOWN:
            raise TransactionNotFoundError(str(txn_id))
        return str(pb.TxnState.State.Name(reply.state))

    # --- reader groups ----------------------------------------------------------------------

    async def create_reader_group(
        self,
        scope: str,
        group: str,
        group_id: str,
        starts: Iterable[StreamCut],
        ends: Iterable[StreamCut],
        *,
        refresh_ms: int,
        checkpoint_interval_ms: int,
        retention: int,
    ) -> str:
        """Create a group; return its id, which differs from `group_id` if a group with this name existed."""
        request = pb.ReaderGroupConfiguration(
            scope=scope,
            readerGroupName=group,
            groupRefreshTimeMillis=refresh_ms,
            automaticCheckpointIntervalMillis=checkpoint_interval_ms or -1,
            maxOutstandingCheckpointRequest=1,
            retentionType=retention,
            readerGroupId=group_id,
            startingStreamCuts=[cut_message(cut) for cut in starts],
            endingStreamCuts=[cut_message(cut) for cut in ends],
        )
        reply = await self.call("createReaderGroup", request, pb.CreateReaderGroupResponse, WORKFLOW_TIMEOUT_S)
        succeeded(reply, f"creating reader group {scope}/{group}", scope, group)
        return str(reply.config.readerGroupId)

    async def reader_group_id(self, scope: str, group: str) -> str:
        request = pb.ReaderGroupInfo(scope=scope, readerGroup=group)
        reply = await self.call("getReaderGroupConfig", request, pb.ReaderGroupConfigResponse)
        succeeded(reply, f"describing reader group {scope}/{group}", scope, group)
        return str(reply.config.readerGroupId)

    async def delete_reader_group(self, scope: str, group: str, group_id: str) -> bool:
        request = pb.ReaderGroupInfo(scope=scope, readerGroup=group, readerGroupId=group_id)
        reply = await self.call("deleteReaderGroup", request, pb.DeleteReaderGroupStatus, WORKFLOW_TIMEOUT_S)
        return succeeded(reply, f"deleting reader group {scope}/{group}", scope, group, no="RG_NOT_FOUND")

    async def update_subscriber_stream_cut(self, subscriber: str, group_id: str, cut: StreamCut) -> None:
        """Declare that `subscriber` (`scope/reader group`) no longer needs the events before the cut."""
        request = pb.SubscriberStreamCut(
            subscriber=subscriber, generation=0, readerGroupId=group_id, streamCut=cut_message(cut)
        )
        reply = await self.call("updateSubscriberStreamCut", request, pb.UpdateSubscriberStatus)
        if reply.status == reply.SUBSCRIBER_NOT_FOUND:
            raise SubscriberNotFoundError(f"{cut.scope}/{cut.stream}", subscriber)
        if reply.status == reply.STREAM_CUT_NOT_VALID:
            raise InvalidStreamCutError(
                f"{cut} can't be released: it is not a cut of its stream, or is before a cut released earlier"
            )
        succeeded(reply, f"releasing {cut} for reader group {subscriber}", cut.scope, cut.stream)

    # --- key-value tables -------------------------------------------------------------------

    async def create_key_value_table(self, scope: str, table: str, config: KeyValueTableConfiguration) -> bool:
        check_name("key-value table", table, max_chars=PREFIXED_NAME_MAX_CHARS)
        request = pb.KeyValueTableConfig(
            scope=scope,
            kvtName=table,
            partitionCount=config.partitions,
            primaryKeyLength=config.primary_key_bytes,
            secondaryKeyLength=config.secondary_key_bytes,
            rolloverSizeBytes=config.rollover_size_bytes,
        )
        reply = await self.call("createKeyValueTable", request, pb.CreateKeyValueTableStatus, WORKFLOW_TIMEOUT_S)
        action = f"creating table {scope}/{table}"
        return succeeded(reply, action, scope, table, no="TABLE_EXISTS", failure=UnavailableError)

    async def delete_key_value_table(self, scope: str, table: str) -> bool:
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply = await self.call("deleteKeyValueTable", request, pb.DeleteKVTableStatus, WORKFLOW_TIMEOUT_S)
        action = f"deleting table {scope}/{table}"
        return succeeded(reply, action, scope, table, no="TABLE_NOT_FOUND", failure=UnavailableError)

    async def list_key_value_tables(self, scope: str) -> list[str]:
        rpc, request = "listKeyValueTablesInScope", pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope=scope))
        kind = pb.KVTablesInScopeResponse
        return await self._all_pages(rpc, request, kind, lambda reply: [info.kvtName for info in reply.kvtables], scope)

    async def key_value_table_configuration(self, scope: str, table: str) -> KeyValueTableConfiguration:
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        reply = await self.call("getKeyValueTableConfiguration", request, pb.KeyValueTableConfigResponse)
        succeeded(reply, f"describing table {scope}/{table}", scope, table, failure=UnavailableError)
        config = reply.config
        return KeyValueTableConfiguration(
            config.primaryKeyLength, config.secondaryKeyLength, config.partitionCount, config.rolloverSizeBytes
        )

    async def partitions(self, scope: str, table: str) -> list[SegmentRange]:
        """Return the segments of a key-value table, in the order of their key ranges."""
        request = pb.KeyValueTableInfo(scope=scope, kvtName=table)
        try:
            reply = await self.call("getCurrentSegmentsKeyValueTable", request, pb.SegmentRanges)
        except NotFoundError as error:
            raise KeyValueTableNotFoundError(scope, table) from error
        return ranges_of(reply.segmentRanges)
