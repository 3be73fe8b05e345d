"""The REST port: serves and describes all endpoints, with uvicorn on the server's event loop.

Connections come through a Listener, which closes idle ones when others arrive, so health requests are answered even
when all slots are taken. A uvicorn connection is also ended if the peer sends half a request or stops reading a
response. h11 processes all its input at once, so input is parsed in portions of few bytes and few lines, each in a turn
shared by all connections. Input is charged to the connection's account until it is answered, and reading pauses until
all of it is parsed: without capacity, the remainder stays in the network.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, cast

import h11
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from nadi import limits
from nadi.access.audit import AuditedAct
from nadi.access.authentication import Gate
from nadi.access.listener import AcceptedConnection, Listener, available_files, uri_of
from nadi.access.permissions import Caller
from nadi.access.tls import ServerTls
from nadi.controller.rest import own, resources
from nadi.controller.rest.bodies import Error
from nadi.controller.rest.endpoint import (
    ANYONE,
    JSON,
    Api,
    RestCall,
    RestEndpoint,
    check_query,
    encode,
    failure,
    read_body,
    refusal,
    refused,
    reply,
)
from nadi.errors import NotAuthenticatedError
from nadi.limits import REST_CONNECTIONS_EXTRA, REST_CONNECTIONS_MAX, REST_CONNECTIONS_OF_ADDRESS, REST_SOCKET_BYTES
from nadi.throttled_log import SeldomWarning
from nadi.wire.send_backlog import SendBacklog

_REF = "#/components/schemas/{name}"
_PART = re.compile(r"\{(\w+)\}")
_ANYWHERE = {
    400: "The request is invalid; the message says why.",
    401: "Credentials are missing or invalid.",
    403: "The credentials do not permit this.",
    500: "The server failed to handle the request.",
    503: "The server is unavailable or still recovering: try again.",
}


def describe(endpoints: Sequence[RestEndpoint]) -> dict[str, Any]:
    kinds = [Error, *(kind for endpoint in endpoints for kind in (endpoint.gives, endpoint.body) if kind is not None)]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.verb.lower()] = _operation(endpoint, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nadi controller",
            "version": version("nadi"),
            "description": "Scopes, streams, reader groups, ingestion and health, at Pravega's paths.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(endpoint: RestEndpoint, schema_of: Mapping[Any, Any]) -> dict[str, Any]:
    parts = [part.strip("{}") for part in endpoint.path.split("/") if part and part != "v1"]
    success: dict[str, Any] = {"description": "Done." if endpoint.gives is None else "The requested data."}
    if endpoint.gives is not None:
        success["content"] = {media: {"schema": schema_of[endpoint.gives]} for media in endpoint.media}
    responses: dict[str, Any] = {str(endpoint.status): success}
    for code, meaning in _codes(endpoint).items():
        responses[str(code)] = {"description": meaning, "content": {JSON: {"schema": schema_of[Error]}}}
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
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[endpoint.body]}}}
    elif endpoint.takes:
        operation["requestBody"] = {"required": True, "content": {media: {} for media in endpoint.takes}}
    return operation


def _codes(endpoint: RestEndpoint) -> dict[int, str]:
    own = dict(endpoint.codes or {})
    if _PART.search(endpoint.path):
        own[404] = "The named resource does not exist; the message says which."
    codes = {code: own.pop(code, meaning) for code, meaning in _ANYWHERE.items()}
    if endpoint.body is None and not endpoint.takes and 400 not in (endpoint.codes or {}):
        del codes[400]
    if endpoint.body is not None:
        own[413] = "The body is too large; the connection is closed."
        own[415] = "The content type is not application/json."
    return dict(sorted((codes | own).items()))


ENDPOINTS: tuple[RestEndpoint, ...] = (*resources.ENDPOINTS, *own.ENDPOINTS)


def rest_app(api: Api) -> Starlette:
    served = (*ENDPOINTS, *api.site.endpoints)
    description = encode(describe(served))

    async def openapi(request: Request) -> Response:
        return Response(description, media_type=JSON)

    by_path: dict[str, list[RestEndpoint]] = {}
    for endpoint in served:
        by_path.setdefault(endpoint.path, []).append(endpoint)
    app = Starlette(
        routes=[
            *api.site.pages,
            Route("/ping", lambda _: PlainTextResponse("pong\n")),
            Route("/v1/openapi.json", openapi),
            *(_route(path, endpoints, api) for path, endpoints in by_path.items()),
        ],
        exception_handlers={HTTPException: refused},
    )
    app.router.redirect_slashes = False
    return app


def _route(path: str, endpoints: Sequence[RestEndpoint], api: Api) -> Route:
    """Make one route for all methods of a path, so that its Allow header is complete."""
    verbs = {endpoint.verb: _answering(endpoint, api) for endpoint in endpoints}

    async def dispatch(request: Request) -> Response:
        return await verbs["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, dispatch, methods=list(verbs))


def _answering(endpoint: RestEndpoint, api: Api) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            needed = endpoint.needs(RestCall(request, api))
            caller, header = ANYONE, request.headers.get("authorization")
            if api.gate is not None:
                peer = f"{request.client.host}:{request.client.port}" if request.client is not None else ""
                caller = await api.gate.authorized(header, needed.resource, needed.permission, peer)
            check_query(request, endpoint)
            body = await read_body(request, endpoint.body) if endpoint.body is not None else None
            work = _handled(endpoint, RestCall(request, api, body, caller))
            if endpoint.action and api.gate is not None and api.gate.audit is not None:
                value = await api.gate.audit.run(_act(endpoint, request, body, caller), work)
            else:
                value = await work
            if value is None:
                return Response(status_code=endpoint.status)
            return value if isinstance(value, Response) else reply(value, endpoint.status)
        except HTTPException:
            raise
        except Exception as error:
            return failure(request, error)

    return answer


async def _handled(endpoint: RestEndpoint, call: RestCall) -> Any:
    return await endpoint.handler(call)


def _act(endpoint: RestEndpoint, request: Request, body: Any, caller: Caller) -> AuditedAct:
    named = getattr(body, "streamName", getattr(body, "scopeName", ""))  # of an object to be created
    subject = "/".join([*map(str, request.path_params.values()), *([named] if named else [])])
    address = request.client.host if request.client is not None else ""
    text = encode(body).decode() if body is not None else ""
    return AuditedAct(
        action=endpoint.action, subject=subject, user=caller.name, address=address, door="rest", request=text
    )


STOP_GRACE_S = 1
_HARMLESS = ("GET", "HEAD", "OPTIONS")


def _guarded(app: ASGIApp, gate: Gate | None) -> ASGIApp:
    """Wrap `app` with request filters. Connections above the limit, and without a required client certificate, may only
    ask for health. State-changing requests that another site's page sends are refused, since browsers send them
    unasked, with stored passwords, to servers that only they can reach. Requests cut off by a stop of the server get a
    response."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        is_answered = False

        async def sending(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        is_health = scope["path"].startswith(("/ping", "/v1/health"))
        if scope["state"]["is_extra"] and not is_health:
            answer = refusal(503, "the server has too many connections: try again", {"Connection": "close"})
        elif scope["method"] not in _HARMLESS and _is_foreign(Headers(scope=scope)):
            answer = refusal(403, "pages of other sites may not write here: send the request from a program")
        else:
            try:
                if gate is not None and gate.needs_certificate:
                    _use_certificate(scope, gate, is_required=not is_health)
                return await app(scope, receive, sending)
            except NotAuthenticatedError as error:
                answer = refusal(401, str(error))
            except asyncio.CancelledError:
                if is_answered:
                    return None
                answer = refusal(503, "the server is stopping: try again")
        return await answer(scope, receive, send)

    return serve


def _use_certificate(scope: Scope, gate: Gate, *, is_required: bool) -> None:
    """Authorize a request without credentials as the user of its client certificate. NotAuthenticatedError: it
    lacks a required one, or the certificate isn't a user's."""
    certificate = scope["state"]["certificate"]
    if certificate is None and is_required:
        raise NotAuthenticatedError("this server requires a client certificate: docs/security.md says how to set it")
    if certificate is not None and "authorization" not in Headers(scope=scope):
        host, port = scope.get("client") or ("", 0)
        value = gate.authorization_of(certificate, f"{host}:{port}")
        scope["headers"] = [*scope["headers"], (b"authorization", value.encode())]


def _is_foreign(headers: Headers) -> bool:
    """Return whether a browser reports another origin. Without TLS it sends only Origin, which can be compared unless a
    proxy in front of this server changes Host."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    return origin is not None and origin.partition("://")[2] != headers.get("host")


log = logging.getLogger(__name__)
_of_uvicorn = logging.getLogger(f"{__name__}.uvicorn")
_of_uvicorn.setLevel(logging.ERROR)  # it warns of each bad request, so anyone could fill the log; see _report
_report = SeldomWarning(log, "REST: connections closed: %d, the last from %s: %s")


def cut_portion(received: bytearray) -> bytes:
    """Remove from its front what the parser may have next: a limited number of bytes and of lines.

    >>> received = bytearray(b"a\\n" * 100)
    >>> cut_portion(received).count(b"\\n"), len(received)
    (64, 72)
    """
    end = 0
    for _ in range(limits.REST_PORTION_LINES):
        end = received.find(b"\n", end, limits.REST_PORTION_BYTES) + 1
        if not end:
            end = limits.REST_PORTION_BYTES
            break
    portion = bytes(memoryview(received)[:end])
    del received[:end]
    return portion


class RestProtocol(H11Protocol):
    """A connection. It may be evicted unless a complete request is being answered. uvicorn's flow control calls
    `resume_reading` and `pause_reading`."""

    def __init__(self, config: uvicorn.Config, state: ServerState, accepted: AcceptedConnection, api: Api) -> None:
        super().__init__(config, state, {"is_extra": accepted.is_extra, "certificate": None})
        self.logger = _of_uvicorn
        self._accepted, self._turns, self._pool = accepted, api.turns, api.budget.receiving
        self._received = bytearray()  # not parsed yet
        self._parsed_bytes = 0  # parsed but not answered yet
        self._is_continued = False  # the parser may already have another request
        self._is_queued = False
        self._waits_since = self.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        sealed: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if sealed is not None:  # TLS reads 256 KiB ahead of us otherwise
            self.app_state["certificate"] = sealed.getpeercert(binary_form=True)
            cast("Any", transport).set_read_buffer_limits(high=REST_SOCKET_BYTES)
        self.flow = FlowControl(cast("asyncio.Transport", self))
        self._account = self._pool.account()
        self._unsent = SendBacklog(self.transport)
        self._watch = self.loop.call_later(limits.PATROL_S, self._patrol)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        self._received.clear()
        self._account.hold(0)
        self._pool.forget(self._steer)
        self._accepted.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._received += data
        self._steer()

    def handle_events(self) -> None:
        """Continue parsing in a turn; uvicorn also calls this after a response."""
        self._is_continued = True
        self._steer()

    def _steer(self) -> None:
        """Request a turn if there is work; otherwise continue reading."""
        if self._has_work and not self._is_queued and not self.transport.is_closing():
            self._is_queued = True
            self._turns.ask(self._accepted.address, self._take_turn)
        if self.transport.is_closing():  # perhaps closed by its turn
            return
        if not self._is_answering:
            self._parsed_bytes = len(self.conn.trailing_data[0])
        self._account.hold(len(self._received) + self._parsed_bytes)
        if self._received or self.flow.read_paused:
            self.transport.pause_reading()
        elif not self._account.capacity_bytes:
            self.transport.pause_reading()
            self._pool.wait(self._steer)
        else:
            self.transport.resume_reading()

    pause_reading = resume_reading = _steer

    @property
    def _has_work(self) -> bool:
        """Whether parsing can proceed; between a request's last byte and the end of its response it can't."""
        takes_more = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.flow.read_paused
        return self._is_continued or (takes_more and bool(self._received))

    def _take_turn(self) -> bool:
        is_of_use = self._has_work and not self.transport.is_closing()
        if is_of_use:
            if not self._is_continued:
                portion = cut_portion(self._received)
                self._parsed_bytes += len(portion)
                self.conn.receive_data(portion)
            self._is_continued = False
            super().handle_events()
            if self._is_answering and not self.cycle.more_body:
                self._accepted.mark_busy()
        self._is_queued = False
        self._steer()
        return is_of_use

    @property
    def _peer(self) -> str:
        return ":".join(map(str, self.client)) if self.client is not None else "unknown"

    def send_400_response(self, msg: str) -> None:
        """Send an error response if still possible, and close the connection."""
        _report(self._peer, msg)
        self._received.clear()
        if self._is_answering:  # the response is sent here
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = encode(Error("the request is not HTTP or has more than 16 KiB of headers: correct it"))
            headers = [("content-type", JSON), ("connection", "close"), ("content-length", str(len(body)))]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        self._waits_since = self.loop.time()
        self._accepted.mark_idle()
        self.cycle.body = bytearray()  # releases an unread body
        super().on_response_complete()
        self._steer()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _patrol(self) -> None:
        now = self.loop.time()
        self._watch = self.loop.call_later(limits.PATROL_S, self._patrol)
        if self._unsent.stalled_s(now) > limits.SEND_TIMEOUT_S:
            reason = f"the peer read nothing of a response for {limits.SEND_TIMEOUT_S:.0f} s"
        elif not self._is_answering and now - self._waits_since > limits.REST_HEAD_TIMEOUT_S:
            reason = f"no complete request arrived within {limits.REST_HEAD_TIMEOUT_S:.0f} s"
        else:
            return
        _report(self._peer, reason)
        self.transport.abort()


def _abort(protocol: asyncio.BaseProtocol) -> None:
    assert isinstance(protocol, RestProtocol)
    if protocol.transport is not None:
        protocol.transport.abort()


class RestServer:
    """The REST server: `stop` answers requests in progress and closes; `uri` is its address. around: wraps the
    application."""

    def __init__(
        self, api: Api, tls: ServerTls | None = None, around: Callable[[ASGIApp], ASGIApp] = lambda app: app
    ) -> None:
        self._tls = tls
        self._task: asyncio.Task[None] | None = None
        self._config = uvicorn.Config(
            _guarded(around(rest_app(api)), api.gate),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=limits.REST_HEAD_MAX_BYTES,
            timeout_graceful_shutdown=STOP_GRACE_S,
        )
        self._config.load()
        self._uvicorn = uvicorn.Server(self._config)  # neither its sockets nor its signal handlers are used
        self._uvicorn.servers, self._uvicorn.lifespan = [], self._config.lifespan_class(self._config)
        self.listener = Listener(
            lambda accepted: RestProtocol(self._config, self._uvicorn.server_state, accepted, api),
            _abort,
            most=available_files(REST_CONNECTIONS_MAX),
            most_of_address=REST_CONNECTIONS_OF_ADDRESS,
            extra=REST_CONNECTIONS_EXTRA,
            name="REST",
        )
        self.uri = ""

    def start(self, sockets: list[socket.socket]) -> None:
        """Serve connections to sockets of `bound_sockets`, with REST_SOCKET_BYTES."""
        self.listener.listen(sockets, None if self._tls is None else self._tls.asking_context)
        self._task = asyncio.create_task(self._uvicorn.main_loop(), name="rest")
        self.uri = uri_of(sockets, "http" if self._tls is None else "https")

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def connections(self) -> int:
        return len(self.listener.connections)

    async def stop(self) -> None:
        if self._task is not None:
            self.listener.close()
            self._uvicorn.should_exit = True
            await self._task
            await self._uvicorn.shutdown()
