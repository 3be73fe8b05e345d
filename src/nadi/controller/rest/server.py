"""The REST port: the application that serves and describes all endpoints, in uvicorn on the server's own event loop.
Its connections come through a Listener, which closes silent ones when others arrive, so health requests are answered
even when all places are taken.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, cast

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nadi.access.listener import Guest, Listener, bound_sockets, files_left
from nadi.controller.rest import own, resources
from nadi.controller.rest.bodies import Error
from nadi.controller.rest.endpoint import (
    EVERYBODY,
    JSON,
    Api,
    Call,
    Endpoint,
    encode,
    failure,
    read_body,
    refusal,
    refused,
    same_site,
)
from nadi.controller.rest.protocol import RestConnection, RestProtocol
from nadi.limits import REST_CONNECTIONS_EXTRA, REST_CONNECTIONS_MAX, REST_CONNECTIONS_OF_ADDRESS, REST_SOCKET_BYTES

_REF = "#/components/schemas/{name}"
_PART = re.compile(r"\{(\w+)\}")
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
    if _PART.search(endpoint.path):
        own[404] = "There is nothing of that name: the message says what."
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
            caller, header = EVERYBODY, request.headers.get("authorization")
            if api.gate is not None:
                peer = f"{request.client.host}:{request.client.port}" if request.client is not None else ""
                caller = await api.gate.authorized(header, needed.resource, needed.permission, peer)
            body = await read_body(request, endpoint.body) if endpoint.body is not None else None
            return await endpoint.handler(Call(request, api, body, caller))
        except HTTPException:
            raise
        except Exception as error:
            return failure(request, error)

    return answer


STOP_GRACE_S = 1


def _short(app: ASGIApp) -> ASGIApp:
    """`app` for connections above the limit: health endpoints and nothing else."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(("/ping", "/v1/health")):
            await app(scope, receive, send)
        else:
            await refusal(503, "too many connections are at work: try again", {"Connection": "close"})(
                scope, receive, send
            )

    return serve


def _abort(protocol: asyncio.BaseProtocol) -> None:
    assert isinstance(protocol, RestConnection)
    protocol.abort()


def _stoppable(app: ASGIApp) -> ASGIApp:
    """`app`, whose requests end with an answer where the server's stop has no more time for them."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        answered = False

        async def sending(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await app(scope, receive, sending)
        except asyncio.CancelledError:
            if not answered:
                await refusal(503, "the server is being stopped: try again")(scope, receive, send)

    return serve


class RestServer:
    """`start` listens, `stop` answers requests in flight and closes; `uri` is the address. around: what is put around
    the application. shares_port: other processes may listen at its port, too."""

    def __init__(
        self,
        api: Api,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
        *,
        shares_port: bool = False,
    ) -> None:
        self._api, self._host, self._port, self._tls, self._shares_port = api, host, port, tls, shares_port
        self._task: asyncio.Task[None] | None = None
        self._config = uvicorn.Config(
            _stoppable(same_site(around(rest_app(api)))),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_GRACE_S,
        )
        self._config.load()
        self._uvicorn = uvicorn.Server(self._config)  # without its ways to listen, and to take signals
        self._uvicorn.servers, self._uvicorn.lifespan = [], self._config.lifespan_class(self._config)
        self.listener = Listener(
            self._protocol,
            _abort,
            most=files_left(REST_CONNECTIONS_MAX),
            most_of_address=REST_CONNECTIONS_OF_ADDRESS,
            extra=REST_CONNECTIONS_EXTRA,
            name="REST",
        )
        self.uri = ""

    def _protocol(self, guest: Guest) -> RestConnection:
        short, pool = _short(cast("ASGIApp", self._config.loaded_app)), self._api.budget.receiving
        state, turns = self._uvicorn.server_state, self._api.turns
        return RestConnection(RestProtocol(self._config, state, guest=guest, short=short, turns=turns, pool=pool))

    async def start(self) -> None:
        """Listen; OSError if the port is unavailable."""
        sockets = await bound_sockets(self._host, self._port, shared=self._shares_port)
        for one in sockets:  # connections have what their listener has
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, REST_SOCKET_BYTES)
        host, port = sockets[0].getsockname()[:2]
        self.listener.listen(sockets, self._tls)
        self._task = asyncio.create_task(self._uvicorn.main_loop(), name="rest")
        scheme = "http" if self._tls is None else "https"
        self.uri = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def connections(self) -> int:
        return len(self.listener.guests)

    async def stop(self) -> None:
        if self._task is not None:
            self.listener.close()
            self._uvicorn.should_exit = True
            await self._task
            await self._uvicorn.shutdown()
