"""Scopes over REST."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response

from nadi.access.permissions import scope_resource
from nadi.controller.rest.bodies import ScopeProperty
from nadi.controller.rest.endpoint import Call
from nadi.controller.rest.replies import no_content, reply, stream_array
from nadi.errors import ScopeNotFoundError
from nadi.naming import check_name


async def list_scopes(call: Call) -> Response:
    async def pages() -> AsyncIterator[list[ScopeProperty]]:
        token = ""
        while True:
            names, token = await call.controller.list_scopes(token)
            if not names:
                return
            yield [ScopeProperty(name) for name in names if call.shows(scope_resource(name))]

    return await stream_array(pages(), call.page, b'{"scopes":[', b"]}")


async def create_scope(call: Call) -> Response:
    name = call.body.scopeName
    check_name("scope", name)
    await call.controller.create_scope(name)
    return reply(ScopeProperty(name), 201)


async def show_scope(call: Call) -> Response:
    if not await call.controller.scope_exists(call.scope):
        raise ScopeNotFoundError(call.scope)
    return reply(ScopeProperty(call.scope))


async def delete_scope(call: Call) -> Response:
    await call.controller.delete_scope(call.scope)
    return no_content()
