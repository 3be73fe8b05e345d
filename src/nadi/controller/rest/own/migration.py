"""Holding the writers of a data folder over REST, for `nadi migrate`; a server of a cluster has nothing here."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from nadi.access.permissions import Permission
from nadi.controller.rest.endpoint import Call, Left, endpoint, on_cluster
from nadi.controller.rest.replies import reply
from nadi.errors import NotFoundError
from nadi.limits import MIGRATION_PAUSE_MAX_S
from nadi.observe.migration import HoldReport

MIGRATION_PATH = "/v1/migration"
_NONE = {404: "The server is of a cluster, or hasn't recovered yet."}
_CHANGES = on_cluster(Permission.READ_UPDATE)


class HoldRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """limit_s: the writers go on by themselves after so many seconds."""

    limit_s: Annotated[float, Meta(gt=0, le=MIGRATION_PAUSE_MAX_S)]


class LeaveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """hold: the id of the hold. to: URL of the store that has the data. migration: the id of what moved it there."""

    hold: Annotated[str, Meta(min_length=1)]
    to: Annotated[str, Meta(min_length=1)]
    migration: Annotated[str, Meta(min_length=1)]


def _left(call: Call) -> Left:
    if call.api.left is None:
        raise NotFoundError("this server is of a cluster, or hasn't recovered yet: see docs/migrate.md")
    return call.api.left


@endpoint(
    "POST",
    f"{MIGRATION_PATH}/hold",
    _CHANGES,
    HoldReport,
    body=HoldRequest,
    codes={**_NONE, 409: "The writers are held already."},
)
async def hold(call: Call) -> Response:
    """Hold all writers and move everything to tier 2, for a migration; answers once that is done."""
    return reply(await _left(call).hold(call.body.limit_s))


@endpoint("POST", f"{MIGRATION_PATH}/refresh", _CHANGES, status=204, codes={**_NONE, 409: "The writers are held."})
async def refresh(call: Call) -> Response:
    """Move what is in the log by now to tier 2, with new snapshots of the states; nobody is held."""
    await _left(call).refresh()
    return Response(status_code=204)


@endpoint("POST", f"{MIGRATION_PATH}/go-on", _CHANGES, status=204, codes=_NONE)
async def go_on(call: Call) -> Response:
    """Let the writers go on, if they are held."""
    await _left(call).go_on()
    return Response(status_code=204)


@endpoint(
    "POST",
    f"{MIGRATION_PATH}/leave",
    _CHANGES,
    body=LeaveRequest,
    status=204,
    codes={**_NONE, 409: "The writers aren't held any more."},
)
async def leave(call: Call) -> Response:
    """Note that the data is in another store now; writers are held until the server stops, and none starts again."""
    await _left(call).leave(call.body.hold, call.body.to, call.body.migration)
    return Response(status_code=204)


ENDPOINTS = (refresh, hold, go_on, leave)
