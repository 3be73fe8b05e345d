"""Between a client and a real segment store: holds back what passes, or cuts connections in the middle of it.

A cut passes on to the store all that it let through, and loses answers: the client can't know what is stored.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

from nadi.client import StreamManager, aio
from nadi.client.manager.streams import stores_of


class Gate:
    """`answers` and `requests` are let through while they are set. budgets: how many bytes each next connection passes
    on to the store before it is cut; then there is no end."""

    def __init__(self, store: tuple[str, int], budgets: Iterable[int] = ()) -> None:
        self.cuts = 0  # of those
        self._budgets = iter(budgets)
        self.answers, self.requests = threading.Event(), threading.Event()
        self.answers.set()
        self.requests.set()
        self.changed: Callable[[bytes], Iterable[bytes]] = lambda data: [data]  # the pieces of an answer
        self._store = store
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.answers.set()
        self.requests.set()

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        """Passes both ways until both have ended, and closes both sockets."""
        with client, contextlib.suppress(OSError), socket.create_connection(self._store) as store:
            for one in (client, store):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, store]
            answers = threading.Thread(target=self._pass_answers, args=(store, client), daemon=True)
            answers.start()
            self._pass_requests(client, store)
            answers.join()

    def _pass_requests(self, client: socket.socket, store: socket.socket) -> None:
        with contextlib.suppress(OSError):
            left = next(self._budgets, None)
            while data := client.recv(1 << 16 if left is None else min(1 << 16, left)):
                self.requests.wait()
                store.sendall(data)
                if left is not None and not (left := left - len(data)):
                    self.cuts += 1
                    break
        _end(store)

    def _pass_answers(self, store: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := store.recv(1 << 16):
                self.answers.wait()
                for piece in self.changed(data):
                    client.sendall(piece)
        _end(client)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@contextmanager
def gated(uri: str, store: tuple[str, int]) -> Iterator[tuple[StreamManager, Gate]]:
    """A client of the server at `uri` whose connections to the segment store lead through a gate."""
    gate = Gate(store)

    async def segment_endpoint(segment: str) -> tuple[str, int]:
        return gate.address

    try:
        with StreamManager(uri) as manager:
            stores_of(manager._core).controller.segment_endpoint = segment_endpoint  # type: ignore[method-assign]
            yield manager, gate
    finally:
        gate.close()


@asynccontextmanager
async def relayed(uri: str, budgets: Iterable[int]) -> AsyncIterator[tuple[aio.StreamManager, Gate]]:
    """As `gated`, for asyncio."""
    async with aio.StreamManager(uri) as manager:
        controller = stores_of(manager).controller
        gate = Gate(await controller.segment_endpoint("sc/st/0.#epoch.0"), budgets)

        async def segment_endpoint(segment: str) -> tuple[str, int]:
            return gate.address

        controller.segment_endpoint = segment_endpoint  # type: ignore[method-assign]
        with contextlib.closing(gate):
            yield manager, gate


def cuts(chance: random.Random, count: int, most_bytes: int) -> list[int]:
    return [chance.randint(1, most_bytes) for _ in range(count)]
