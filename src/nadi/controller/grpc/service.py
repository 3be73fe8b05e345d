"""The RPCs of scopes, streams and segments, of Pravega's ControllerService.

One method for each RPC turns messages into calls of `Controller` and its results into what both official clients
understand. Expected outcomes go into the reply's status; other errors are raised, and become gRPC codes (`server`).
In-band FAILURE makes the Python client stall for a minute, so it is used only where nothing else is understood.
"""

from __future__ import annotations

import logging

from nadi.controller.grpc.calls import Rpcs, outcomes
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
from nadi.controller.state.history import PreconditionError
from nadi.controller.state.metadata import StreamName
from nadi.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidArgumentError,
    InvalidNameError,
    NotEmptyError,
    NotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
)
from nadi.limits import STREAM_MAX_SEGMENTS
from nadi.naming import segment_name
from nadi.wire.moments import ARRIVAL
from nadi.wire.rpc import controller_pb2 as pb

log = logging.getLogger(__name__)

_updated = outcomes(
    pb.UpdateStreamStatus,
    SCOPE_NOT_FOUND=ScopeNotFoundError,
    STREAM_NOT_FOUND=StreamNotFoundError,
    STREAM_SEALED=StreamSealedError,
)


class Service(Rpcs):
    # --- discovery -------------------------------------------------------------------------------

    async def get_controller_server_list(self, request: pb.ServerRequest) -> pb.ServerResponse:
        host, port = self._controller.rpc_endpoint
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port)], restPort=self._controller.rest_port)

    async def get_uri(self, request: pb.SegmentId) -> pb.NodeUri:
        """Where a segment lives; clients also ask about segments that the controller doesn't know."""
        stream = request.streamInfo
        host, port = self._controller.endpoint_of(segment_name(stream.scope, stream.stream, request.segmentId))
        return pb.NodeUri(endpoint=host, port=port)

    async def get_delegation_token(self, request: pb.StreamInfo) -> pb.DelegationToken:
        return pb.DelegationToken(delegationToken="")

    async def get_controller_to_bucket_mapping(
        self, request: pb.ControllerToBucketMappingRequest
    ) -> pb.ControllerToBucketMappingResponse:
        """Which controller handles which streams' retention and watermarks: this one handles all, as one bucket."""
        host, port = self._controller.rpc_endpoint
        return pb.ControllerToBucketMappingResponse(mapping={f"{host}:{port}": pb.BucketIds(id=[0])})

    # --- scopes ----------------------------------------------------------------------------------

    @outcomes(pb.CreateScopeStatus, INVALID_SCOPE_NAME=InvalidNameError, SCOPE_EXISTS=AlreadyExistsError)
    async def create_scope(self, request: pb.ScopeInfo) -> None:
        await self._controller.create_scope(request.scope)

    @outcomes(pb.DeleteScopeStatus, SCOPE_NOT_FOUND=ScopeNotFoundError, SCOPE_NOT_EMPTY=NotEmptyError)
    async def delete_scope(self, request: pb.ScopeInfo) -> None:
        await self._controller.delete_scope(request.scope)

    @outcomes(pb.DeleteScopeStatus, SUCCESS=ScopeNotFoundError)  # gone is what was asked for
    async def delete_scope_recursive(self, request: pb.ScopeInfo) -> None:
        await self._controller.delete_scope(request.scope, recursive=True)

    async def check_scope_exists(self, request: pb.ScopeInfo) -> pb.ExistsResponse:
        return pb.ExistsResponse(exists=await self._controller.scope_exists(request.scope))

    async def list_scopes(self, request: pb.ScopesRequest) -> pb.ScopesResponse:
        names, token = await self._controller.list_scopes(request.continuationToken.token)
        return pb.ScopesResponse(scopes=names, continuationToken=pb.ContinuationToken(token=token))

    async def list_streams_in_scope(self, request: pb.StreamsInScopeRequest) -> pb.StreamsInScopeResponse:
        return await self._list_streams(request, None)

    async def list_streams_in_scope_for_tag(
        self, request: pb.StreamsInScopeWithTagRequest
    ) -> pb.StreamsInScopeResponse:
        return await self._list_streams(request, request.tag)

    async def _list_streams(
        self, request: pb.StreamsInScopeRequest | pb.StreamsInScopeWithTagRequest, tag: str | None
    ) -> pb.StreamsInScopeResponse:
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

    @outcomes(
        pb.CreateStreamStatus,
        INVALID_STREAM_NAME=InvalidNameError,
        SCOPE_NOT_FOUND=ScopeNotFoundError,
        STREAM_EXISTS=AlreadyExistsError,
    )
    async def create_stream(self, request: pb.StreamConfig) -> None:
        await self._controller.create_stream(stream_name(request.streamInfo), config_of(request))

    @_updated
    async def update_stream(self, request: pb.StreamConfig) -> None:
        await self._controller.update_stream(stream_name(request.streamInfo), config_of(request))

    @_updated
    async def truncate_stream(self, request: pb.StreamCut) -> None:
        await self._controller.truncate_stream(stream_name(request.streamInfo), dict(request.cut))

    @_updated
    async def seal_stream(self, request: pb.StreamInfo) -> None:
        await self._controller.seal_stream(stream_name(request))

    @outcomes(
        pb.DeleteStreamStatus,
        STREAM_NOT_FOUND=(ScopeNotFoundError, StreamNotFoundError),
        STREAM_NOT_SEALED=StreamNotSealedError,
    )
    async def delete_stream(self, request: pb.StreamInfo) -> None:
        await self._controller.delete_stream(stream_name(request))

    async def get_stream_configuration(self, request: pb.StreamInfo) -> pb.StreamConfig:
        name = stream_name(request)
        return config_message(name, (await self._controller.stream(name)).config)

    async def check_stream_exists(self, request: pb.StreamInfo) -> pb.ExistsResponse:
        return pb.ExistsResponse(exists=await self._controller.stream_exists(stream_name(request)))

    # --- segments --------------------------------------------------------------------------------

    async def get_current_segments(self, request: pb.StreamInfo) -> pb.SegmentRanges:
        name = stream_name(request)
        return await ranges_message(name, await self._controller.current_segments(name))

    async def get_epoch_segments(self, request: pb.GetEpochSegmentsRequest) -> pb.SegmentRanges:
        name = stream_name(request.streamInfo)
        return await ranges_message(name, await self._controller.epoch_segments(name, request.epoch))

    async def get_segments(self, request: pb.GetSegmentsRequest) -> pb.SegmentsAtTime:
        """The cut at a point in time; without one, as all of Pravega's clients ask, the head of the stream."""
        name = stream_name(request.streamInfo)
        at, clock, controller = request.timestamp, request.clock, self._controller
        is_head = clock == ARRIVAL and at <= 0
        cut = await (controller.head(name) if is_head else controller.cut_at(name, at, clock))
        location = pb.SegmentsAtTime.SegmentLocation
        parts = (
            location(segmentId=segment_id_message(name, segment), offset=offset) for segment, offset in cut.items()
        )
        return await with_all(pb.SegmentsAtTime(), "segments", parts)

    async def get_segments_immediatly_following(self, request: pb.SegmentId) -> pb.SuccessorResponse:
        """The protocol's first spelling, which old clients still use."""
        return await self.get_segments_immediately_following(request)

    async def get_segments_immediately_following(self, request: pb.SegmentId) -> pb.SuccessorResponse:
        name = stream_name(request.streamInfo)
        found = await self._controller.successors(name, request.segmentId)
        entry = pb.SuccessorResponse.SegmentEntry
        return pb.SuccessorResponse(
            segments=[entry(segment=range_message(name, new), value=before) for new, before in found]
        )

    async def get_segments_between(self, request: pb.StreamCutRange) -> pb.StreamCutRangeResponse:
        name = stream_name(request.streamInfo)
        start, end = dict(getattr(request, "from")), dict(request.to)
        found = await self._controller.segments_between(name, start, end)
        parts = (segment_id_message(name, segment) for segment in found)
        return await with_all(pb.StreamCutRangeResponse(), "segments", parts)

    async def is_segment_valid(self, request: pb.SegmentId) -> pb.SegmentValidityResponse:
        valid = await self._controller.is_segment_valid(stream_name(request.streamInfo), request.segmentId)
        return pb.SegmentValidityResponse(response=valid)

    async def is_stream_cut_valid(self, request: pb.StreamCut) -> pb.StreamCutValidityResponse:
        valid = await self._controller.is_cut_valid(stream_name(request.streamInfo), dict(request.cut))
        return pb.StreamCutValidityResponse(response=valid)

    # --- scaling ---------------------------------------------------------------------------------

    async def scale(self, request: pb.ScaleRequest) -> pb.ScaleResponse:
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

    async def check_scale(self, request: pb.ScaleStatusRequest) -> pb.ScaleStatusResponse:
        status = pb.ScaleStatusResponse
        try:
            done = await self._controller.is_scaled(stream_name(request.streamInfo), request.epoch)
        except NotFoundError:
            return status(status=status.INVALID_INPUT)
        return status(status=status.SUCCESS if done else status.IN_PROGRESS)
