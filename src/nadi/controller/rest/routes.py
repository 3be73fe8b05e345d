"""Every endpoint: what is served, and what is described."""

from __future__ import annotations

from typing import Any

from nadi.access.names import Act
from nadi.access.permissions import Permission
from nadi.controller.rest import bodies, health, readergroups, scaling, scopes, streams
from nadi.controller.rest.endpoint import (
    Endpoint,
    Handler,
    Parameter,
    on_cluster,
    on_reader_group,
    on_scope,
    on_stream,
)

_READ, _UPDATE = Permission.READ, Permission.READ_UPDATE
_SCOPE = "/v1/scopes/{scopeName}"
_STREAM = _SCOPE + "/streams/{streamName}"
_GROUP = _SCOPE + "/readergroups/{readerGroupName}"
_TIME = {"type": "integer", "minimum": 0, "maximum": scaling.TIME_MAX_MS}
_NO_SCOPE = {404: "There is no such scope."}
_NO_STREAM = {404: "There is no such stream."}
_NO_GROUP = {404: "There is no such reader group."}

_SCOPES = (
    Endpoint("GET", "/v1/scopes", "List the scopes.", scopes.list_scopes, on_cluster(_READ), bodies.ScopesList),
    Endpoint(
        "POST",
        "/v1/scopes",
        "Create a scope.",
        scopes.create_scope,
        on_cluster(_UPDATE),
        bodies.ScopeProperty,
        201,
        bodies.CreateScope,
        {409: "The scope exists already."},
    ),
    Endpoint("GET", _SCOPE, "Show a scope.", scopes.show_scope, on_scope(_READ), bodies.ScopeProperty, codes=_NO_SCOPE),
    Endpoint(
        "DELETE",
        _SCOPE,
        "Delete an empty scope.",
        scopes.delete_scope,
        on_cluster(_UPDATE),
        status=204,
        codes={**_NO_SCOPE, 412: "The scope still holds something."},
    ),
)

_STREAMS = (
    Endpoint(
        "GET",
        _SCOPE + "/streams",
        "List a scope's streams: those of users, the internal ones, or those with a tag.",
        streams.list_streams,
        on_scope(_READ),
        bodies.StreamsList,
        codes={**_NO_SCOPE, 400: "The filter is not one of these."},
        query=(
            Parameter(
                "filter_type", "Which streams.", {"type": "string", "enum": [streams.SHOW_INTERNAL, streams.BY_TAG]}
            ),
            Parameter("filter_value", "The tag.", {"type": "string"}),
        ),
    ),
    Endpoint(
        "POST",
        _SCOPE + "/streams",
        "Create a stream.",
        streams.create_stream,
        on_scope(_UPDATE),
        bodies.StreamProperty,
        201,
        bodies.CreateStream,
        {**_NO_SCOPE, 409: "The stream exists already."},
    ),
    Endpoint(
        "GET",
        _STREAM,
        "Show a stream's configuration.",
        streams.show_stream,
        on_stream(Act.LOOK),
        bodies.StreamProperty,
        codes=_NO_STREAM,
    ),
    Endpoint(
        "PUT",
        _STREAM,
        "Replace a stream's whole configuration.",
        streams.update_stream,
        on_stream(Act.CHANGE),
        bodies.StreamProperty,
        body=bodies.UpdateStream,
        codes={**_NO_STREAM, 409: "Another change of the stream goes on.", 500: "The stream is sealed."},
    ),
    Endpoint(
        "DELETE",
        _STREAM,
        "Delete a sealed stream.",
        streams.delete_stream,
        on_stream(Act.END),
        status=204,
        codes={**_NO_STREAM, 412: "The stream is not sealed."},
    ),
    Endpoint(
        "PUT",
        _STREAM + "/state",
        "Seal a stream.",
        streams.change_state,
        on_stream(Act.END),
        bodies.StreamStateBody,
        body=bodies.StreamStateBody,
        codes=_NO_STREAM,
    ),
    Endpoint(
        "GET",
        _STREAM + "/scaling-events",
        "List a stream's epochs that began in a time, after the one in force at its start.",
        scaling.scaling_events,
        on_stream(Act.LOOK),
        list[bodies.ScaleMetadata],
        codes={**_NO_STREAM, 400: "The time is missing, or no time."},
        query=(
            Parameter("from", "Milliseconds since 1970.", _TIME, required=True),
            Parameter("to", "Milliseconds since 1970, at or after `from`.", _TIME, required=True),
        ),
    ),
)

_READER_GROUPS = (
    Endpoint(
        "GET",
        _SCOPE + "/readergroups",
        "List a scope's reader groups.",
        readergroups.list_reader_groups,
        on_scope(_READ),
        bodies.ReaderGroupsList,
        codes=_NO_SCOPE,
    ),
    Endpoint(
        "GET",
        _GROUP,
        "Show a reader group.",
        readergroups.show_reader_group,
        on_reader_group(_READ),
        bodies.ReaderGroupProperty,
        codes=_NO_GROUP,
    ),
    Endpoint(
        "DELETE",
        _GROUP,
        "Delete a reader group and its state.",
        readergroups.delete_reader_group,
        on_scope(_UPDATE),
        status=204,
        codes=_NO_GROUP,
    ),
)


def _health(path: str, what: str, handler: Handler, gives: Any) -> tuple[Endpoint, Endpoint]:
    needs = on_cluster(_READ)
    return (
        Endpoint("GET", path, f"{what} of the whole server.", handler, needs, gives),
        Endpoint(
            "GET",
            path + "/{id}",
            f"{what} of one component.",
            handler,
            needs,
            gives,
            codes={404: "There is no such component."},
        ),
    )


ENDPOINTS: tuple[Endpoint, ...] = (
    *_SCOPES,
    *_STREAMS,
    *_READER_GROUPS,
    *_health("/v1/health/readiness", "Readiness", health.readiness, bool),
    *_health("/v1/health/liveness", "Liveness", health.liveness, bool),
    *_health("/v1/health/details", "Details", health.details, dict[str, Any]),
    *_health("/v1/health/status", "Status", health.status, health.Status),
    *_health("/v1/health", "Health", health.health, health.Component),
)
