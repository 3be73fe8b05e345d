"""The application that serves the endpoints, and what else has a path: `/ping`, the description, and the pages of a
`Site`. The OpenAPI 3.1 description is built from the endpoints and the bodies' types.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from nadi.controller.rest import own, resources
from nadi.controller.rest.bodies import Error
from nadi.controller.rest.endpoint import Api, Call, Endpoint, read_body
from nadi.controller.rest.replies import JSON, encode, failure, refused

_REF = "#/components/schemas/{name}"
_PART = re.compile(r"\{(\w+)\}")
_THINGS = {
    "scopeName": "scope",
    "streamName": "stream",
    "readerGroupName": "reader group",
    "bookmarkName": "bookmark",
    "sliceName": "slice",
    "id": "component",
}
_ANYWHERE = {
    400: "The request can't be right as it stands; the message names what is wrong.",
    401: "Credentials are missing or not valid.",
    403: "The credentials are insufficient for this.",
    500: "The server failed to handle this request.",
    503: "The server can't do it now, or still recovers: try again.",
}


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    kinds = [kind for endpoint in endpoints for kind in (endpoint.gives, endpoint.body) if kind is not None]
    schemas, components = msgspec.json.schema_components([Error, *kinds], ref_template=_REF)
    following = iter(schemas)
    error = next(following)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        gives = next(following) if endpoint.gives is not None else None
        body = next(following) if endpoint.body is not None else None
        paths.setdefault(endpoint.path, {})[endpoint.verb.lower()] = _operation(endpoint, gives, body, error)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nadi controller",
            "version": version("nadi"),
            "description": "Scopes, streams, reader groups and health, at Pravega's paths.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(endpoint: Endpoint, gives: Any, body: Any, error: Any) -> dict[str, Any]:
    parts = [part.strip("{}") for part in endpoint.path.split("/") if part and part != "v1"]
    success: dict[str, Any] = {"description": "Done." if gives is None else "As asked for."}
    if gives is not None:
        success["content"] = {media: {"schema": gives} for media in endpoint.media}
    responses: dict[str, Any] = {str(endpoint.status): success}
    for code, meaning in _codes(endpoint).items():
        responses[str(code)] = {"description": meaning, "content": {JSON: {"schema": error}}}
    operation: dict[str, Any] = {
        "operationId": "-".join([endpoint.verb.lower(), *parts]),
        "summary": endpoint.summary,
        "responses": responses,
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PART.findall(endpoint.path)
    ]
    parameters += [{"in": "query", **asdict(parameter)} for parameter in endpoint.query]
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    elif endpoint.takes:
        operation["requestBody"] = {"required": True, "content": {media: {} for media in endpoint.takes}}
    return operation


def _codes(endpoint: Endpoint) -> dict[int, str]:
    own = dict(endpoint.codes or {})
    if parts := _PART.findall(endpoint.path):
        own[404] = f"There is no such {_THINGS[parts[-1]]}."
    codes = {code: own.pop(code, meaning) for code, meaning in _ANYWHERE.items()}
    if endpoint.body is None and not endpoint.takes and 400 not in (endpoint.codes or {}):
        del codes[400]
    if endpoint.body is not None:
        own[413] = "The body is too large, or its chunks are too small; the connection ends."
        own[415] = "The body is not said to be application/json."
    return dict(sorted((codes | own).items()))


ENDPOINTS: tuple[Endpoint, ...] = (*resources.ENDPOINTS, *own.ENDPOINTS)


def rest_app(api: Api) -> Starlette:
    served = (*ENDPOINTS, *api.site.endpoints)
    description = encode(describe(served))

    async def openapi(request: Request) -> Response:
        return Response(description, media_type=JSON)

    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in served:
        by_path.setdefault(endpoint.path, []).append(endpoint)
    app = Starlette(
        routes=[
            *api.site.pages,
            Route("/ping", _ping),
            Route("/v1/openapi.json", openapi),
            *(_route(path, endpoints, api) for path, endpoints in by_path.items()),
        ],
        exception_handlers={HTTPException: refused},
    )
    app.router.redirect_slashes = False
    return app


async def _ping(request: Request) -> Response:
    return PlainTextResponse("pong\n")


def _route(path: str, endpoints: Sequence[Endpoint], api: Api) -> Route:
    """One route for all verbs of a path, so that what it says of them is whole."""
    verbs: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
        endpoint.verb: _answering(endpoint, api) for endpoint in endpoints
    }

    async def dispatch(request: Request) -> Response:
        return await verbs["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, dispatch, methods=list(verbs))


def _answering(endpoint: Endpoint, api: Api) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            needed = endpoint.needs(Call(request, api))
            caller = await api.access.authorized(request, needed.resource, needed.permission)
            body = await read_body(request, endpoint.body) if endpoint.body is not None else None
            return await endpoint.handler(Call(request, api, body, caller))
        except HTTPException:
            raise
        except Exception as error:
            return failure(request, error)

    return answer
