"""Endpoints that use a client with their caller's credentials, and the parsing of queries, which `bodies` defines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from nadi.controller.rest.endpoint import ANYONE, NeedOf, Parameter, RestCall, RestEndpoint
from nadi.errors import InvalidArgumentError
from nadi.loopback_clients import OwnClients
from nadi.web.bodies import ABOUT

T = TypeVar("T", bound=msgspec.Struct)


@cache
def parameters_of(query: type[msgspec.Struct]) -> tuple[Parameter, ...]:
    """Return a query's fields as parameters for the OpenAPI description."""
    described = msgspec.json.schema_components((query,))[1][query.__name__]
    parameters = []
    for name, schema in described["properties"].items():
        schema = {"type": "string", **schema} if "enum" in schema else schema
        schema.pop("default", None)
        about = ABOUT.get(f"{query.__name__}.{name}") or ABOUT[name]
        parameters.append(Parameter(name, about, schema, name in described["required"]))
    return tuple(parameters)


def parse_query(call: RestCall, kind: type[T]) -> T:
    """Parse the query; InvalidArgumentError for invalid values. Unknown parameters are ignored, as others may use them,
    unless the kind forbids them."""
    query, known = call.request.query_params, {parameter.name: parameter.schema for parameter in parameters_of(kind)}
    values = {
        name: query.getlist(name) if known.get(name, {}).get("type") == "array" else query[name] for name in query
    }
    if kind.__struct_config__.forbid_unknown_fields and (unknown := values.keys() - known):
        raise InvalidArgumentError(f"unknown parameter {min(unknown)[:60]!r}: the parameters are {', '.join(known)}")
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("`$.")[2].rstrip("`")
        if name in known:
            schema = msgspec.json.encode(known[name]).decode()
            raise InvalidArgumentError(f"invalid {name} {values[name]!r:.60}: it must match {schema}") from None
        raise InvalidArgumentError(f"invalid query: {error}") from None


def authorization_of(call: RestCall) -> str:
    return call.request.headers.get("authorization", "") if call.caller is not ANYONE else ""


ClientHandler = Callable[[RestCall, Any], Awaitable[Response]]
_CODES = {400: "A name or position is invalid.", 409: "Another request is changing it."}  # raised by the client
Bound = Callable[[OwnClients], RestEndpoint]


def through_client(
    verb: str,
    path: str,
    needs: NeedOf,
    gives: Any = None,
    codes: Mapping[int, str] | None = None,
    query: type[msgspec.Struct] | None = None,
    **more: Any,
) -> Callable[[ClientHandler], Bound]:
    """Like `endpoint`, for a handler that also takes a client of the caller. The result is a function of the clients
    that returns the endpoint."""

    def decorate(handler: ClientHandler) -> Bound:
        def bound(clients: OwnClients) -> RestEndpoint:
            async def handle(call: RestCall) -> Response:
                async with clients.of(authorization_of(call)) as manager:
                    return await handler(call, manager)

            parameters = () if query is None else parameters_of(query)
            summary, descriptions = handler.__doc__ or "", {**_CODES, **(codes or {})}
            return RestEndpoint(verb, path, summary, handle, needs, gives, codes=descriptions, query=parameters, **more)

        bound.is_bound = True  # type: ignore[attr-defined]
        return bound

    return decorate


def bound_of(module: Mapping[str, Any]) -> tuple[Bound, ...]:
    """Return a module's endpoints made by `through_client`."""
    return tuple(value for value in module.values() if getattr(value, "is_bound", False))
