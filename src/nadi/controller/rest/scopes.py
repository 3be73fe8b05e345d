"""Scopes over REST."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from nadi.access.permissions import Permission, scope_resource
from nadi.controller.rest.bodies import CreateScope, ScopeProperty, ScopesList
from nadi.controller.rest.endpoint import SCOPE, Call, endpoint, on_cluster, on_scope
from nadi.controller.rest.replies import no_content, reply, stream_list
from nadi.errors import ScopeNotFoundError
from nadi.naming import check_name


@endpoint("GET", "/v1/scopes", on_cluster(Permission.READ), ScopesList)
async def list_scopes(call: Call) -> Response:
    """List the scopes."""

    def shown(names: Sequence[str]) -> list[ScopeProperty]:
        return [ScopeProperty(name) for name in names if call.shows(scope_resource(name))]

    return await stream_list("scopes", call.controller.list_scopes, shown, call.page)


@endpoint(
    "POST",
    "/v1/scopes",
    on_cluster(Permission.READ_UPDATE),
    ScopeProperty,
    status=201,
    body=CreateScope,
    codes={409: "The scope exists already."},
)
async def create_scope(call: Call) -> Response:
    """Create a scope."""
    name = call.body.scopeName
    check_name("scope", name)
    await call.controller.create_scope(name)
    return reply(ScopeProperty(name), 201)


@endpoint("GET", SCOPE, on_scope(Permission.READ), ScopeProperty)
async def show_scope(call: Call) -> Response:
    """Show a scope."""
    if not await call.controller.scope_exists(call.scope):
        raise ScopeNotFoundError(call.scope)
    return reply(ScopeProperty(call.scope))


@endpoint(
    "DELETE",
    SCOPE,
    on_cluster(Permission.READ_UPDATE),
    status=204,
    codes={412: "The scope still holds something."},
)
async def delete_scope(call: Call) -> Response:
    """Delete an empty scope."""
    await call.controller.delete_scope(call.scope)
    return no_content()
