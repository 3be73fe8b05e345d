"""REST endpoints that each server answers itself, with or without the active controller: cluster, health, metrics,
ingestion of events and logs for any stream, and write freezes for `nadi migrate`.
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
from nadi.controller.metrics import CONTENT_TYPES, encoded, encoder, incomplete
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
from nadi.controller.rest.intake import LOGS_PATH, DataRequest, Intake, received
from nadi.controller.state.metadata import StreamName
from nadi.limits import MIGRATION_PAUSE_MAX_S
from nadi.model.cloud_events import BATCH, STRUCTURED
from nadi.naming import check_name
from nadi.observe.cluster import ClusterReport, DrainReport, WriteFreezeReport
from nadi.observe.health import Component, HealthStatus

CLUSTER_PATH = "/v1/cluster"
_NONE = {404: "The server does not belong to a cluster."}


def _cluster(call: RestCall) -> Any:
    if call.api.cluster is None:
        raise errors.NotFoundError("this server does not belong to a cluster: see docs/cluster.md to set one up")
    return call.api.cluster


@endpoint("GET", CLUSTER_PATH, on_cluster(Permission.READ), ClusterReport, codes=_NONE)
async def show_cluster(call: RestCall) -> Any:
    """Show the cluster as this server sees it: its servers, and the owner of each container."""
    return _cluster(call).report()


@endpoint(
    "POST",
    f"{CLUSTER_PATH}/drain",
    on_cluster(Permission.READ_UPDATE),
    DrainReport,
    status=202,
    codes={**_NONE, 409: "No other server accepts containers."},
    action="cluster.drain",
)
async def drain(call: RestCall) -> Any:
    """Start handing over all containers of this server to the others, until it is restarted."""
    return _cluster(call).drain()


@endpoint(
    "POST",
    f"{CLUSTER_PATH}/rebalance",
    on_cluster(Permission.READ_UPDATE),
    DrainReport,
    status=202,
    codes=_NONE,
    action="cluster.rebalance",
)
async def rebalance(call: RestCall) -> Any:
    """Start handing over the containers that belong on other servers, once, without waiting for a stable membership."""
    return _cluster(call).rebalance()


def _endpoints(
    path: str, label: str, part: Callable[[Component], Any], gives: Any
) -> tuple[RestEndpoint, RestEndpoint]:
    async def handler(call: RestCall) -> Any:
        root, component_id = call.api.health(), call.request.path_params.get("id")
        component = root if component_id is None else root.find(str(component_id))
        if component is None:
            raise errors.NotFoundError(f"unknown component {component_id!r}: see /v1/health for the names")
        return part(component)

    needs = on_cluster(Permission.READ)
    return (
        RestEndpoint("GET", path, f"{label} of the whole server.", handler, needs, gives),
        RestEndpoint("GET", path + "/{id}", f"{label} of one component.", handler, needs, gives),
    )


@endpoint("GET", "/metrics", on_cluster(Permission.READ), str, media=CONTENT_TYPES)
async def metrics(call: RestCall) -> Response:
    """Metrics in Prometheus's text format, or in OpenMetrics if preferred."""
    # In a cluster only the server with the active controller reports streams and groups, otherwise a sum over servers
    # would count them twice; each server reports itself.
    accept, own = call.request.headers.get("accept", ""), call.api.own_metrics
    try:
        text = encoded([], accept) if call.api.stands_by else await call.controller.metrics.scrape(accept)
    except errors.NadiError:
        if own is None:
            raise
        text = incomplete(accept)  # the server's own metrics matter most while something is wrong
    text = text if own is None else await own.after(text, accept)
    return Response(text, headers={"Content-Type": encoder(accept)[1]})


NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
PROTOBUF = "application/x-protobuf"
STREAM_HEADER = "nadi-stream"
_TEXT = {"type": "string", "minLength": 1}


class WrittenBody(Struct, frozen=True):
    """The result of a write."""

    written: Annotated[int, Meta(ge=0, description="Number of events stored.")]


@asynccontextmanager
async def _received(call: RestCall, *, grows: bool = False) -> AsyncIterator[tuple[Intake, DataRequest]]:
    """Receive data as `received` does. A sealed stream is a conflict here, but 500 at Pravega's own paths."""
    async with received(call.request, call.api.data_places, grows=grows) as sent:
        if call.api.intake is None:
            raise errors.UnavailableError("the server is still recovering: try again, or watch /v1/health")
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
        409: "The stream is sealed, or the Idempotency-Key was used for different data.",
        413: "The body is too large, before or after decompression.",
        415: "The body is compressed with something other than gzip.",
    },
    query=(
        Parameter("key", "The routing key of all events.", {"type": "string"}),
        Parameter("key-field", "The field of each JSON line that contains its routing key.", _TEXT),
    ),
)
async def write_events(call: RestCall) -> Any:
    """Write one event or many; the response is sent once they are stored."""
    for name, value in (("scope", call.scope), ("stream", call.stream.stream)):
        check_name(name, value)
    async with _received(call) as (intake, sent):
        return WrittenBody(await intake.events(call.stream, sent))


def _stream_of_logs(call: RestCall) -> StreamName:
    text = call.request.headers.get(STREAM_HEADER) or call.query("stream") or ""
    scope, slash, stream = text.partition("/")
    if not slash:
        raise errors.InvalidArgumentError(
            "logs need a target stream: send the header Nadi-Stream: scope/stream, or the query ?stream=scope/stream"
        )
    return StreamName(check_name("scope", scope), check_name("stream", stream))


@endpoint(
    "POST",
    LOGS_PATH,
    lambda call: need(*_stream_of_logs(call), Act.WRITE),
    dict[str, dict[str, str]],
    takes=("application/json", PROTOBUF),
    codes={
        404: "The stream does not exist.",
        409: "The stream is sealed.",
        413: "The body is too large, before or after decompression.",
        415: "The body is neither JSON nor protobuf, or is compressed with something other than gzip.",
    },
    query=(Parameter("stream", "The target as scope/stream; an alternative to the header Nadi-Stream.", _TEXT),),
)
async def write_logs(call: RestCall) -> Any:
    """Write OpenTelemetry log records sent by OTLP over HTTP; the response reports rejected records."""
    from nadi.wire.rpc import logs_pb2  # few servers receive logs

    async with _received(call, grows=True) as (intake, sent):
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
_NO_FOLDER = {404: "The server belongs to a cluster, or is still recovering."}
_CHANGES = on_cluster(Permission.READ_UPDATE)


class WriteFreezeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request to freeze writes. limit_s: writes resume by themselves after this many seconds."""

    limit_s: Annotated[float, Meta(gt=0, le=MIGRATION_PAUSE_MAX_S)]


class LeaveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request to hand data over. hold: the freeze's id. to: URL of the new store. migration: id of the migration."""

    hold: Annotated[str, Meta(min_length=1)]
    to: Annotated[str, Meta(min_length=1)]
    migration: Annotated[str, Meta(min_length=1)]


def _migration(call: RestCall) -> Any:
    if call.api.migration is None:
        raise errors.NotFoundError("this server belongs to a cluster or is still recovering: see docs/migrate.md")
    return call.api.migration


@endpoint(
    "POST",
    f"{MIGRATION_PATH}/hold",
    _CHANGES,
    WriteFreezeReport,
    body=WriteFreezeRequest,
    codes={**_NO_FOLDER, 409: "Writes are already frozen."},
    action="migration.hold",
)
async def hold(call: RestCall) -> Any:
    """Freeze all writes and move all data to tier 2 for a migration; responds once that is done."""
    return await _migration(call).hold(call.body.limit_s)


@endpoint("POST", f"{MIGRATION_PATH}/refresh", _CHANGES, status=204, codes={**_NO_FOLDER, 409: "Writes are frozen."})
async def refresh(call: RestCall) -> None:
    """Move the current log contents to tier 2, with new snapshots, without freezing writes."""
    await _migration(call).refresh()


@endpoint("POST", f"{MIGRATION_PATH}/go-on", _CHANGES, status=204, codes=_NO_FOLDER)
async def resume_writes(call: RestCall) -> None:
    """Resume writes if they are frozen."""
    await _migration(call).go_on()


@endpoint(
    "POST",
    f"{MIGRATION_PATH}/leave",
    _CHANGES,
    body=LeaveRequest,
    status=204,
    codes={**_NO_FOLDER, 409: "Writes are no longer frozen."},
    action="migration.leave",
)
async def leave(call: RestCall) -> None:
    """Record that the data has moved to another store; writes stay frozen and the server can't be restarted here."""
    await _migration(call).leave(call.body.hold, call.body.to, call.body.migration)


ENDPOINTS = (
    *endpoints_of(globals()),
    *_endpoints("/v1/health/readiness", "Readiness", attrgetter("readiness"), bool),
    *_endpoints("/v1/health/liveness", "Liveness", attrgetter("liveness"), bool),
    *_endpoints("/v1/health/details", "Details", attrgetter("details"), dict[str, Any]),
    *_endpoints("/v1/health/status", "Status", attrgetter("status"), HealthStatus),
    *_endpoints("/v1/health", "Health", lambda component: component, Component),
)
