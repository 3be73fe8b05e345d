"""The RPCs of reader groups and of their subscriptions to streams."""

from __future__ import annotations

from uuid import UUID

from nadi.controller.grpc.messages import group_config_of, group_message, group_name, stream_name, uuid_of
from nadi.controller.grpc.outcomes import Fields, Rpcs, outcomes
from nadi.controller.state.metadata import GroupName
from nadi.errors import (
    GenerationMismatchError,
    InvalidNameError,
    InvalidStreamCutError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
)
from nadi.wire.rpc import controller_pb2 as pb


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
