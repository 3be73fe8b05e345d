"""The controller's gRPC face: Pravega's ControllerService.

One method for each RPC turns messages into calls of `Controller` and its results and errors into what
both official clients understand. Expected outcomes go into the reply's status. Anything else becomes a
gRPC code on which the clients agree: absent things NOT_FOUND, bad input INVALID_ARGUMENT (neither is
retried), temporary trouble UNAVAILABLE, a full disk RESOURCE_EXHAUSTED (both are). No exception leaves a
handler, for UNKNOWN makes the Python client stall for a minute; in-band FAILURE does too, so it is used
only where nothing else is understood.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from nadi.access.places import Shares
from nadi.access.turns import Turns
from nadi.controller.access import Answer, ControllerAccess
from nadi.controller.controller import Controller
from nadi.controller.grpc.groups import ReaderGroupService
from nadi.controller.grpc.messages import (
    config_message,
    config_of,
    range_message,
    ranges_message,
    segment_id_message,
    stream_info,
    stream_name,
    with_all,
)
from nadi.controller.grpc.requests import parsed
from nadi.controller.grpc.room import Room
from nadi.controller.grpc.tables import KeyValueTableService
from nadi.controller.grpc.time import EventTimeService
from nadi.controller.grpc.transactions import TransactionService
from nadi.controller.state.history import PreconditionError
from nadi.controller.state.metadata import StreamName
from nadi.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidArgumentError,
    InvalidNameError,
    NadiError,
    NotAuthenticatedError,
    NotEmptyError,
    NotFoundError,
    PermissionDeniedError,
    RequestTimeoutError,
    ScopeNotFoundError,
    StorageFullError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    UnavailableError,
)
from nadi.limits import (
    RPC_AT_ONCE,
    RPC_CONNECTIONS_MAX,
    RPC_IDLE_S,
    RPC_KEEPALIVE_S,
    RPC_KEEPALIVE_TIMEOUT_S,
    RPC_MESSAGE_HURRIED_S,
    RPC_MESSAGE_MAX_BYTES,
    RPC_MESSAGE_TIMEOUT_S,
    RPC_METADATA_MAX_BYTES,
    RPC_RECEIVING_BYTES,
    RPC_REFUSED_AT_ONCE,
    RPC_SENT_AHEAD_BYTES,
    RPC_SMALL_BYTES,
    RPC_STARTS_A_TURN,
    RPC_STREAMS_MAX,
    RPC_WORK_BYTES,
    RPC_WORK_TIMES,
    STREAM_MAX_SEGMENTS,
    TLS_HANDSHAKE_S,
)
from nadi.wire.rpc import controller_pb2 as pb
from nadi.wire.rpc.service import METHODS, SERVICE

log = logging.getLogger(__name__)

# Java pings an idle channel every 6 minutes; too strict a server would close it. gRPC has no limit of all its memory
# that Python could set, so each part has one: connections, calls on each, and bytes of each call.
SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", round(RPC_KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(RPC_KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.max_connection_idle_ms", round(RPC_IDLE_S * 1000)),
    ("grpc.server_handshake_timeout_ms", round(TLS_HANDSHAKE_S * 1000)),
    ("grpc.max_allowed_incoming_connections", RPC_CONNECTIONS_MAX),
    ("grpc.max_concurrent_streams", RPC_STREAMS_MAX),
    ("grpc.max_receive_message_length", RPC_MESSAGE_MAX_BYTES),
    ("grpc.max_metadata_size", RPC_METADATA_MAX_BYTES),
    ("grpc.absolute_max_metadata_size", RPC_METADATA_MAX_BYTES),
    ("grpc.http2.bdp_probe", 0),  # else it lets each call send megabytes ahead, before anybody reads them
    ("grpc.http2.lookahead_bytes", RPC_SENT_AHEAD_BYTES),
    ("grpc.so_reuseport", 0),
]


_CROWDED = "this address has as many calls under way as the controller takes of one: try again when some have ended"


def rpc_server(**arguments: Any) -> grpc.aio.Server:
    """A gRPC server with our limits, for `add_controller`; `arguments` are those of grpc.aio.server."""
    return grpc.aio.server(
        options=SERVER_OPTIONS, maximum_concurrent_rpcs=RPC_AT_ONCE + RPC_REFUSED_AT_ONCE, **arguments
    )


def add_controller(server: grpc.aio.Server, controller: Controller, access: ControllerAccess | None = None) -> None:
    """Let `server` answer every RPC of the service for `controller`; with `access`, only who may ask it."""
    kinds = (Service, TransactionService, ReaderGroupService, KeyValueTableService, EventTimeService)
    services = [kind(controller) for kind in kinds]
    turns, rooms = Turns(RPC_STARTS_A_TURN), _Rooms()
    handlers = {
        rpc: grpc.stream_unary_rpc_method_handler(  # for the server to say how long the one request may take to come
            _guarded(rpc, request, _method(rpc, services), access, turns, rooms),
            response_serializer=response.SerializeToString,
        )
        for rpc, (request, response) in METHODS.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _snake(rpc: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower()


def _method(rpc: str, services: Sequence[object]) -> Answer:
    """The method that answers an RPC, from the one service that has it."""
    (found,) = [getattr(service, _snake(rpc)) for service in services if hasattr(service, _snake(rpc))]
    method: Answer = found
    return method


class _Rooms:
    """For the calls of one server, and their requests: while they come, and while they are worked on."""

    def __init__(self) -> None:
        self.calls = Shares(RPC_AT_ONCE)
        self.receiving, self.work = Room(RPC_RECEIVING_BYTES), Room(RPC_WORK_BYTES)


def _guarded(
    rpc: str, kind: type[Message], method: Answer, access: ControllerAccess | None, turns: Turns, rooms: _Rooms
) -> Callable[[AsyncIterator[bytes], Any], Awaitable[Any]]:
    """A handler out of which no exception comes, and into which nobody comes whom `access` refuses.

    It parses the request itself: gRPC answers UNKNOWN to bad ones.
    """

    async def handle(requests: AsyncIterator[bytes], context: Any) -> Any:
        peer = context.peer()
        address = peer.rpartition(":")[0]
        if not rooms.calls.enter(address):
            return await context.abort(grpc.StatusCode.UNAVAILABLE, _CROWDED)
        coming, worked_on = rooms.receiving.place(address), rooms.work.place(address)
        try:
            await coming.take(RPC_MESSAGE_MAX_BYTES)
            raw = await _received(requests, rooms.receiving)
            if len(raw) > RPC_SMALL_BYTES:
                await worked_on.take(RPC_WORK_TIMES * len(raw))
            coming.leave()
            await turns.mine(peer)
            request = await parsed(kind, raw, lambda: turns.mine(peer))
            del raw
            if access is not None:
                return await access.answer(rpc, method, request, context)
            return await method(request)
        except Exception as error:
            code = code_of(error)
            if code is grpc.StatusCode.INTERNAL:
                log.exception("%s failed", rpc)
            text = str(error) if isinstance(error, NadiError) else f"{rpc} failed inside the controller"
        finally:
            coming.leave()
            worked_on.leave()
            rooms.calls.leave(address)
        return await context.abort(code, text)

    return handle


async def _received(requests: AsyncIterator[bytes], room: Room) -> bytes:
    """The one request of a call; UnavailableError where it does not come in time, less where others wait for `room`."""
    loop = asyncio.get_running_loop()
    look: asyncio.TimerHandle

    def hurry() -> None:
        nonlocal look
        if room.is_waited_for:
            limit.reschedule(loop.time())
        else:
            look = loop.call_later(RPC_MESSAGE_HURRIED_S, hurry)

    look = loop.call_later(RPC_MESSAGE_HURRIED_S, hurry)
    try:
        async with asyncio.timeout(RPC_MESSAGE_TIMEOUT_S) as limit:
            raw = await anext(requests, None)
    except TimeoutError as error:
        raise UnavailableError("the request did not come in time: try again") from error
    finally:
        look.cancel()
    if raw is None:
        raise InvalidArgumentError("there is no request")
    return raw


def code_of(error: Exception) -> grpc.StatusCode:
    """The gRPC code for an error that has no status of its own in the reply."""
    codes: list[tuple[type[Exception], grpc.StatusCode]] = [
        (NotFoundError, grpc.StatusCode.NOT_FOUND),
        (InvalidArgumentError, grpc.StatusCode.INVALID_ARGUMENT),
        (RequestTimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
        (StorageFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (UnavailableError, grpc.StatusCode.UNAVAILABLE),
        (ConflictError, grpc.StatusCode.FAILED_PRECONDITION),
        (NotAuthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
        (PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    ]
    for kind, code in codes:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INTERNAL


class Service:
    """The RPCs of scopes, streams and segments. As in its neighbours, each method is named as in the protocol but
    in snake case."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    # --- discovery -------------------------------------------------------------------------------

    async def get_controller_server_list(self, request: Any) -> Any:
        host, port = self._controller.rpc_endpoint
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port)])

    async def get_uri(self, request: Any) -> Any:
        """Where a segment lives; asked for segments that the controller doesn't know as well."""
        host, port = self._controller.store_endpoint
        return pb.NodeUri(endpoint=host, port=port)

    async def get_delegation_token(self, request: Any) -> Any:
        return pb.DelegationToken(delegationToken="")

    async def get_controller_to_bucket_mapping(self, request: Any) -> Any:
        """Which controller sees to which streams' retention and watermarks: this one to all of them, one bucket."""
        host, port = self._controller.rpc_endpoint
        return pb.ControllerToBucketMappingResponse(mapping={f"{host}:{port}": pb.BucketIds(id=[0])})

    # --- scopes ----------------------------------------------------------------------------------

    async def create_scope(self, request: Any) -> Any:
        status = pb.CreateScopeStatus
        try:
            await self._controller.create_scope(request.scope)
        except InvalidNameError:
            return status(status=status.INVALID_SCOPE_NAME)
        except AlreadyExistsError:
            return status(status=status.SCOPE_EXISTS)
        return status(status=status.SUCCESS)

    async def delete_scope(self, request: Any) -> Any:
        status = pb.DeleteScopeStatus
        try:
            await self._controller.delete_scope(request.scope)
        except ScopeNotFoundError:
            return status(status=status.SCOPE_NOT_FOUND)
        except NotEmptyError:
            return status(status=status.SCOPE_NOT_EMPTY)
        return status(status=status.SUCCESS)

    async def delete_scope_recursive(self, request: Any) -> Any:
        try:
            await self._controller.delete_scope(request.scope, recursive=True)
        except ScopeNotFoundError:
            pass  # gone is what was asked for
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)

    async def check_scope_exists(self, request: Any) -> Any:
        return pb.ExistsResponse(exists=await self._controller.scope_exists(request.scope))

    async def list_scopes(self, request: Any) -> Any:
        names, token = await self._controller.list_scopes(request.continuationToken.token)
        return pb.ScopesResponse(scopes=names, continuationToken=pb.ContinuationToken(token=token))

    async def list_streams_in_scope(self, request: Any) -> Any:
        return await self._list_streams(request, None)

    async def list_streams_in_scope_for_tag(self, request: Any) -> Any:
        return await self._list_streams(request, request.tag)

    async def _list_streams(self, request: Any, tag: str | None) -> Any:
        scope, token = request.scope.scope, request.continuationToken.token
        status = pb.StreamsInScopeResponse.SUCCESS
        names: list[str] = []
        try:
            names, token = await self._controller.list_streams(scope, token, tag=tag)
        except ScopeNotFoundError:
            status = pb.StreamsInScopeResponse.SCOPE_NOT_FOUND
        return pb.StreamsInScopeResponse(
            streams=[stream_info(StreamName(scope, name)) for name in names],
            continuationToken=pb.ContinuationToken(token=token),
            status=status,
        )

    # --- streams ---------------------------------------------------------------------------------

    async def create_stream(self, request: Any) -> Any:
        status = pb.CreateStreamStatus
        try:
            await self._controller.create_stream(stream_name(request.streamInfo), config_of(request))
        except InvalidNameError:
            return status(status=status.INVALID_STREAM_NAME)
        except ScopeNotFoundError:
            return status(status=status.SCOPE_NOT_FOUND)
        except AlreadyExistsError:
            return status(status=status.STREAM_EXISTS)
        return status(status=status.SUCCESS)

    async def _updated(self, call: Awaitable[None]) -> Any:
        status = pb.UpdateStreamStatus
        try:
            await call
        except ScopeNotFoundError:
            return status(status=status.SCOPE_NOT_FOUND)
        except StreamNotFoundError:
            return status(status=status.STREAM_NOT_FOUND)
        except StreamSealedError:
            return status(status=status.STREAM_SEALED)
        return status(status=status.SUCCESS)

    async def update_stream(self, request: Any) -> Any:
        config = config_of(request)
        return await self._updated(self._controller.update_stream(stream_name(request.streamInfo), config))

    async def truncate_stream(self, request: Any) -> Any:
        call = self._controller.truncate_stream(stream_name(request.streamInfo), dict(request.cut))
        return await self._updated(call)

    async def seal_stream(self, request: Any) -> Any:
        return await self._updated(self._controller.seal_stream(stream_name(request)))

    async def delete_stream(self, request: Any) -> Any:
        status = pb.DeleteStreamStatus
        try:
            await self._controller.delete_stream(stream_name(request))
        except (ScopeNotFoundError, StreamNotFoundError):
            return status(status=status.STREAM_NOT_FOUND)
        except StreamNotSealedError:
            return status(status=status.STREAM_NOT_SEALED)
        return status(status=status.SUCCESS)

    async def get_stream_configuration(self, request: Any) -> Any:
        name = stream_name(request)
        return config_message(name, (await self._controller.stream(name)).config)

    async def check_stream_exists(self, request: Any) -> Any:
        return pb.ExistsResponse(exists=await self._controller.stream_exists(stream_name(request)))

    # --- segments --------------------------------------------------------------------------------

    async def get_current_segments(self, request: Any) -> Any:
        name = stream_name(request)
        return await ranges_message(name, await self._controller.current_segments(name))

    async def get_epoch_segments(self, request: Any) -> Any:
        name = stream_name(request.streamInfo)
        return await ranges_message(name, await self._controller.epoch_segments(name, request.epoch))

    async def get_segments(self, request: Any) -> Any:
        """The cut of a moment. Without one, as all of Pravega's clients ask, it is the head of the stream."""
        name = stream_name(request.streamInfo)
        cut: Mapping[int, int]
        if request.timestamp > 0:
            cut = await self._controller.cut_at(name, request.timestamp)
        else:
            cut = await self._controller.head(name)
        location = pb.SegmentsAtTime.SegmentLocation
        parts = (
            location(segmentId=segment_id_message(name, segment), offset=offset) for segment, offset in cut.items()
        )
        return await with_all(pb.SegmentsAtTime(), "segments", parts)

    async def get_segments_immediatly_following(self, request: Any) -> Any:
        """The protocol's first spelling, which old clients still use."""
        return await self.get_segments_immediately_following(request)

    async def get_segments_immediately_following(self, request: Any) -> Any:
        name = stream_name(request.streamInfo)
        found = await self._controller.successors(name, request.segmentId)
        entry = pb.SuccessorResponse.SegmentEntry
        return pb.SuccessorResponse(
            segments=[entry(segment=range_message(name, new), value=before) for new, before in found]
        )

    async def get_segments_between(self, request: Any) -> Any:
        name = stream_name(request.streamInfo)
        start, end = dict(getattr(request, "from")), dict(request.to)
        found = await self._controller.segments_between(name, start, end)
        parts = (segment_id_message(name, segment) for segment in found)
        return await with_all(pb.StreamCutRangeResponse(), "segments", parts)

    async def is_segment_valid(self, request: Any) -> Any:
        valid = await self._controller.is_segment_valid(stream_name(request.streamInfo), request.segmentId)
        return pb.SegmentValidityResponse(response=valid)

    async def is_stream_cut_valid(self, request: Any) -> Any:
        valid = await self._controller.is_cut_valid(stream_name(request.streamInfo), dict(request.cut))
        return pb.StreamCutValidityResponse(response=valid)

    # --- scaling ---------------------------------------------------------------------------------

    async def scale(self, request: Any) -> Any:
        name = stream_name(request.streamInfo)
        if max(len(request.newKeyRanges), len(request.sealedSegments)) > STREAM_MAX_SEGMENTS:
            log.info("scale of %s refused: a stream has at most %d segments", name, STREAM_MAX_SEGMENTS)
            return pb.ScaleResponse(status=pb.ScaleResponse.FAILURE)
        ranges = [(entry.start, entry.end) for entry in request.newKeyRanges]
        sealed = list(request.sealedSegments)
        try:
            work = await self._controller.scale(name, sealed, ranges, request.scaleTimestamp)
        except PreconditionError:
            return pb.ScaleResponse(status=pb.ScaleResponse.PRECONDITION_FAILED)
        except (ConflictError, InvalidArgumentError, StreamNotFoundError) as error:
            log.info("scale of %s refused: %s", name, error)
            return pb.ScaleResponse(status=pb.ScaleResponse.FAILURE)
        return pb.ScaleResponse(
            status=pb.ScaleResponse.STARTED,
            segments=[range_message(name, segment) for segment in work.change.added],
            epoch=work.change.epoch - 1,
        )

    async def check_scale(self, request: Any) -> Any:
        status = pb.ScaleStatusResponse
        try:
            done = await self._controller.is_scaled(stream_name(request.streamInfo), request.epoch)
        except NotFoundError:
            return status(status=status.INVALID_INPUT)
        return status(status=status.SUCCESS if done else status.IN_PROGRESS)
