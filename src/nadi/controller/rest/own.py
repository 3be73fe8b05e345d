"""What each server answers for itself over REST, whichever has the active controller: its cluster, its health, metrics,
events and logs that it takes for any stream, and the hold on a data folder's writers for `nadi migrate`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from nadi import errors
from nadi.access.names import Act, need
from nadi.access.permissions import Permission
from nadi.controller.metrics import CONTENT_TYPES, encoder, incomplete, written
from nadi.controller.rest.endpoint import (
    STREAM,
    Parameter,
    RestCall,
    RestEndpoint,
    endpoint,
    endpoints_of,
    on_cluster,
    on_stream,
)
from nadi.controller.rest.intake import LOGS_PATH, Intake, Sent, taken
from nadi.controller.state.metadata import StreamName
from nadi.limits import MIGRATION_PAUSE_MAX_S
from nadi.model.cloud_events import BATCH, STRUCTURED
from nadi.naming import check_name
from nadi.observe.cluster import ClusterReport, DrainReport, HoldReport
from nadi.observe.health import Component, HealthStatus

CLUSTER_PATH = "/v1/cluster"
_NONE = {404: "The server is of no cluster."}


def _cluster(call: RestCall) -> Any:
    if call.api.cluster is None:
        raise errors.NotFoundError("this server has a data folder of its own and is of no cluster: see docs/cluster.md")
    return call.api.cluster


@endpoint("GET", CLUSTER_PATH, on_cluster(Permission.READ), ClusterReport, codes=_NONE)
async def show_cluster(call: RestCall) -> Any:
    """Show the cluster as this server sees it: its servers, and who has which container."""
    return _cluster(call).report()


@endpoint(
    "POST",
    f"{CLUSTER_PATH}/drain",
    on_cluster(Permission.READ_UPDATE),
    DrainReport,
    status=202,
    codes={**_NONE, 409: "No other server takes containers."},
)
async def drain(call: RestCall) -> Any:
    """Begin to hand all containers of this server over to the others, for good: until it is started again."""
    return _cluster(call).drain()


@endpoint("POST", f"{CLUSTER_PATH}/rebalance", on_cluster(Permission.READ_UPDATE), DrainReport, status=202, codes=_NONE)
async def rebalance(call: RestCall) -> Any:
    """Begin to hand over what other servers are to have, once, without waiting for a time in which no server comes
    or goes."""
    return _cluster(call).rebalance()


def _endpoints(path: str, what: str, part: Callable[[Component], Any], gives: Any) -> tuple[RestEndpoint, RestEndpoint]:
    async def handler(call: RestCall) -> Any:
        root, wanted = call.api.health(), call.request.path_params.get("id")
        component = root if wanted is None else root.find(str(wanted))
        if component is None:
            raise errors.NotFoundError(f"there is no component {wanted!r}: see /v1/health for their names")
        return part(component)

    needs = on_cluster(Permission.READ)
    return (
        RestEndpoint("GET", path, f"{what} of the whole server.", handler, needs, gives),
        RestEndpoint("GET", path + "/{id}", f"{what} of one component.", handler, needs, gives),
    )


@endpoint("GET", "/metrics", on_cluster(Permission.READ), str, media=CONTENT_TYPES)
async def metrics(call: RestCall) -> Response:
    """Metrics in Prometheus's text format, or OpenMetrics where that is preferred."""
    # in a cluster the server that has the active controller tells of streams and groups, or a sum over servers would
    # count them twice; and each server tells of itself
    accept, own = call.request.headers.get("accept", ""), call.api.own_metrics
    try:
        text = written([], accept) if call.api.stands_by else await call.controller.metrics.scrape(accept)
    except errors.NadiError:
        if own is None:
            raise
        text = incomplete(accept)  # its own are needed most while something is wrong
    text = text if own is None else await own.after(text, accept)
    return Response(text, headers={"Content-Type": encoder(accept)[1]})


NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
PROTOBUF = "application/x-protobuf"
STREAM_HEADER = "nadi-stream"
_TEXT = {"type": "string", "minLength": 1}


class WrittenBody(Struct, frozen=True):
    """What is stored now."""

    written: Annotated[int, Meta(ge=0, description="How many events the request had.")]


@asynccontextmanager
async def _taken(call: RestCall, *, grows: bool = False) -> AsyncIterator[tuple[Intake, Sent]]:
    """As `taken`. A sealed stream is a conflict, and a fault of the server's in Pravega's part of this interface."""
    async with taken(call.request, call.api.data_places, grows=grows) as sent:
        if call.api.intake is None:
            raise errors.UnavailableError("the server is recovering its data: try again, or watch /v1/health")
        try:
            yield call.api.intake, sent
        except errors.StreamSealedError as error:
            raise errors.ConflictError(str(error)) from error


@endpoint(
    "POST",
    STREAM + "/events",
    on_stream(Act.WRITE),
    WrittenBody,
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
async def write_events(call: RestCall) -> Any:
    """Write an event, or many, and answer once they are stored."""
    for name, value in (("scope", call.scope), ("stream", call.stream.stream)):
        check_name(name, value)
    async with _taken(call) as (intake, sent):
        return WrittenBody(await intake.events(call.stream, sent))


def _stream_of_logs(call: RestCall) -> StreamName:
    text = call.request.headers.get(STREAM_HEADER) or call.asked("stream") or ""
    scope, slash, stream = text.partition("/")
    if not slash:
        raise errors.InvalidArgumentError(
            "logs need a stream: send the header Nadi-Stream: scope/stream, or the query ?stream=scope/stream"
        )
    return StreamName(check_name("scope", scope), check_name("stream", stream))


@endpoint(
    "POST",
    LOGS_PATH,
    lambda call: need(*_stream_of_logs(call), Act.WRITE),
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
async def write_logs(call: RestCall) -> Any:
    """Write OpenTelemetry's log records, as OTLP over HTTP sends them; the answer says which were rejected."""
    from nadi.wire.rpc import logs_pb2  # few servers are sent any

    async with _taken(call, grows=True) as (intake, sent):
        rejected = await intake.logs(_stream_of_logs(call), sent)
    if sent.media == PROTOBUF:
        response = logs_pb2.Response()
        if rejected is not None:
            response.partial_success.rejected_log_records = rejected.records
            response.partial_success.error_message = rejected.problem
        return Response(response.SerializeToString(), media_type=PROTOBUF)
    if rejected is None:
        return {}
    return {"partialSuccess": {"rejectedLogRecords": str(rejected.records), "errorMessage": rejected.problem}}


MIGRATION_PATH = "/v1/migration"
_NO_FOLDER = {404: "The server is of a cluster, or hasn't recovered yet."}
_CHANGES = on_cluster(Permission.READ_UPDATE)


class HoldRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """limit_s: the writers go on by themselves after so many seconds."""

    limit_s: Annotated[float, Meta(gt=0, le=MIGRATION_PAUSE_MAX_S)]


class LeaveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """hold: the id of the hold. to: URL of the store that has the data. migration: the id of what moved it there."""

    hold: Annotated[str, Meta(min_length=1)]
    to: Annotated[str, Meta(min_length=1)]
    migration: Annotated[str, Meta(min_length=1)]


def _left(call: RestCall) -> Any:
    if call.api.left is None:
        raise errors.NotFoundError("this server is of a cluster, or hasn't recovered yet: see docs/migrate.md")
    return call.api.left


@endpoint(
    "POST",
    f"{MIGRATION_PATH}/hold",
    _CHANGES,
    HoldReport,
    body=HoldRequest,
    codes={**_NO_FOLDER, 409: "The writers are held already."},
)
async def hold(call: RestCall) -> Any:
    """Hold all writers and move everything to tier 2, for a migration; answers once that is done."""
    return await _left(call).hold(call.body.limit_s)


@endpoint("POST", f"{MIGRATION_PATH}/refresh", _CHANGES, status=204, codes={**_NO_FOLDER, 409: "The writers are held."})
async def refresh(call: RestCall) -> None:
    """Move what is in the log by now to tier 2, with new snapshots of the states; nobody is held."""
    await _left(call).refresh()


@endpoint("POST", f"{MIGRATION_PATH}/go-on", _CHANGES, status=204, codes=_NO_FOLDER)
async def go_on(call: RestCall) -> None:
    """Let the writers go on, if they are held."""
    await _left(call).go_on()


@endpoint(
    "POST",
    f"{MIGRATION_PATH}/leave",
    _CHANGES,
    body=LeaveRequest,
    status=204,
    codes={**_NO_FOLDER, 409: "The writers aren't held any more."},
)
async def leave(call: RestCall) -> None:
    """Note that the data is in another store now; writers are held until the server stops, and none starts again."""
    await _left(call).leave(call.body.hold, call.body.to, call.body.migration)


ENDPOINTS = (
    *endpoints_of(globals()),
    *_endpoints("/v1/health/readiness", "Readiness", attrgetter("readiness"), bool),
    *_endpoints("/v1/health/liveness", "Liveness", attrgetter("liveness"), bool),
    *_endpoints("/v1/health/details", "Details", attrgetter("details"), dict[str, Any]),
    *_endpoints("/v1/health/status", "HealthStatus", attrgetter("status"), HealthStatus),
    *_endpoints("/v1/health", "Health", lambda found: found, Component),
)
