"""Between a client and a real segment store: passes bytes on, and cuts connections in the middle of them.

A cut passes on to the store all that it let through, and loses the answers: the client can't know what is stored.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nadi.client.aio import StreamManager
from nadi.client.control.controller import ControllerClient
from nadi.client.control.security import split_uri
from nadi.client.manager.streams import stores_of

_PIECE_BYTES = 1 << 16


class Relay:
    """`budgets`: how many bytes each next connection passes on to the store before it is cut; then there is no end."""

    def __init__(self, store: tuple[str, int], budgets: list[int]) -> None:
        self.cuts = 0
        self._store = store
        self._budgets = list(reversed(budgets))
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        budget = self._budgets.pop() if self._budgets else None
        store_reader, store_writer = await asyncio.open_connection(*self._store)
        answers = asyncio.create_task(_pass_on(store_reader, writer))
        try:
            while data := await reader.read(_PIECE_BYTES if budget is None else min(_PIECE_BYTES, budget)):
                store_writer.write(data)
                await store_writer.drain()
                if budget is not None:
                    budget -= len(data)
                    if not budget:
                        self.cuts += 1
                        break
        except ConnectionError:
            pass  # the client has gone
        finally:
            answers.cancel()
            writer.transport.abort()
            store_writer.close()
            self._tasks.discard(task)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE_BYTES):
        writer.write(data)
        await writer.drain()
    writer.close()


class _Redirected(ControllerClient):
    relayed: tuple[str, int]

    async def segment_endpoint(self, segment: str) -> tuple[str, int]:
        return self.relayed


@asynccontextmanager
async def relayed(uri: str, budgets: list[int]) -> AsyncIterator[tuple[StreamManager, Relay]]:
    """A client of the server at `uri` whose connections to the segment store lead through a relay."""
    async with StreamManager(uri) as direct:
        store = await stores_of(direct).controller.segment_endpoint("sc/st/0.#epoch.0")
    relay = Relay(store, budgets)
    controller = _Redirected(split_uri(uri)[0])
    controller.relayed = await relay.start()
    try:
        async with StreamManager(controller=controller) as manager:
            yield manager, relay
    finally:
        await relay.stop()


def cuts(chance: random.Random, count: int, most_bytes: int) -> list[int]:
    return [chance.randint(1, most_bytes) for _ in range(count)]
