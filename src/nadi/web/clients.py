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

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
}
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
    """Parse the query; InvalidArgumentError for invalid values."""
    query, known = call.request.query_params, {parameter.name: parameter.schema for parameter in parameters_of(kind)}
    values = {
        name: query.getlist(name) if known.get(name, {}).get("type") == "array" else query[name] for name in query
    }
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("`$.")[2].rstrip("`")
        if name in known:
            raise InvalidArgumentError(f"{name} must be {_allowed(known[name])}, not {values[name]!r:.60}") from None
        raise InvalidArgumentError(f"invalid query: {error}") from None


def _allowed(schema: Mapping[str, Any]) -> str:
    """Describe the values of a schema in words.

    >>> _allowed({"enum": ["first", "last"], "default": "first"}), _allowed({"type": "integer", "minimum": 1})
    ('first or last', 'an integer, at least 1')
    """
    if "enum" in schema:
        *others, last = map(str, schema["enum"])
        return f"{', '.join(others)} or {last}" if others else last
    if "anyOf" in schema:
        return " or ".join(_allowed(each) for each in schema["anyOf"] if each.get("type") != "null")
    kind = str(schema.get("type", "valid"))
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    return ", ".join([f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}", *bounds])


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
