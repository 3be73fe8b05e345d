"""The REST port: uvicorn in the server's own event loop, started and stopped with the rest of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nadi.controller.rest.app import rest_app
from nadi.controller.rest.endpoint import Api
from nadi.controller.rest.replies import refusal
from nadi.limits import REST_CONNECTIONS_MAX, REST_HEAD_MAX_BYTES

STOP_GRACE_S = 1


class _Uvicorn(uvicorn.Server):
    """uvicorn that leaves signals to whoever runs the loop, and says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()


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
    """`start` listens, `stop` answers what is under way and closes; `uri` says where."""

    def __init__(self, api: Api, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._task: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            _stoppable(rest_app(api)),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=REST_CONNECTIONS_MAX,
            timeout_graceful_shutdown=STOP_GRACE_S,
            h11_max_incomplete_event_size=REST_HEAD_MAX_BYTES,
        )
        config.load()
        config.ssl = tls  # made by who has the certificate, as for the other doors
        self._uvicorn = _Uvicorn(config)
        self.uri = ""

    async def start(self) -> None:
        """Listen; OSError where the port can't be had."""
        found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
        host, port = listener.getsockname()[:2]
        self._task = asyncio.create_task(self._uvicorn.serve([listener]), name="rest")
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

    async def stop(self) -> None:
        if self._task is not None:
            self._uvicorn.should_exit = True
            await self._task
