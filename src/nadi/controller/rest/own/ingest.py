"""Events over REST: each server takes them for any stream, as a client that stands beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from nadi.access.names import Act, Need, need
from nadi.controller.rest.endpoint import STREAM, Call, Parameter, endpoint, on_stream
from nadi.controller.rest.intake import LOGS_PATH, Intake, taken
from nadi.controller.rest.replies import reply
from nadi.controller.state.metadata import StreamName
from nadi.errors import ConflictError, InvalidArgumentError, StreamSealedError, UnavailableError
from nadi.model.cloud_events import BATCH, STRUCTURED
from nadi.naming import check_name

NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
PROTOBUF = "application/x-protobuf"
STREAM_HEADER = "nadi-stream"
_TEXT = {"type": "string", "minLength": 1}


class Written(Struct, frozen=True):
    """What is stored now."""

    written: Annotated[int, Meta(ge=0, description="How many events the request had.")]


def _intake(call: Call) -> Intake:
    if call.api.intake is None:
        raise UnavailableError("the server is recovering its data: try again, or watch /v1/health")
    return call.api.intake


@contextmanager
def _sealed_is_a_conflict() -> Iterator[None]:
    """It is a fault of the server's in Pravega's part of this interface alone."""
    try:
        yield
    except StreamSealedError as error:
        raise ConflictError(str(error)) from error


@endpoint(
    "POST",
    STREAM + "/events",
    on_stream(Act.WRITE),
    Written,
    takes=("application/octet-stream", "application/json", NDJSON, ARROW, STRUCTURED, BATCH),
    codes={
        409: "The stream is sealed, or the Idempotency-Key was used for other data.",
        413: "The body is too large, as it is sent or once it is unpacked.",
        415: "The body is packed by something else than gzip.",
    },
    query=(
        Parameter("key", "The routing key of all events.", {"type": "string"}),
        Parameter("key-field", "The field of each JSON line that is its routing key.", _TEXT),
    ),
)
async def write_events(call: Call) -> Response:
    """Write an event, or many, and answer once they are stored."""
    for name, value in (("scope", call.scope), ("stream", call.stream.stream)):
        check_name(name, value)
    async with taken(call.request, call.api.data_places) as sent:
        with _sealed_is_a_conflict():
            return reply(Written(await _intake(call).events(call.stream, sent)))


def _stream_of_logs(call: Call) -> StreamName:
    text = call.request.headers.get(STREAM_HEADER) or call.request.query_params.get("stream", "")
    scope, slash, stream = text.partition("/")
    if not slash:
        raise InvalidArgumentError(
            "logs need a stream: send the header Nadi-Stream: scope/stream, or the query ?stream=scope/stream"
        )
    return StreamName(check_name("scope", scope), check_name("stream", stream))


def _needs_of_logs(call: Call) -> Need:
    return need(*_stream_of_logs(call), Act.WRITE)


@endpoint(
    "POST",
    LOGS_PATH,
    _needs_of_logs,
    dict[str, dict[str, str]],
    takes=("application/json", PROTOBUF),
    codes={
        404: "There is no such stream.",
        409: "The stream is sealed.",
        413: "The body is too large, as it is sent or once it is unpacked.",
        415: "The body is neither JSON nor protobuf, or is packed by something else than gzip.",
    },
    query=(Parameter("stream", "Where they go, as scope/stream; or the header Nadi-Stream.", _TEXT),),
)
async def write_logs(call: Call) -> Response:
    """Write OpenTelemetry's log records, as OTLP over HTTP sends them; the answer says which were rejected."""
    from nadi.wire.rpc import logs_pb2  # few servers are sent any

    async with taken(call.request, call.api.data_places, grows=True) as sent:
        with _sealed_is_a_conflict():
            rejected = await _intake(call).logs(_stream_of_logs(call), sent)
    if sent.media == PROTOBUF:
        response = logs_pb2.Response()
        if rejected is not None:
            response.partial_success.rejected_log_records = rejected.records
            response.partial_success.error_message = rejected.problem
        return Response(response.SerializeToString(), media_type=PROTOBUF)
    if rejected is None:
        return reply({})
    return reply({"partialSuccess": {"rejectedLogRecords": str(rejected.records), "errorMessage": rejected.problem}})


ENDPOINTS = (write_events, write_logs)
