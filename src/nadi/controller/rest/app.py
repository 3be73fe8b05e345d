"""The application that serves the endpoints, and what else has a path: `/ping`, the description, and the pages of a
`Site`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from nadi.controller.rest.endpoint import Api, Call, Endpoint, read_body
from nadi.controller.rest.openapi import describe
from nadi.controller.rest.replies import JSON, encode, failure, refused
from nadi.controller.rest.routes import ENDPOINTS


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
