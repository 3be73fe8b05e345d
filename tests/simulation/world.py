"""A server in a simulated machine, killed and started again, and a network between it and its clients: everything that
happens follows from the seed, and goes into `trace`.

The server is what `nadi up` runs, without its sockets: a segment store of two containers and the controller over it.
Clients call either of them through `ask`. A call can be lost on its way, or its answer, and nobody is told which.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
import shutil
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from crc32c import crc32c

from nadi.controller.controller import Controller
from nadi.controller.scaling.profile import FAST
from nadi.controller.state.history import History
from nadi.errors import UnavailableError
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire

from .disk import Disk, Faults, MemoryParts, SimulatedChunks, SimulatedLog
from .loop import Process, SimulatedLoop, SimulatedRuntime

T = TypeVar("T")
CONTAINERS = 2
_LAST_LINES = 2_000


class LostError(Exception):
    """The connection is gone: nobody knows whether the call was carried out."""


class Server:
    """One life of it."""

    def __init__(self, process: Process, store: SegmentStore, controller: Controller, parts: list[MemoryParts]) -> None:
        self.process, self.store, self.controller, self.parts = process, store, controller, parts
        self.is_ready = False
        self.has_folder = True  # its lock
        self.calls: dict[int, asyncio.Future[object]] = {}

    async def exchange(self, command: wire.Command) -> wire.Command:
        return await self.store.exchange(command)


class World:
    """seed: all of it. log: what the containers' logs are."""

    def __init__(self, loop: SimulatedLoop, seed: str, log: type[SimulatedLog] = SimulatedLog) -> None:
        self.loop, self.seed, self._log = loop, seed, log
        self.runtime = SimulatedRuntime(loop, self.chance("runtime"))
        self.faults = Faults(self.chance("faults"), self._kill_soon, self.note)
        self.disks = [Disk() for _ in range(CONTAINERS)]
        self.objects: dict[str, bytes] = {}
        self.server: Server | None = None
        self.kills = self.starts = self.commands = 0
        self.lost = 0.002  # of all calls, and of all answers
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._network = self.chance("network")
        self._trace = hashlib.sha256()
        self._folder = Path(tempfile.mkdtemp(prefix="nadi-simulation-", dir=_memory_folder()))
        self._ended = False
        self.failure: BaseException | None = None  # why a server did not start

    def chance(self, whose: str) -> random.Random:
        """A source of its own for each, so that what one does more often changes nothing for the others."""
        return random.Random(f"{self.seed}/{whose}")

    def note(self, *what: object) -> None:
        """It has happened: a part of the trace."""
        line = f"{self.loop.time():.6f} {' '.join(map(str, what))}"
        self.last_lines.append(line)
        self._trace.update(line.encode())

    @property
    def trace(self) -> str:
        return self._trace.hexdigest()

    # --- the server's lives ---------------------------------------------------------------------------

    async def start(self) -> None:
        """A server, as soon as one can be had."""
        self.starts += 1
        process = Process(f"server {self.starts}")
        chunks = SimulatedChunks(self.objects, self.faults, self.runtime)
        parts = [
            MemoryParts(n, self._folder / f"container-{n}", partial(self._open_log, n), chunks, self.runtime)
            for n in range(CONTAINERS)
        ]
        boot = self.loop.start(process, self._boot(process, parts, chunks))
        self._watched(boot)
        await asyncio.sleep(0)

    def _open_log(self, number: int) -> SimulatedLog:
        log = self._log.open(self.disks[number])
        log.faults = self.faults
        return log

    async def _boot(self, process: Process, parts: list[MemoryParts], chunks: SimulatedChunks) -> None:
        while True:
            store = SegmentStore(self._folder, CONTAINERS, None, self.runtime, chunks, parts)
            controller = Controller(
                store.exchange,
                clock=self.runtime,
                endpoint_of=lambda _: ("store", 1),
                rpc_endpoint=("controller", 2),
                scaling=FAST,
            )
            self.server = server = Server(process, store, controller, parts)
            try:
                await store.start()
                break
            except Exception as error:
                server.has_folder = False
                self.note("no start", error)
                if not isinstance(error, (UnavailableError, OSError)):
                    raise
                await asyncio.sleep(1.0)  # a disk or tier 2 failed: it is started again
        while True:
            try:
                await controller.start()
                break
            except UnavailableError as error:
                self.note("no controller", type(error).__name__)
                await asyncio.sleep(1.0)
        server.is_ready = True
        self.note("started", [part.rebuilt for part in parts])

    def _watched(self, boot: asyncio.Task[None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.failure = error

        boot.add_done_callback(ended)

    def _kill_soon(self) -> None:
        """From within the server: its own code never goes on."""
        self.loop.call_soon(self.kill, context=self._outside)

    async def __aenter__(self) -> Self:
        self._outside = contextvars.copy_context()
        await self.start()
        return self

    def kill(self) -> None:
        """kill -9, and power: what no disk has synced may be gone."""
        server, self.server = self.server, None
        if server is None:
            return
        self.kills += 1
        self.faults.kill_due = -1
        self.loop.kill(server.process)
        state_lost = self.faults.happens(self.faults.state_lost)
        self.note("killed", server.is_ready, state_lost, [len(disk.unsynced) for disk in self.disks])
        for part in server.parts:
            part.killed(state_lost=state_lost)
        for disk in self.disks:
            disk.killed(self.faults)
        if server.has_folder:
            server.store._lock.release()
        for future in server.calls.values():
            if not future.done():
                future.set_exception(LostError())
        if not self._ended:
            self.loop.call_later(self._network.uniform(0.1, 5.0), self._restart, context=self._outside)

    def _restart(self) -> None:
        task = self.loop.create_task(self.start())
        self._starting = task

    async def until_ready(self) -> Server:
        while self.server is None or not self.server.is_ready:
            if self.failure is not None:
                raise self.failure
            await asyncio.sleep(0.5)
        return self.server

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ended = True
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def stop(self) -> None:
        """As when a server is asked to."""
        server = await self.until_ready()
        self.server = None
        await asyncio.wait_for(self.loop.start(server.process, self._stop(server)), 300)
        self.note("stopped")

    async def _stop(self, server: Server) -> None:
        await server.controller.stop()
        await server.store.close()

    # --- the network ----------------------------------------------------------------------------------

    async def ask(self, who: str, what: object, call: Callable[[Server], Awaitable[T]]) -> T:
        """What the call gives or raises at the server; LostError where that can't be known."""
        self.commands += 1
        number = self.commands
        self.note(number, who, _told(what))
        try:
            answer = await self._carried(number, call)
        except Exception as error:
            self.note(number, type(error).__name__, str(error)[:80])
            raise
        self.note(number, _told(answer))
        return answer

    async def _carried(self, number: int, call: Callable[[Server], Awaitable[T]]) -> T:
        network = self._network
        await asyncio.sleep(network.expovariate(1 / 0.002))
        server = self.server
        if server is None or not server.is_ready or network.random() < self.lost:
            await asyncio.sleep(0.05)
            raise LostError
        future: asyncio.Future[object] = self.loop.create_future()
        server.calls[number] = future

        async def serve() -> None:
            try:
                answer: object = await call(server)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(answer)

        self.loop.start(server.process, serve())
        if network.random() < self.lost:
            self.loop.call_later(network.random() * 0.01, _lose, future)
        try:
            answer = await future
        finally:
            server.calls.pop(number, None)
        await asyncio.sleep(network.expovariate(1 / 0.002))
        return answer  # type: ignore[return-value]


def _lose(future: asyncio.Future[object]) -> None:
    if not future.done():
        future.set_exception(LostError())


def _told(what: object) -> str:
    """In words that are the same in every process, and short."""
    if isinstance(what, wire.Command):
        values = (getattr(what, field) for field in what.__struct_fields__)
        return f"{type(what).__name__}({', '.join(map(_told, values))})"
    if isinstance(what, (bytes, bytearray, memoryview)):
        return f"{len(what)} bytes {crc32c(bytes(what)):08x}"
    if isinstance(what, History):
        return f"a history of {what.newest + 1} epochs"
    return repr(what)


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
