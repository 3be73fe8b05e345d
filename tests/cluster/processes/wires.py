"""A wire to a server that can be cut: a TCP proxy on loopback, in a thread of the test's process.

Cut, it carries nothing more, and says nothing: what was sent waits, and arrives once it is whole again, as with packets
that are sent again and again. New connections are taken, and hear nothing either.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

_PIECE_BYTES = 256 * 1024


class Wires:
    """The thread that all wires of a test run in; `close` ends them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        self._wires: list[Wire] = []

    def wire(self, target: tuple[str, int], host: str = "127.0.0.1", port: int = 0) -> Wire:
        """A new one, listening at `host` and `port`, or any free port."""
        wire: Wire = self._run(Wire.open(self._loop, target, host, port)).result()
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
    def __init__(self, loop: asyncio.AbstractEventLoop, target: tuple[str, int]) -> None:
        self._loop, self._target = loop, target
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, loop: asyncio.AbstractEventLoop, target: tuple[str, int], host: str, port: int) -> Wire:
        wire = cls(loop, target)
        wire._server = await asyncio.start_server(wire._accepted, host, port, limit=_PIECE_BYTES)
        wire.address = wire._server.sockets[0].getsockname()[:2]
        return wire

    address: tuple[str, int]
    _server: asyncio.Server

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.set)

    async def end(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accepted(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            await self._whole.wait()
            there, beyond = await asyncio.open_connection(*self._target, limit=_PIECE_BYTES)
        except OSError:  # whoever listens there is down
            writer.transport.abort()
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, beyond))
                group.create_task(self._carry(there, writer))
        except* OSError:
            pass
        finally:
            writer.transport.abort()
            beyond.transport.abort()

    async def _carry(self, source: StreamReader, sink: StreamWriter) -> None:
        while data := await source.read(_PIECE_BYTES):
            await self._whole.wait()
            sink.write(data)
            await sink.drain()
        with contextlib.suppress(OSError):
            sink.write_eof()
