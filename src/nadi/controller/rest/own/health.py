"""Health of the server, or of one of its components; and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from starlette.responses import Response

from nadi.access.permissions import Permission
from nadi.controller.metrics.scrape import CONTENT_TYPES, incomplete, nothing
from nadi.controller.rest.endpoint import Call, Endpoint, endpoint, on_cluster
from nadi.controller.rest.replies import reply
from nadi.errors import NadiError, NotFoundError
from nadi.observe.health import Component, Status


def _component(call: Call) -> Component:
    root = call.api.health()
    wanted = call.request.path_params.get("id")
    found = root if wanted is None else root.find(str(wanted))
    if found is None:
        raise NotFoundError(f"there is no component {wanted!r}: see /v1/health for their names")
    return found


def _endpoints(path: str, what: str, part: Callable[[Component], Any], gives: Any) -> tuple[Endpoint, Endpoint]:
    async def handler(call: Call) -> Response:
        return reply(part(_component(call)))

    needs = on_cluster(Permission.READ)
    return (
        Endpoint("GET", path, f"{what} of the whole server.", handler, needs, gives),
        Endpoint("GET", path + "/{id}", f"{what} of one component.", handler, needs, gives),
    )


@endpoint("GET", "/metrics", on_cluster(Permission.READ), str, media=CONTENT_TYPES)
async def metrics(call: Call) -> Response:
    """Metrics in Prometheus's text format, or OpenMetrics where that is preferred."""
    # in a cluster the server that has the active controller tells of streams and groups, or a sum over servers would
    # count them twice; and each server tells of itself
    accept, own = call.request.headers.get("accept", ""), call.api.own_metrics
    try:
        text, content_type = nothing(accept) if call.api.stands_by else await call.controller.metrics.scrape(accept)
    except NadiError:
        if own is None:
            raise
        text, content_type = incomplete(accept)  # its own are needed most while something is wrong
    return Response(text if own is None else await own.after(text, accept), headers={"Content-Type": content_type})


ENDPOINTS = (
    metrics,
    *_endpoints("/v1/health/readiness", "Readiness", attrgetter("readiness"), bool),
    *_endpoints("/v1/health/liveness", "Liveness", attrgetter("liveness"), bool),
    *_endpoints("/v1/health/details", "Details", attrgetter("details"), dict[str, Any]),
    *_endpoints("/v1/health/status", "Status", attrgetter("status"), Status),
    *_endpoints("/v1/health", "Health", lambda found: found, Component),
)
