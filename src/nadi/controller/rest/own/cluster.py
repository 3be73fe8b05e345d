"""The cluster over REST: what a server sees of it, and what an operator asks of that server.

Each server answers for itself, whichever has the active controller; outside a cluster there is nothing here.
"""

from __future__ import annotations

from starlette.responses import Response

from nadi.access.permissions import Permission
from nadi.controller.rest.endpoint import Call, Operated, endpoint, on_cluster
from nadi.controller.rest.replies import reply
from nadi.errors import NotFoundError
from nadi.observe.cluster import ClusterReport, DrainReport

CLUSTER_PATH = "/v1/cluster"
_NONE = {404: "The server is of no cluster."}


def _cluster(call: Call) -> Operated:
    if call.api.cluster is None:
        raise NotFoundError("this server has a data folder of its own and is of no cluster: see docs/cluster.md")
    return call.api.cluster


@endpoint("GET", CLUSTER_PATH, on_cluster(Permission.READ), ClusterReport, codes=_NONE)
async def show_cluster(call: Call) -> Response:
    """Show the cluster as this server sees it: its servers, and who has which container."""
    return reply(_cluster(call).report())


@endpoint(
    "POST",
    f"{CLUSTER_PATH}/drain",
    on_cluster(Permission.READ_UPDATE),
    DrainReport,
    status=202,
    codes={**_NONE, 409: "No other server takes containers."},
)
async def drain(call: Call) -> Response:
    """Begin to hand all containers of this server over to the others, for good: until it is started again."""
    return reply(_cluster(call).drain(), 202)


@endpoint("POST", f"{CLUSTER_PATH}/rebalance", on_cluster(Permission.READ_UPDATE), DrainReport, status=202, codes=_NONE)
async def rebalance(call: Call) -> Response:
    """Begin to hand over what other servers are to have, once, without waiting for a time in which no server comes
    or goes."""
    return reply(_cluster(call).rebalance(), 202)


ENDPOINTS = (show_cluster, drain, rebalance)
