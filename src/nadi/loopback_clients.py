"""Clients through which a server calls itself, for REST requests and background work on events.

They use the server's public ports with the caller's credentials, so permissions are checked in one place, and segments
are found on any server of a cluster. A client is opened on first use and closed after a minute without use. The client
library is imported with the first client: that takes a third of a second, and most servers need none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from nadi.errors import UnavailableError
from nadi.limits import OWN_CLIENT_IDLE_S, OWN_CLIENTS
from nadi.model.event_time import EventTime

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager


@dataclass(frozen=True, slots=True)
class ServerPorts:
    """The server's ports.

    controller: "host:port" of gRPC. endpoint_of: returns host and port of a segment's store; None means that the
    controller knows it. trusted: PEM file of certificates; None means the system's. is_own: that file is this server's
    own certificate, so its host name isn't checked. token: gives all rights on segments; "" without authentication, or
    if clients fetch tokens. certificate: PEM files of a certificate and its key, if clients need one.
    """

    controller: str
    endpoint_of: Callable[[str], tuple[str, int]] | None = None
    tls: bool = False
    trusted: str | None = None
    is_own: bool = False
    token: str = ""
    certificate: tuple[str, str] | None = None


@dataclass(slots=True, eq=False)
class _LoopbackClient:
    manager: StreamManager
    users: int = 0
    idle: asyncio.TimerHandle | None = None


class OwnClients:
    """A pool of clients by credentials: `async with clients.of(authorization) as manager`.

    answer_s: request timeout. ports: None until the server's ports are open. ended: called with each closed client.
    """

    def __init__(self, answer_s: float, ports: ServerPorts | None = None) -> None:
        self.ports = ports
        self.ended: list[Callable[[StreamManager], object]] = []
        self._answer_s = answer_s
        self._open: dict[str, _LoopbackClient] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def of(self, authorization: str) -> AsyncIterator[StreamManager]:
        """Yield the client with these credentials, "" for none.

        UnavailableError: too many clients are in use, or the server is starting or stopping.
        """
        async with self._loading:
            client = self._open.get(authorization)
            if client is None:
                client = self._open[authorization] = _LoopbackClient(await self._opened(authorization))
        if client.idle is not None:
            client.idle.cancel()
            client.idle = None
        client.users += 1
        try:
            yield client.manager
        finally:
            client.users -= 1
            if not client.users and self._open.get(authorization) is client:
                loop = asyncio.get_running_loop()
                client.idle = loop.call_later(OWN_CLIENT_IDLE_S, self._end, authorization)

    async def index_times(self, name: tuple[str, str], event_time: str, segments: Iterable[int]) -> None:
        """Index the event times of these segments, for retention by event time without cuts."""
        async with self.of(self.ports.token if self.ports is not None else "") as manager:
            index = await asyncio.to_thread(import_module, "nadi.client.stream_cuts.event_index")
            from nadi.client.manager.streams import stores_of

            await index.index_times(stores_of(manager), *name, EventTime.parse(event_time), [*segments])

    async def close(self) -> None:
        """Close all clients and cancel their requests."""
        self.ports = None
        for authorization in list(self._open):
            self._end(authorization)
        await asyncio.gather(*self._closing)

    async def _opened(self, authorization: str) -> StreamManager:
        if self.ports is None:
            raise UnavailableError("the server is starting or stopping: try again, or watch /v1/health")
        if len(self._open) >= OWN_CLIENTS:
            idle = next((name for name, client in self._open.items() if not client.users), None)
            if idle is None:
                raise UnavailableError(f"the limit of {OWN_CLIENTS} concurrent REST callers is reached: try again")
            self._end(idle)
        ports = self.ports
        await asyncio.to_thread(import_module, "nadi.client.aio")
        return _client(ports, authorization, self._answer_s)

    def _end(self, authorization: str) -> None:
        client = self._open.pop(authorization)
        if client.idle is not None:
            client.idle.cancel()
        for ended in self.ended:
            ended(client.manager)
        task = asyncio.create_task(client.manager.close(), name="close a client of this server itself")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _client(ports: ServerPorts, authorization: str, answer_s: float) -> StreamManager:
    """Create a client that ignores credentials in the environment, and locates segments through `ports` if possible,
    whatever address is advertised."""
    from nadi.client.aio import StreamManager
    from nadi.client.control.controller import ControllerClient
    from nadi.client.control.security import ClientCertificate, Credentials, EncodedCredentials, Security

    class LoopbackController(ControllerClient):
        async def segment_endpoint(self, segment: str) -> tuple[str, int]:
            endpoint_of = ports.endpoint_of
            return endpoint_of(segment) if endpoint_of is not None else await super().segment_endpoint(segment)

        async def delegation_token(self, scope: str, stream: str, *, write: bool) -> str:
            return ports.token or await super().delegation_token(scope, stream, write=write)

    credentials: Credentials | None = EncodedCredentials(authorization) if authorization else None
    if ports.certificate is not None:  # it never names the caller: sent credentials do, even if they are empty
        credentials = ClientCertificate(*ports.certificate, EncodedCredentials(authorization))
    security = Security(credentials, ports.tls, ports.trusted, not ports.is_own)
    return StreamManager(controller=LoopbackController(ports.controller, security, answer_s))
