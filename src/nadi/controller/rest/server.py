"""The REST port: uvicorn in the server's own event loop. Its connections come through a Listener, which closes silent
ones when others arrive, so health requests are answered even when all places are taken.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
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
