"""REST front of every server of a cluster. Health, metrics, descriptions, the web page and its events, the cluster view
and data requests are answered by this server. All other requests go to the active controller, forwarded if it is on
another server.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import h11
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nadi import limits
from nadi.access.fair_shares import FairQueue
from nadi.client.control.security import Security
from nadi.cluster.proxy.active import FORWARDED, Active, ClusterKey
from nadi.cluster.proxy.segment_router import endpoint_of
from nadi.controller.rest.endpoint import BROWSER_HEADERS, DATA, PAGE_FILES, Api, failure, refused
from nadi.controller.rest.intake import takes_data, whole_body
from nadi.controller.rest.own import CLUSTER_PATH
from nadi.errors import InvalidArgumentError, UnavailableError

_HEADER = FORWARDED.encode()
_METRICS = "/metrics"
_OWN_PATHS = ("/", "/ping", _METRICS, "/v1/openapi.json", "/v1/health", CLUSTER_PATH)
_OWN_FOLDERS = ("/v1/health/", f"{CLUSTER_PATH}/", f"{PAGE_FILES}/", f"{DATA}/")


class RestProxy:
    """REST proxy of one server. Put `around` its application; call `changed` when `active` has changed."""

    def __init__(self, api: Api, active: Active, key: ClusterKey, security: Security) -> None:
        self._api, self._active, self._key = api, active, key
        self._tls, self._places = security.contexts(), FairQueue(limits.FORWARD_REST_AT_ONCE)

    def changed(self) -> None:
        self._api.controller = self._active.here
        self._api.stands_by = self._active.here is None and self._active.there is not None

    def around(self, app: ASGIApp, *, is_shared: bool = False) -> ASGIApp:
        """Return the application that answers or forwards; `app` answers here.

        is_shared: for a port shared by servers, where consecutive requests may meet different servers. Metrics there
        always come from the server with the active controller, because a mix of servers would make no sense.
        """

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            proof = next((value for name, value in scope["headers"] if name == _HEADER), None)
            if proof is not None:  # restore the original client's address
                scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != _HEADER]}
                host, _, port = (self._key.proven(proof.decode("latin-1")) or "").rpartition(":")
                if port.isdecimal():
                    scope["client"] = (host, int(port))
            path = scope["path"]
            is_own = path in _OWN_PATHS or path.startswith(_OWN_FOLDERS) or takes_data(path)
            if is_own and not (is_shared and path == _METRICS):
                await app(scope, receive, send)
            else:
                await self._answer_actively(app, scope, receive, send, was_forwarded=proof is not None)

        return serve

    async def _answer_actively(
        self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, was_forwarded: bool
    ) -> None:
        is_started = False

        async def send_checked(message: Message) -> None:
            nonlocal is_started
            if not is_started and self._active.here is not None:
                self._active.check()
            is_started = True
            await send(message)

        try:
            async with self._active.call():
                if self._active.here is not None:
                    await app(scope, receive, send_checked)
                elif was_forwarded:
                    raise UnavailableError("the active controller has just left this server: try again later")
                elif self._active.there is None:
                    raise UnavailableError("no server is known to have the active controller: try again later")
                else:
                    await self._forward(self._active.there.rest, scope, receive, send_checked)
        except HTTPException as error:
            refusal = await refused(Request(scope), error)
        except (InvalidArgumentError, UnavailableError) as error:
            refusal = failure(Request(scope), error)
        else:
            return
        if not is_started:  # otherwise the connection closes amid the answer, and the client sees that it is incomplete
            await refusal(scope, receive, send)

    async def _forward(self, address: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to "host:port" over a new connection, as there are few, and send its answer.
        UnavailableError: the server can't be reached, or its answer is incomplete. Also raises as `whole_body`."""
        if not address:
            raise UnavailableError("the server with the active controller has no REST port: start it with one")
        body = bytes(await whole_body(Request(scope, receive)))
        client = scope.get("client") or ("", 0)
        headers = _end_to_end(scope["headers"], without=(b"content-length", *BROWSER_HEADERS))
        headers += [
            (b"host", address.encode()),
            (b"connection", b"close"),
            (_HEADER, self._key.proof(f"{client[0]}:{client[1]}").encode("latin-1")),
        ]
        if body or scope["method"] in ("POST", "PUT"):
            headers.append((b"content-length", str(len(body)).encode()))
        target = b"?".join(filter(None, (scope["raw_path"], scope["query_string"])))
        request = h11.Request(method=scope["method"], target=target, headers=headers)
        async with self._places.of(client[0], limit_s=limits.RPC_MEMORY_TIMEOUT_S):
            try:
                async with _connected(address, self._tls()) as (reader, writer):
                    parser = h11.Connection(h11.CLIENT)
                    for event in (request, h11.Data(body), h11.EndOfMessage()):
                        writer.write(parser.send(event) or b"")
                    async with asyncio.timeout(limits.FORWARD_REST_SILENCE_S):
                        await writer.drain()
                    await _answer(parser, reader, send)
            except (OSError, TimeoutError, h11.ProtocolError) as error:
                silent = f"no data for {limits.FORWARD_REST_SILENCE_S:.0f} s"
                reason = silent if type(error) is TimeoutError and not str(error) else str(error)
                raise UnavailableError(
                    f"the server with the active controller at {address} didn't answer ({reason}): try again later"
                ) from error


Headers = list[tuple[bytes, bytes]]
_PORTION_BYTES = 64 * limits.KIB
# RFC 9110, 7.6.1, and headers that belong to one connection or message
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade expect host date".split()
)


@asynccontextmanager
async def _connected(
    address: str, tls: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    endpoint = endpoint_of(address)
    try:
        async with asyncio.timeout(limits.PEER_CONNECT_S):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=tls, limit=_PORTION_BYTES)
    except TimeoutError as error:
        raise ConnectionError(f"no connection within {limits.PEER_CONNECT_S:.0f} s") from error
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _answer(parser: h11.Connection, reader: asyncio.StreamReader, send: Send) -> None:
    while True:
        match parser.next_event():
            case h11.NEED_DATA:
                async with asyncio.timeout(limits.FORWARD_REST_SILENCE_S):
                    parser.receive_data(await reader.read(_PORTION_BYTES))
            case h11.Response(status_code=status, headers=headers):
                forwarded = _end_to_end(headers)
                await send({"type": "http.response.start", "status": status, "headers": forwarded})
            case h11.Data(data=data):
                await send({"type": "http.response.body", "body": bytes(data), "more_body": True})
            case h11.EndOfMessage():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            case h11.ConnectionClosed():
                raise ConnectionError("connection closed")


def _end_to_end(headers: Iterable[tuple[bytes, bytes]], without: Iterable[bytes] = ()) -> Headers:
    """Return the end-to-end headers, without hop-by-hop ones and those in `without`."""
    lowered = [(name.lower(), value) for name, value in headers]
    listed = b",".join(value for name, value in lowered if name == b"connection").lower()
    dropped = _HOP_BY_HOP.union(without, (name_listed.strip() for name_listed in listed.split(b",")))
    return [(name, value) for name, value in lowered if name not in dropped]
