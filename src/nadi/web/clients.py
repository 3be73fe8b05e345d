"""Endpoints that ask by the client of their caller, and what is asked: queries, which `bodies` describes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from nadi.controller.rest.endpoint import EVERYBODY, Asked, Parameter, RestCall, RestEndpoint
from nadi.errors import InvalidArgumentError
from nadi.loopback_clients import OwnClients
from nadi.web.bodies import ABOUT

T = TypeVar("T", bound=msgspec.Struct)


@cache
def parameters_of(query: type[msgspec.Struct]) -> tuple[Parameter, ...]:
    """The fields of a query as the description of the interface has them."""
    described = msgspec.json.schema_components((query,))[1][query.__name__]
    found = []
    for name, schema in described["properties"].items():
        schema = {"type": "string", **schema} if "enum" in schema else schema
        schema.pop("default", None)
        about = ABOUT.get(f"{query.__name__}.{name}") or ABOUT[name]
        found.append(Parameter(name, about, schema, name in described["required"]))
    return tuple(found)


def asked(call: RestCall, kind: type[T]) -> T:
    """The query; InvalidArgumentError says what can't be in it. Parameters that it doesn't know may have an effect
    elsewhere, unless the kind forbids them."""
    query, known = call.request.query_params, {one.name: one.schema for one in parameters_of(kind)}
    given = {name: query.getlist(name) if known.get(name, {}).get("type") == "array" else query[name] for name in query}
    if kind.__struct_config__.forbid_unknown_fields and (unknown := given.keys() - known):
        raise InvalidArgumentError(f"there is no parameter {min(unknown)[:60]!r}, only {', '.join(known)}")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("`$.")[2].rstrip("`")
        if name in known:
            wanted = msgspec.json.encode(known[name]).decode()
            raise InvalidArgumentError(f"{name} is {given[name]!r:.60}, and must be {wanted}") from None
        raise InvalidArgumentError(f"the query can't be taken: {error}") from None


def authorization_of(call: RestCall) -> str:
    return call.request.headers.get("authorization", "") if call.caller is not EVERYBODY else ""


Asks = Callable[[RestCall, Any], Awaitable[Response]]
_CODES = {400: "A name, or a place, can't be one.", 409: "It is being changed by others."}  # that the client may raise
Bound = Callable[[OwnClients], RestEndpoint]


def through_client(
    verb: str,
    path: str,
    needs: Asked,
    gives: Any = None,
    codes: Mapping[int, str] | None = None,
    query: type[msgspec.Struct] | None = None,
    **more: Any,
) -> Callable[[Asks], Bound]:
    """Like `endpoint`, for a handler that takes the caller's client, too: what it makes is an endpoint once it is given
    the clients."""

    def made(handler: Asks) -> Bound:
        def bound(clients: OwnClients) -> RestEndpoint:
            async def handle(call: RestCall) -> Response:
                async with clients.of(authorization_of(call)) as manager:
                    return await handler(call, manager)

            parameters = () if query is None else parameters_of(query)
            summary, told = handler.__doc__ or "", {**_CODES, **(codes or {})}
            return RestEndpoint(verb, path, summary, handle, needs, gives, codes=told, query=parameters, **more)

        bound.is_bound = True  # type: ignore[attr-defined]
        return bound

    return made


def bound_of(module: Mapping[str, Any]) -> tuple[Bound, ...]:
    """All that `through_client` made in a module."""
    return tuple(value for value in module.values() if getattr(value, "is_bound", False))
