"""The RPCs of reader groups and of their subscriptions to streams."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from nadi.controller.controller import Controller
from nadi.controller.grpc.messages import group_config_of, group_message, group_name, stream_name, uuid_of
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


class ReaderGroupService:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def create_reader_group(self, request: Any) -> Any:
        """A group that exists is told with its configuration: the client compares it with its own."""
        status = pb.CreateReaderGroupResponse
        name, config = group_name(request), await group_config_of(request)
        given = uuid_of(request.readerGroupId)
        try:
            group = await self._controller.create_reader_group(name, config, str(given if given.int else uuid4()))
        except InvalidNameError:
            return status(status=status.INVALID_RG_NAME)
        except ScopeNotFoundError:
            return status(status=status.SCOPE_NOT_FOUND)
        return status(status=status.SUCCESS, config=await group_message(name, group))

    async def get_reader_group_config(self, request: Any) -> Any:
        status = pb.ReaderGroupConfigResponse
        name = GroupName(request.scope, request.readerGroup)
        try:
            group = await self._controller.reader_group(name)
        except ReaderGroupNotFoundError:
            return status(status=status.RG_NOT_FOUND)
        return status(status=status.SUCCESS, config=await group_message(name, group))

    async def update_reader_group(self, request: Any) -> Any:
        status = pb.UpdateReaderGroupResponse
        name, config = group_name(request), await group_config_of(request)
        group_id = str(uuid_of(request.readerGroupId))
        try:
            generation = await self._controller.update_reader_group(name, config, group_id, request.generation)
        except ReaderGroupNotFoundError:
            return status(status=status.RG_NOT_FOUND)
        except GenerationMismatchError:
            return status(status=status.INVALID_CONFIG)
        return status(status=status.SUCCESS, generation=generation)

    async def delete_reader_group(self, request: Any) -> Any:
        status = pb.DeleteReaderGroupStatus
        name = GroupName(request.scope, request.readerGroup)
        try:
            await self._controller.delete_reader_group(name, str(uuid_of(request.readerGroupId)))
        except ReaderGroupNotFoundError:
            return status(status=status.RG_NOT_FOUND)
        return status(status=status.SUCCESS)

    # --- subscribers -----------------------------------------------------------------------------

    async def list_subscribers(self, request: Any) -> Any:
        status = pb.SubscribersResponse
        try:
            found = await self._controller.subscribers(stream_name(request))
        except StreamNotFoundError:
            return status(status=status.STREAM_NOT_FOUND)
        return status(status=status.SUCCESS, subscribers=found)

    async def update_subscriber_stream_cut(self, request: Any) -> Any:
        status = pb.UpdateSubscriberStatus
        name, cut = stream_name(request.streamCut.streamInfo), dict(request.streamCut.cut)
        group_id = str(uuid_of(request.readerGroupId))
        try:
            await self._controller.publish_cut(name, request.subscriber, group_id, request.generation, cut)
        except StreamNotFoundError:
            return status(status=status.STREAM_NOT_FOUND)
        except SubscriberNotFoundError:
            return status(status=status.SUBSCRIBER_NOT_FOUND)
        except InvalidStreamCutError:
            return status(status=status.STREAM_CUT_NOT_VALID)
        except GenerationMismatchError:
            return status(status=status.GENERATION_MISMATCH)
        return status(status=status.SUCCESS)
