"""TCP proxy on loopback that can be cut, in a thread of the test's process.

A cut wire carries nothing and reports nothing: sent data waits, and arrives once it is mended, as with retransmitted
packets. New connections are accepted, but get no data either. A wire may be cut only for some kinds of peers, and be
led to another target, as by a load balancer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

_PIECE_BYTES = 256 * 1024
_POLL_S = 0.02
Address = tuple[str, int]
ANY_PEER = ""


def _any_peer(source: Address) -> str:
    return ANY_PEER


class Wires:
    """Thread that runs all wires of a test; `close` ends them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        self._wires: list[Wire] = []

    def wire(
        self, target: Address, host: str = "127.0.0.1", port: int = 0, kind_of: Callable[[Address], str] = _any_peer
    ) -> Wire:
        """Return a new wire, listening at `host` and `port` (0 for any). kind_of: returns the kind of a peer from its
        address."""
        wire: Wire = self._run(Wire.open(self._loop, target, host, port, kind_of)).result()
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        for wire in self._wires:
            self._run(wire.end()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


class Wire:
    def __init__(self, loop: asyncio.AbstractEventLoop, target: Address, kind_of: Callable[[Address], str]) -> None:
        self._loop, self._target, self._kind_of = loop, target, kind_of
        self._whole: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls, loop: asyncio.AbstractEventLoop, target: Address, host: str, port: int, kind_of: Callable[[Address], str]
    ) -> Wire:
        wire = cls(loop, target, kind_of)
        await wire._listen((host, port))
        return wire

    async def _listen(self, address: Address) -> None:
        self._server = await asyncio.start_server(self._accepted, *address, limit=_PIECE_BYTES)
        self.address = self._server.sockets[0].getsockname()[:2]

    address: Address
    _server: asyncio.Server

    def refuse(self) -> None:
        """Refuse new connections until the target listens, as for a dead process: to clients a refusal differs from an
        accepted connection that is closed. Open connections end with the target."""
        self._loop.call_soon_threadsafe(self._refuse)

    def _refuse(self) -> None:
        if self._server.is_serving():
            self._server.close()
            self._start(self._accept_again())

    async def _accept_again(self) -> None:
        while True:
            try:
                _, probe = await asyncio.open_connection(*self._target)
                break
            except OSError:
                await asyncio.sleep(_POLL_S)
        probe.transport.abort()
        await self._listen(self.address)

    def cut(self, kind: str = ANY_PEER) -> None:
        """Cut the wire for peers of that kind."""
        self._loop.call_soon_threadsafe(lambda: self._whole_for(kind).clear())

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._mend)

    def _mend(self) -> None:
        for whole in self._whole.values():
            whole.set()

    def lead_to(self, target: Address) -> None:
        """Lead connections to another target; existing ones are aborted."""
        self._loop.call_soon_threadsafe(self._lead_to, target)

    def _lead_to(self, target: Address) -> None:
        if target != self._target:
            self._target = target
            for task in self._tasks:
                task.cancel()

    async def end(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _whole_for(self, kind: str) -> asyncio.Event:
        if kind not in self._whole:
            self._whole[kind] = asyncio.Event()
            self._whole[kind].set()
        return self._whole[kind]

    def _accepted(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._start(self._serve(reader, writer))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            whole = self._whole_for(self._kind_of(writer.get_extra_info("peername")[:2]))
            await whole.wait()
            there, beyond = await asyncio.open_connection(*self._target, limit=_PIECE_BYTES)
        except OSError:  # the target is down
            writer.transport.abort()
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, beyond, whole))
                group.create_task(self._carry(there, writer, whole))
        except* OSError:
            pass
        finally:
            writer.transport.abort()
            beyond.transport.abort()

    async def _carry(self, source: StreamReader, sink: StreamWriter, whole: asyncio.Event) -> None:
        while data := await source.read(_PIECE_BYTES):
            await whole.wait()
            sink.write(data)
            await sink.drain()
        with contextlib.suppress(OSError):
            sink.write_eof()
