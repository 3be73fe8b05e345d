"""Endpoints that ask by the client of their caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response

from nadi.controller.rest.endpoint import EVERYBODY, Asked, Call, Endpoint
from nadi.own_clients import OwnClients


def authorization_of(call: Call) -> str:
    return call.request.headers.get("authorization", "") if call.caller is not EVERYBODY else ""


Asks = Callable[[Call, Any], Awaitable[Response]]
_CODES = {400: "A name, or a place, can't be one.", 409: "It is being changed by others."}  # that the client may raise
Bound = Callable[[OwnClients], Endpoint]


def through_client(
    verb: str, path: str, needs: Asked, gives: Any = None, codes: Mapping[int, str] | None = None, **more: Any
) -> Callable[[Asks], Bound]:
    """Like `endpoint`, for a handler that takes the caller's client, too: what it makes is an endpoint once it is given
    the clients."""

    def made(handler: Asks) -> Bound:
        def bound(clients: OwnClients) -> Endpoint:
            async def handle(call: Call) -> Response:
                async with clients.of(authorization_of(call)) as manager:
                    return await handler(call, manager)

            return Endpoint(verb, path, handler.__doc__ or "", handle, needs, gives, codes=told, **more)

        told = {**_CODES, **(codes or {})}
        return bound

    return made
