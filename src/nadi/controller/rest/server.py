"""The REST port: uvicorn in the server's own event loop, started and stopped with the rest of it.

Its connections come through a Listener, which closes silent ones when others arrive. So health requests are answered
even when all places are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nadi.access.listener import Guest, Listener, bound_sockets, files_left
from nadi.controller.rest.app import rest_app
from nadi.controller.rest.endpoint import Api, same_site
from nadi.controller.rest.protocol import RestConnection, RestProtocol
from nadi.controller.rest.replies import refusal
from nadi.limits import REST_CONNECTIONS_EXTRA, REST_CONNECTIONS_MAX, REST_CONNECTIONS_OF_ADDRESS, REST_SOCKET_BYTES

STOP_GRACE_S = 1


class _Uvicorn(uvicorn.Server):
    """uvicorn that leaves signals to whoever runs the loop, takes what a Listener lets in, and says when it serves."""

    def __init__(self, config: uvicorn.Config, api: Api) -> None:
        super().__init__(config)
        self._api = api
        self.serving = asyncio.Event()
        self.listener = Listener(
            self._protocol,
            _abort,
            most=files_left(REST_CONNECTIONS_MAX),
            most_of_address=REST_CONNECTIONS_OF_ADDRESS,
            extra=REST_CONNECTIONS_EXTRA,
            name="REST",
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = []  # uvicorn has none of its own to close
        self.listener.listen(sockets or [], self.config.ssl)
        self.started = True
        self.serving.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.listener.close()
        await super().shutdown(None)

    def _protocol(self, guest: Guest) -> RestConnection:
        protocol = RestProtocol(self.config, self.server_state, self.lifespan.state)
        protocol.guest, protocol.short = guest, _short(cast("ASGIApp", self.config.loaded_app))
        protocol.turns, protocol.pool = self._api.turns, self._api.budget.receiving
        return RestConnection(protocol)


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
    """`start` listens, `stop` answers requests in flight and closes; `uri` is the address.

    around: what is put around the application. shares_port: other processes may listen at its port, too.
    """

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
        self._host, self._port, self._tls, self._shares_port = host, port, tls, shares_port
        self._task: asyncio.Task[None] | None = None
        config = uvicorn.Config(
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
        config.load()
        config.ssl = tls  # made by the certificate's owner, as for the other doors
        self._uvicorn = _Uvicorn(config, api)
        self.uri = ""

    async def start(self) -> None:
        """Listen; OSError if the port is unavailable."""
        found = await bound_sockets(self._host, self._port, shared=self._shares_port)
        for one in found:  # connections have what their listener has
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, REST_SOCKET_BYTES)
        host, port = found[0].getsockname()[:2]
        self._task = asyncio.create_task(self._uvicorn.serve(found), name="rest")
        serving = asyncio.create_task(self._uvicorn.serving.wait())
        await asyncio.wait([self._task, serving], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            serving.cancel()
            self._task.result()
        scheme = "http" if self._tls is None else "https"
        self.uri = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done() and self._uvicorn.serving.is_set()

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self.listener.guests)

    @property
    def listener(self) -> Listener:
        """Who lets connections in."""
        return self._uvicorn.listener

    async def stop(self) -> None:
        if self._task is not None:
            self._uvicorn.should_exit = True
            await self._task
