"""The controller's RPCs as typed calls, with its statuses as nadi's errors.

Each call has a deadline; UNAVAILABLE alone is tried again within it, for then nothing was done. The
one place where a request leaves is `_send`, so that tests can answer without a socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import grpc

from nadi.client.channel import open_channel
from nadi.client.policy import RetentionPolicy, ScalingPolicy, StreamConfiguration
from nadi.client.security import Security
from nadi.errors import (
    AlreadyExistsError,
    ClosedError,
    ConflictError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidStreamCutError,
    NadiError,
    NotAuthenticatedError,
    NotEmptyError,
    NotFoundError,
    PermissionDeniedError,
    ReaderGroupNotFoundError,
    RequestTimeoutError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    SubscriberNotFoundError,
    TransactionFailedError,
    TransactionNotFoundError,
    UnavailableError,
)
from nadi.model.keyspace import key_position
from nadi.model.streamcut import StreamCut
from nadi.naming import container_key, parse_segment_name
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc.service import METHODS, path

DEFAULT_TIMEOUT_S = 30.0
WORKFLOW_TIMEOUT_S = 130.0  # the controller answers a workflow's caller within 120 s
_NAME_RULE = "letters, digits, '.' and '-', at most 255 characters"
_Reply = TypeVar("_Reply")


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A segment and the keys it takes: low ≤ position < high of the key space."""

    segment_id: int
    low: float
    high: float

    def takes_any(self, routing_keys: Iterable[str]) -> bool:
        """Whether events of one of these keys are in it, if there are any."""
        return any(self.low <= key_position(key) < self.high for key in routing_keys)


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows others, and the ids of all those."""

    segment: SegmentRange
    predecessors: tuple[int, ...]


class ControllerClient:
    """One controller, at `address` (host:port)."""

    def __init__(self, address: str, security: Security | None = None) -> None:
        self.address = address
        self.security = security or Security()
        self._channel: grpc.aio.Channel | None = None
        self._opening = asyncio.Lock()
        self._calls: dict[str, Callable[..., Any]] = {}
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    # --- scopes -----------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> bool:
        """False if it existed."""
        reply = await self._call("createScope", pb.ScopeInfo(scope=scope), pb.CreateScopeStatus)
        if reply.status == reply.INVALID_SCOPE_NAME:
            raise InvalidNameError("scope", scope, _NAME_RULE)
        return _either(reply.status, reply.SUCCESS, reply.SCOPE_EXISTS, f"creating scope {scope}")

    async def delete_scope(self, scope: str, *, recursive: bool = False) -> bool:
        """False if there was none."""
        rpc = "deleteScopeRecursive" if recursive else "deleteScope"
        reply = await self._call(rpc, pb.ScopeInfo(scope=scope), pb.DeleteScopeStatus, WORKFLOW_TIMEOUT_S)
        if reply.status == reply.SCOPE_NOT_EMPTY:
            raise NotEmptyError(f"scope {scope} still holds something: delete its streams first")
        return _either(reply.status, reply.SUCCESS, reply.SCOPE_NOT_FOUND, f"deleting scope {scope}")

    async def list_scopes(self) -> list[str]:
        names: list[str] = []
        token = ""
        while True:
            request = pb.ScopesRequest(continuationToken=pb.ContinuationToken(token=token))
            reply = await self._call("listScopes", request, pb.ScopesResponse)
            names += reply.scopes
            token, last = reply.continuationToken.token, token
            if not reply.scopes or token in ("", last):
                return names

    async def scope_exists(self, scope: str) -> bool:
        reply = await self._call("checkScopeExists", pb.ScopeInfo(scope=scope), pb.ExistsResponse)
        return reply.exists

    # --- streams ----------------------------------------------------------------------------

    async def create_stream(self, scope: str, stream: str, config: StreamConfiguration) -> bool:
        """False if it existed."""
        request = _config_message(scope, stream, config)
        reply = await self._call("createStream", request, pb.CreateStreamStatus, WORKFLOW_TIMEOUT_S)
        if reply.status == reply.SCOPE_NOT_FOUND:
            raise ScopeNotFoundError(scope)
        if reply.status == reply.INVALID_STREAM_NAME:
            raise InvalidNameError("stream", stream, _NAME_RULE)
        return _either(reply.status, reply.SUCCESS, reply.STREAM_EXISTS, f"creating {scope}/{stream}")

    async def update_stream(self, scope: str, stream: str, config: StreamConfiguration) -> None:
        request = _config_message(scope, stream, config)
        reply = await self._call("updateStream", request, pb.UpdateStreamStatus, WORKFLOW_TIMEOUT_S)
        _check_update(reply, scope, stream)

    async def truncate_stream(self, cut: StreamCut) -> None:
        request = _cut_message(cut)
        reply = await self._call("truncateStream", request, pb.UpdateStreamStatus, WORKFLOW_TIMEOUT_S)
        _check_update(reply, cut.scope, cut.stream)

    async def seal_stream(self, scope: str, stream: str) -> None:
        request = _stream_message(scope, stream)
        reply = await self._call("sealStream", request, pb.UpdateStreamStatus, WORKFLOW_TIMEOUT_S)
        _check_update(reply, scope, stream)

    async def delete_stream(self, scope: str, stream: str) -> bool:
        """False if there was none."""
        request = _stream_message(scope, stream)
        reply = await self._call("deleteStream", request, pb.DeleteStreamStatus, WORKFLOW_TIMEOUT_S)
        if reply.status == reply.STREAM_NOT_SEALED:
            raise StreamNotSealedError(scope, stream)
        return _either(reply.status, reply.SUCCESS, reply.STREAM_NOT_FOUND, f"deleting {scope}/{stream}")

    async def stream_exists(self, scope: str, stream: str) -> bool:
        request = _stream_message(scope, stream)
        return (await self._call("checkStreamExists", request, pb.ExistsResponse)).exists

    async def stream_configuration(self, scope: str, stream: str) -> StreamConfiguration:
        reply = await self._stream_call("getStreamConfiguration", scope, stream, pb.StreamConfig)
        scaling, kept = reply.scalingPolicy, reply.retentionPolicy
        return StreamConfiguration(
            ScalingPolicy(int(scaling.scaleType), scaling.targetRate, scaling.scaleFactor, scaling.minNumSegments),
            RetentionPolicy(int(kept.retentionType), kept.retentionParam, kept.retentionMax)
            if kept.retentionType
            else None,
            tuple(reply.tags.tag),
            reply.timestampAggregationTimeout,
        )

    async def list_streams(self, scope: str, tag: str | None = None) -> list[str]:
        names: list[str] = []
        token = ""
        while True:
            page = pb.ContinuationToken(token=token)
            where = pb.ScopeInfo(scope=scope)
            if tag is None:
                plain = pb.StreamsInScopeRequest(scope=where, continuationToken=page)
                reply = await self._call("listStreamsInScope", plain, pb.StreamsInScopeResponse)
            else:
                tagged = pb.StreamsInScopeWithTagRequest(scope=where, tag=tag, continuationToken=page)
                reply = await self._call("listStreamsInScopeForTag", tagged, pb.StreamsInScopeResponse)
            if reply.status == reply.SCOPE_NOT_FOUND:
                raise ScopeNotFoundError(scope)
            names += [info.stream for info in reply.streams]
            token, last = reply.continuationToken.token, token
            if not reply.streams or token in ("", last):
                return names

    # --- segments ---------------------------------------------------------------------------

    async def current_segments(self, scope: str, stream: str) -> list[SegmentRange]:
        """The segments that take events now, by key range; none if the stream is sealed."""
        with _naming_stream(scope, stream):
            reply = await self._call("getCurrentSegments", _looking(scope, stream), pb.SegmentRanges)
        return _ranges(reply.segmentRanges)

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> list[SegmentRange]:
        request = pb.GetEpochSegmentsRequest(streamInfo=_looking(scope, stream), epoch=epoch)
        with _naming_stream(scope, stream):
            return _ranges((await self._call("getEpochSegments", request, pb.SegmentRanges)).segmentRanges)

    async def head(self, scope: str, stream: str) -> StreamCut:
        """Where the stream begins, after what was truncated away."""
        return await self.cut_at(scope, stream, 0)

    async def cut_at(self, scope: str, stream: str, at_ms: int) -> StreamCut:
        """Where the stream stood at that moment, in ms since 1970; 0 is before all of them."""
        request = pb.GetSegmentsRequest(streamInfo=_looking(scope, stream), timestamp=at_ms)
        with _naming_stream(scope, stream):
            reply = await self._call("getSegments", request, pb.SegmentsAtTime)
        return StreamCut(scope, stream, {s.segmentId.segmentId: s.offset for s in reply.segments})

    async def successors(self, scope: str, stream: str, segment_id: int) -> list[Successor]:
        """What follows a sealed segment; nothing if the stream was sealed with it."""
        request = pb.SegmentId(streamInfo=_stream_message(scope, stream), segmentId=segment_id)
        with _naming_stream(scope, stream):
            reply = await self._call("getSegmentsImmediatelyFollowing", request, pb.SuccessorResponse)
        return [Successor(_range(entry.segment), tuple(entry.value)) for entry in reply.segments]

    async def is_stream_cut_valid(self, cut: StreamCut) -> bool:
        """Whether a reader of the whole stream could stand there, as far as the segments tell."""
        with _naming_stream(cut.scope, cut.stream):
            reply = await self._call("isStreamCutValid", _cut_message(cut), pb.StreamCutValidityResponse)
        return bool(reply.response)

    async def segments_between(
        self, scope: str, stream: str, start: StreamCut | None, end: StreamCut | None
    ) -> list[int]:
        """Ids of all segments with data between two cuts; those of the cuts included."""
        fields: dict[str, Any] = {
            "streamInfo": _stream_message(scope, stream),
            "from": dict(start.positions) if start else {},
            "to": dict(end.positions) if end else {},
        }
        with _naming_stream(scope, stream):
            reply = await self._call("getSegmentsBetween", pb.StreamCutRange(**fields), pb.StreamCutRangeResponse)
        return [segment.segmentId for segment in reply.segments]

    async def segment_endpoint(self, segment: str) -> tuple[str, int]:
        """Host and port of the store that has the segment."""
        base = "/".join(segment.split("/")[:2] + [container_key(segment).rpartition("/")[2]])
        scope, stream, segment_id = parse_segment_name(base)
        request = pb.SegmentId(streamInfo=_stream_message(scope, stream), segmentId=segment_id)
        reply = await self._call("getURI", request, pb.NodeUri)
        return reply.endpoint, reply.port

    async def delegation_token(self, scope: str, stream: str, *, write: bool) -> str:
        """A token to show to segment stores; empty where none is needed."""
        operation = pb.StreamInfo.AccessOperation.WRITE if write else pb.StreamInfo.AccessOperation.READ
        request = pb.StreamInfo(scope=scope, stream=stream, accessOperation=operation)
        return (await self._call("getDelegationToken", request, pb.DelegationToken)).delegationToken

    async def scale(self, scope: str, stream: str, sealed: Iterable[int], ranges: Iterable[tuple[float, float]]) -> int:
        """Start a scale; the epoch before it, to be asked for with `scale_is_done`."""
        request = pb.ScaleRequest(
            streamInfo=_stream_message(scope, stream),
            sealedSegments=sealed,
            newKeyRanges=[pb.ScaleRequest.KeyRangeEntry(start=low, end=high) for low, high in ranges],
            scaleTimestamp=int(time.time() * 1000),
        )
        with _naming_stream(scope, stream):
            reply = await self._call("scale", request, pb.ScaleResponse)
        if reply.status == reply.PRECONDITION_FAILED:
            raise ConflictError(
                f"{scope}/{stream} can't be scaled so: a segment to seal is not current, or too few remain"
            )
        if reply.status != reply.STARTED:
            raise InvalidArgumentError(
                f"{scope}/{stream} can't be scaled so: the new ranges must cover the sealed segments' exactly, "
                "and no other scale may be running"
            )
        return reply.epoch

    async def scale_is_done(self, scope: str, stream: str, epoch: int) -> bool:
        request = pb.ScaleStatusRequest(streamInfo=_stream_message(scope, stream), epoch=epoch)
        reply = await self._call("checkScale", request, pb.ScaleStatusResponse)
        if reply.status in (reply.INVALID_INPUT, reply.INTERNAL_ERROR):
            raise InvalidArgumentError(f"{scope}/{stream} has no scale after epoch {epoch}")
        return reply.status == reply.SUCCESS

    # --- transactions -----------------------------------------------------------------------

    async def create_transaction(self, scope: str, stream: str, lease_ms: int) -> tuple[UUID, list[SegmentRange]]:
        request = pb.CreateTxnRequest(streamInfo=_stream_message(scope, stream), lease=lease_ms)
        with _naming_stream(scope, stream):
            reply = await self._call("createTransaction", request, pb.CreateTxnResponse)
        high, low = reply.txnId.highBits & _MASK_64, reply.txnId.lowBits & _MASK_64
        return UUID(int=high << 64 | low), _ranges(reply.activeSegments)

    async def commit_transaction(
        self, scope: str, stream: str, txn_id: UUID, writer_id: str = "", timestamp_ms: int | None = None
    ) -> None:
        request = _txn_message(scope, stream, txn_id)
        request.writerId = writer_id
        request.timestamp = -(1 << 63) if timestamp_ms is None else timestamp_ms  # the least says: none given
        _check_txn(await self._call("commitTransaction", request, pb.TxnStatus), scope, stream, txn_id)

    async def abort_transaction(self, scope: str, stream: str, txn_id: UUID) -> None:
        request = _txn_message(scope, stream, txn_id)
        _check_txn(await self._call("abortTransaction", request, pb.TxnStatus), scope, stream, txn_id)

    async def ping_transaction(self, scope: str, stream: str, txn_id: UUID, lease_ms: int) -> None:
        """Keep it open for `lease_ms` more; TransactionFailedError if that can't be."""
        request = pb.PingTxnRequest(streamInfo=_stream_message(scope, stream), txnId=_txn_id(txn_id), lease=lease_ms)
        reply = await self._call("pingTransaction", request, pb.PingTxnStatus)
        if reply.status in (reply.OK, reply.COMMITTED):
            return
        if reply.status == reply.UNKNOWN:
            raise TransactionNotFoundError(str(txn_id))
        if reply.status == reply.DISCONNECTED:
            raise UnavailableError("the controller does not track transactions now")
        raise TransactionFailedError(
            f"transaction {txn_id} can't be kept open: {pb.PingTxnStatus.Status.Name(reply.status)}"
        )

    async def transaction_state(self, scope: str, stream: str, txn_id: UUID) -> str:
        """OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED; TransactionNotFoundError if unknown."""
        request = _txn_message(scope, stream, txn_id)
        with _naming_stream(scope, stream):
            reply = await self._call("checkTransactionState", request, pb.TxnState)
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
        """The id of the group of that name, which is another than `group_id` if it existed."""
        request = pb.ReaderGroupConfiguration(
            scope=scope,
            readerGroupName=group,
            groupRefreshTimeMillis=refresh_ms,
            automaticCheckpointIntervalMillis=checkpoint_interval_ms or -1,
            maxOutstandingCheckpointRequest=1,
            retentionType=retention,
            readerGroupId=group_id,
            startingStreamCuts=[_cut_message(cut) for cut in starts],
            endingStreamCuts=[_cut_message(cut) for cut in ends],
        )
        reply = await self._call("createReaderGroup", request, pb.CreateReaderGroupResponse, WORKFLOW_TIMEOUT_S)
        if reply.status == reply.SCOPE_NOT_FOUND:
            raise ScopeNotFoundError(scope)
        if reply.status == reply.INVALID_RG_NAME:
            raise InvalidNameError("reader group", group, _NAME_RULE)
        if reply.status != reply.SUCCESS:
            _refused(f"creating reader group {scope}/{group}")
        return str(reply.config.readerGroupId)

    async def reader_group_id(self, scope: str, group: str) -> str:
        request = pb.ReaderGroupInfo(scope=scope, readerGroup=group)
        reply = await self._call("getReaderGroupConfig", request, pb.ReaderGroupConfigResponse)
        if reply.status == reply.RG_NOT_FOUND:
            raise ReaderGroupNotFoundError(scope, group)
        if reply.status != reply.SUCCESS:
            _refused(f"looking for reader group {scope}/{group}")
        return str(reply.config.readerGroupId)

    async def delete_reader_group(self, scope: str, group: str, group_id: str) -> bool:
        """False if there was none of that id."""
        request = pb.ReaderGroupInfo(scope=scope, readerGroup=group, readerGroupId=group_id)
        reply = await self._call("deleteReaderGroup", request, pb.DeleteReaderGroupStatus, WORKFLOW_TIMEOUT_S)
        return _either(reply.status, reply.SUCCESS, reply.RG_NOT_FOUND, f"deleting reader group {scope}/{group}")

    async def update_subscriber_stream_cut(self, subscriber: str, group_id: str, cut: StreamCut) -> None:
        """Retention may truncate before the cut, as far as `scope/reader group` is concerned."""
        request = pb.SubscriberStreamCut(
            subscriber=subscriber, generation=0, readerGroupId=group_id, streamCut=_cut_message(cut)
        )
        reply = await self._call("updateSubscriberStreamCut", request, pb.UpdateSubscriberStatus)
        if reply.status == reply.STREAM_NOT_FOUND:
            raise StreamNotFoundError(cut.scope, cut.stream)
        if reply.status == reply.SUBSCRIBER_NOT_FOUND:
            raise SubscriberNotFoundError(f"{cut.scope}/{cut.stream}", subscriber)
        if reply.status == reply.STREAM_CUT_NOT_VALID:
            raise InvalidStreamCutError(f"{cut} is no boundary of its stream, or lies before what was released already")
        if reply.status != reply.SUCCESS:
            _refused(f"releasing {cut} for reader group {subscriber}")

    # --- anything else ----------------------------------------------------------------------

    async def call(self, rpc: str, request: Any, kind: type[_Reply], timeout_s: float | None = None) -> _Reply:
        """An RPC by its name, for what has a module of its own; tried again while the controller is away."""
        return await self._call(rpc, request, kind, timeout_s)

    # --- inside -----------------------------------------------------------------------------

    async def _stream_call(self, rpc: str, scope: str, stream: str, kind: type[_Reply]) -> _Reply:
        with _naming_stream(scope, stream):
            return await self._call(rpc, _stream_message(scope, stream), kind)

    async def _call(self, rpc: str, request: Any, kind: type[_Reply], timeout_s: float | None = None) -> _Reply:
        if self._closed:
            raise ClosedError("this client was closed")
        deadline = time.monotonic() + (timeout_s or DEFAULT_TIMEOUT_S)
        pause_s = 0.01
        while True:
            try:
                reply = await self._send(rpc, request, max(deadline - time.monotonic(), 0.001))
            except UnavailableError as error:
                if isinstance(error, RequestTimeoutError | ClosedError):
                    raise
                if self._closed or time.monotonic() + pause_s >= deadline:
                    raise
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 1.0)
                continue
            assert isinstance(reply, kind)
            return reply

    async def _send(self, rpc: str, request: Any, timeout_s: float) -> Any:
        async with self._opening:
            if self._channel is None:
                self._channel = await open_channel(self.address, self.security, timeout_s)
        credentials = self.security.credentials
        metadata = (("authorization", credentials.header()),) if credentials is not None else None
        call = self._calls.get(rpc)
        if call is None:
            request_kind, reply_kind = METHODS[rpc]
            call = self._channel.unary_unary(
                path(rpc),
                request_serializer=request_kind.SerializeToString,
                response_deserializer=reply_kind.FromString,
            )
            self._calls[rpc] = call
        try:
            return await call(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise _error_of(rpc, self.address, error) from None
        except grpc.aio.UsageError:  # the channel was closed meanwhile
            raise ClosedError("this client was closed") from None


_MASK_64 = (1 << 64) - 1


def _error_of(rpc: str, address: str, error: grpc.aio.AioRpcError) -> NadiError:
    code, details = error.code(), error.details()
    text = f"{rpc}: {details}"
    if code == grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(f"the controller at {address} can't be reached: {details}")
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimeoutError(f"the controller at {address} did not answer {rpc} in time")
    if code == grpc.StatusCode.NOT_FOUND:
        return NotFoundError(text)
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return InvalidArgumentError(text)
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ABORTED):
        return ConflictError(text)
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return NotAuthenticatedError(f"the controller at {address} refused {rpc}: {details}")
    if code == grpc.StatusCode.PERMISSION_DENIED:
        return PermissionDeniedError(f"the controller at {address} refused {rpc}: {details}")
    if code == grpc.StatusCode.ALREADY_EXISTS:
        return AlreadyExistsError("object", text)
    if code == grpc.StatusCode.CANCELLED:
        return ClosedError(f"{rpc} was cancelled")
    return NadiError(f"{text} ({code.name})")


class _naming_stream:
    """A bare NOT_FOUND within means: no such stream."""

    def __init__(self, scope: str, stream: str) -> None:
        self._scope, self._stream = scope, stream

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if type(error) is NotFoundError:
            raise StreamNotFoundError(self._scope, self._stream) from None


def _either(status: int, yes: int, no: int, what: str) -> bool:
    if status not in (yes, no):
        _refused(what)
    return status == yes


def _refused(what: str) -> NoReturn:
    raise NadiError(f"the controller failed at {what}: see its log")


def _check_update(reply: pb.UpdateStreamStatus, scope: str, stream: str) -> None:
    if reply.status == reply.SUCCESS:
        return
    if reply.status == reply.STREAM_NOT_FOUND:
        raise StreamNotFoundError(scope, stream)
    if reply.status == reply.SCOPE_NOT_FOUND:
        raise ScopeNotFoundError(scope)
    if reply.status == reply.STREAM_SEALED:
        raise StreamSealedError(f"stream {scope}/{stream}")
    _refused(f"changing {scope}/{stream}")


def _check_txn(reply: pb.TxnStatus, scope: str, stream: str, txn_id: UUID) -> None:
    if reply.status == reply.STREAM_NOT_FOUND:
        raise StreamNotFoundError(scope, stream)
    if reply.status == reply.TRANSACTION_NOT_FOUND:
        raise TransactionNotFoundError(str(txn_id))
    if reply.status != reply.SUCCESS:
        raise TransactionFailedError(f"transaction {txn_id} was ended otherwise: look at its status")


def _stream_message(scope: str, stream: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def _looking(scope: str, stream: str) -> pb.StreamInfo:
    """A stream to be looked at: the reply needs no delegation token."""
    return pb.StreamInfo(scope=scope, stream=stream, accessOperation=pb.StreamInfo.AccessOperation.NONE)


def _cut_message(cut: StreamCut) -> pb.StreamCut:
    return pb.StreamCut(streamInfo=_stream_message(cut.scope, cut.stream), cut=dict(cut.positions))


def _config_message(scope: str, stream: str, config: StreamConfiguration) -> pb.StreamConfig:
    scaling, kept = config.scaling, config.retention
    fields: Mapping[str, int] = {
        "scaleType": scaling.kind,
        "targetRate": scaling.target_rate,
        "scaleFactor": scaling.scale_factor,
        "minNumSegments": scaling.min_segments,
    }
    message = pb.StreamConfig(
        streamInfo=_stream_message(scope, stream),
        scalingPolicy=pb.ScalingPolicy(**fields),  # type: ignore[arg-type]
        tags=pb.Tags(tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_timeout_ms,
    )
    if kept is not None:
        message.retentionPolicy.retentionType = kept.kind  # type: ignore[assignment]
        message.retentionPolicy.retentionParam = kept.minimum
        message.retentionPolicy.retentionMax = kept.maximum
    return message


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def _txn_id(txn_id: UUID) -> pb.TxnId:
    return pb.TxnId(highBits=_signed(txn_id.int >> 64), lowBits=_signed(txn_id.int & _MASK_64))


def _txn_message(scope: str, stream: str, txn_id: UUID) -> pb.TxnRequest:
    return pb.TxnRequest(streamInfo=_stream_message(scope, stream), txnId=_txn_id(txn_id))


def _range(message: pb.SegmentRange) -> SegmentRange:
    return SegmentRange(message.segmentId.segmentId, message.minKey, message.maxKey)


def _ranges(messages: Iterable[pb.SegmentRange]) -> list[SegmentRange]:
    return sorted((_range(message) for message in messages), key=lambda r: r.low)
