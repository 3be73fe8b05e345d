"""One client of this server for each caller, in this process: what they ask goes through the doors that all clients
use, with their own credentials.

They are opened when first needed, and closed once nobody has used them for a minute. There are a limited number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nadi.controller.rest.endpoint import EVERYBODY, Asked, Call, Endpoint
from nadi.errors import UnavailableError
from nadi.limits import PAGE_CLIENT_IDLE_S, PAGE_CLIENTS
from nadi.web.door import Door

if TYPE_CHECKING:
    from nadi.client.aio import StreamManager


@dataclass(slots=True, eq=False)
class _Open:
    manager: StreamManager
    users: int = 0
    ends: asyncio.TimerHandle | None = None


ENDED: list[Callable[[StreamManager], None]] = []  # called with each client that ends, by who keeps something of it


class Clients:
    """`async with clients.of(call) as manager`. door: None until this server's doors are open."""

    def __init__(self) -> None:
        self.door: Door | None = None
        self._open: dict[str, _Open] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def of(self, call: Call) -> AsyncIterator[StreamManager]:
        """The client of who sent that; UnavailableError if there is none to be had now."""
        authorization = call.request.headers.get("authorization", "") if call.caller is not EVERYBODY else ""
        async with self._loading:
            held = self._open.get(authorization)
            if held is None:
                held = self._open[authorization] = _Open(await self._opened(authorization))
        if held.ends is not None:
            held.ends.cancel()
            held.ends = None
        held.users += 1
        try:
            yield held.manager
        finally:
            held.users -= 1
            if not held.users and self._open.get(authorization) is held:
                loop = asyncio.get_running_loop()
                held.ends = loop.call_later(PAGE_CLIENT_IDLE_S, self._end, authorization)

    async def close(self) -> None:
        """End all clients, and with them whatever is asked through them."""
        self.door = None
        for authorization in list(self._open):
            self._end(authorization)
        await asyncio.gather(*self._closing)

    async def _opened(self, authorization: str) -> StreamManager:
        if self.door is None:
            raise UnavailableError("the server is recovering its data, or stops: try again, or watch /v1/health")
        if len(self._open) >= PAGE_CLIENTS:
            idle = next((name for name, held in self._open.items() if not held.users), None)
            if idle is None:
                raise UnavailableError(f"{PAGE_CLIENTS} callers are reading by REST, and that is the most: try again")
            self._end(idle)
        door = self.door
        opened = await asyncio.to_thread(_loaded)  # its imports take a third of a second
        manager: StreamManager = opened(door, authorization)
        return manager

    def _end(self, authorization: str) -> None:
        held = self._open.pop(authorization)
        if held.ends is not None:
            held.ends.cancel()
        for ended in ENDED:
            ended(held.manager)
        task = asyncio.create_task(held.manager.close(), name="close a client of the page")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _loaded() -> Any:
    from nadi.web.opening import open_client

    return open_client


Asks = Callable[[Call, Any], Awaitable[Response]]
_CODES = {400: "A name, or a place, can't be one.", 409: "It is being changed by others."}  # that the client may raise
Bound = Callable[[Clients], Endpoint]


def through_client(
    verb: str, path: str, needs: Asked, gives: Any = None, codes: Mapping[int, str] | None = None, **more: Any
) -> Callable[[Asks], Bound]:
    """Like `endpoint`, for a handler that takes the caller's client, too: what it makes is an endpoint once it is given
    the clients."""

    def made(handler: Asks) -> Bound:
        def bound(clients: Clients) -> Endpoint:
            async def handle(call: Call) -> Response:
                async with clients.of(call) as manager:
                    return await handler(call, manager)

            return Endpoint(verb, path, handler.__doc__ or "", handle, needs, gives, codes=told, **more)

        told = {**_CODES, **(codes or {})}
        return bound

    return made
