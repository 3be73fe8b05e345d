"""A server's clients of itself: what comes to its REST port, and what it does with data on its own account, goes
through the ports that all clients use, with the credentials of whoever asks.

So permissions are checked where those of every client are, segments are found wherever they are, and it is the same at
any server of a cluster. A client is opened when it is first needed, and closed once nobody has used it for a minute.
The client library is imported with the first one, which takes a third of a second: most servers need none.
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
class Door:
    """This server's ports. controller: "host:port" of its gRPC. endpoint_of: host and port of the store that has a
    segment; None if the controller says that. trusted: PEM file of certificates; None for the system's. is_own: that
    file is this server's own certificate, and names in it don't matter. token: with which the server itself may do
    anything with its segments; "" if that needs none, or clients bring their own."""

    controller: str
    endpoint_of: Callable[[str], tuple[str, int]] | None = None
    tls: bool = False
    trusted: str | None = None
    is_own: bool = False
    token: str = ""


@dataclass(slots=True, eq=False)
class _LoopbackClient:
    manager: StreamManager
    users: int = 0
    idle: asyncio.TimerHandle | None = None


class OwnClients:
    """`async with clients.of(authorization) as manager`. answer_s: how long one waits for an answer of its server.
    door: None until this server's ports are open. ended: called with each client that ends."""

    def __init__(self, answer_s: float, door: Door | None = None) -> None:
        self.door = door
        self.ended: list[Callable[[StreamManager], object]] = []
        self._answer_s = answer_s
        self._open: dict[str, _LoopbackClient] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def of(self, authorization: str) -> AsyncIterator[StreamManager]:
        """The client with these credentials, "" for none; UnavailableError if too many are in use, or while the server
        starts or stops."""
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
        """Index the times of the events that these segments have now, for retention by them where nobody cuts by
        them."""
        async with self.of(self.door.token if self.door is not None else "") as manager:
            index = await asyncio.to_thread(import_module, "nadi.client.stream_cuts.event_index")
            from nadi.client.manager.streams import stores_of

            await index.index_times(stores_of(manager), *name, EventTime.parse(event_time), [*segments])

    async def close(self) -> None:
        """End all clients, and with them whatever is asked through them."""
        self.door = None
        for authorization in list(self._open):
            self._end(authorization)
        await asyncio.gather(*self._closing)

    async def _opened(self, authorization: str) -> StreamManager:
        if self.door is None:
            raise UnavailableError("the server is recovering its data, or stops: try again, or watch /v1/health")
        if len(self._open) >= OWN_CLIENTS:
            idle = next((name for name, client in self._open.items() if not client.users), None)
            if idle is None:
                raise UnavailableError(f"{OWN_CLIENTS} callers are at work by REST, and that is the most: try again")
            self._end(idle)
        door = self.door
        await asyncio.to_thread(import_module, "nadi.client.aio")
        return _client(door, authorization, self._answer_s)

    def _end(self, authorization: str) -> None:
        client = self._open.pop(authorization)
        if client.idle is not None:
            client.idle.cancel()
        for ended in self.ended:
            ended(client.manager)
        task = asyncio.create_task(client.manager.close(), name="close a client of this server itself")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _client(door: Door, authorization: str, answer_s: float) -> StreamManager:
    """Never with the credentials of the server's environment. It finds segments by the door, if that knows them,
    whatever address other clients are told."""
    from nadi.client.aio import StreamManager
    from nadi.client.control.controller import ControllerClient
    from nadi.client.control.security import Encoded, Security

    class LoopbackController(ControllerClient):
        async def segment_endpoint(self, segment: str) -> tuple[str, int]:
            known = door.endpoint_of
            return known(segment) if known is not None else await super().segment_endpoint(segment)

        async def delegation_token(self, scope: str, stream: str, *, write: bool) -> str:
            return door.token or await super().delegation_token(scope, stream, write=write)

    credentials = Encoded(authorization) if authorization else None
    security = Security(credentials, door.tls, door.trusted, not door.is_own)
    return StreamManager(controller=LoopbackController(door.controller, security, answer_s))
