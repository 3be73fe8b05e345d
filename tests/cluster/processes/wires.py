"""A wire to a server that can be cut: a TCP proxy on loopback, in a thread of the test's process.

Cut, it carries nothing more, and says nothing: what was sent waits, and arrives once it is whole again, as with packets
that are sent again and again. New connections are taken, and hear nothing either. A wire may tell who connects, and be
cut for some of them only; and it may be led elsewhere, as the address of a load balancer is.
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
ANYBODY = ""


def _anybody(source: Address) -> str:
    return ANYBODY


class Wires:
    """The thread that all wires of a test run in; `close` ends them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        self._wires: list[Wire] = []

    def wire(
        self, target: Address, host: str = "127.0.0.1", port: int = 0, kind_of: Callable[[Address], str] = _anybody
    ) -> Wire:
        """A new one, listening at `host` and `port`, or any free port. kind_of: tells from its address who connects."""
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
        """New connections until something listens at the target, as the address of a process that has ended does: to be
        refused isn't the same to clients as to be let in and thrown out. What is open ends with the target."""
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

    def cut(self, kind: str = ANYBODY) -> None:
        """For those of that kind."""
        self._loop.call_soon_threadsafe(lambda: self._whole_for(kind).clear())

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._mend)

    def _mend(self) -> None:
        for whole in self._whole.values():
            whole.set()

    def lead_to(self, target: Address) -> None:
        """From now on; what is connected elsewhere is broken off."""
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
        except OSError:  # whoever listens there is down
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
