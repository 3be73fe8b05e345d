"""The RPCs of event time: what writers tell of how far they have come."""

from __future__ import annotations

from typing import Any

from nadi.controller.controller import Controller
from nadi.controller.grpc.messages import stream_name
from nadi.controller.time.marks import InvalidTimeError
from nadi.errors import InvalidStreamCutError, StreamNotFoundError, WriterNotFoundError
from nadi.wire.rpc import controller_pb2 as pb


class EventTimeService:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def note_timestamp_from_writer(self, request: Any) -> Any:
        """A missing stream is NOT_FOUND: the reply has no status for it."""
        status = pb.TimestampResponse
        name, position = stream_name(request.position.streamInfo), dict(request.position.cut)
        try:
            await self._controller.note_time(name, request.writer, request.timestamp, position)
        except InvalidTimeError:
            return status(result=status.INVALID_TIME)
        except InvalidStreamCutError:
            return status(result=status.INVALID_POSITION)
        return status(result=status.SUCCESS)

    async def remove_writer(self, request: Any) -> Any:
        status = pb.RemoveWriterResponse
        try:
            await self._controller.remove_writer(stream_name(request.stream), request.writer)
        except StreamNotFoundError:
            return status(result=status.STREAM_DOES_NOT_EXIST)
        except WriterNotFoundError:
            return status(result=status.UNKNOWN_WRITER)
        return status(result=status.SUCCESS)
