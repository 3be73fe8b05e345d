"""The RPCs of event time: how far writers report to have got."""

from __future__ import annotations

from nadi.controller.grpc.messages import stream_name
from nadi.controller.grpc.outcomes import Rpcs, outcomes
from nadi.controller.time.marks import InvalidTimeError
from nadi.errors import InvalidStreamCutError, StreamNotFoundError, WriterNotFoundError
from nadi.wire.rpc import controller_pb2 as pb


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
