"""The single server of a simulated world: a segment store and the controller over it, as run by `nadi up`, with its
lives, and the disks that outlive them.

Clients reach its segment store over the network, through the real listener. gRPC is bypassed: `rpc` and `ask` call the
controller in its process.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

import grpc
from grpc.aio import AioRpcError, Metadata

from nadi.controller.controller import Controller
from nadi.controller.grpc.service import Service
from nadi.controller.scaling.decisions import FAST
from nadi.errors import UnavailableError
from nadi.segmentstore.store import SegmentStore
from nadi.wire import commands as wire
from nadi.wire.rpc.codes import code_of

from .machine.disk import Disk, Faults, MemoryParts, SimulatedChunks, SimulatedLog
from .machine.loop import SimulatedLoop
from .machine.network import LostError
from .machine.process import Process
from .world import DRIFT, World

T = TypeVar("T")
CONTAINERS = 2
PORT = 9090


class Life:
    """A server's life, from its start to its end."""

    def __init__(self, process: Process, store: SegmentStore, controller: Controller, parts: list[MemoryParts]) -> None:
        self.process, self.store, self.controller, self.parts = process, store, controller, parts
        self.service = Service(controller)
        self.is_ready = False
        self.has_folder = True  # it has locked the data folder

    async def exchange(self, command: wire.Command) -> wire.Command:
        return await self.store.exchange(command)


class Server:
    """world: it belongs to. name: of its host. log: the type of its containers' logs."""

    def __init__(self, world: World, name: str, log: type[SimulatedLog]) -> None:
        self.world, self.name, self._log = world, name, log
        self.address = (name, PORT)
        self.faults = Faults(world.chance(f"faults of {name}"), self._kill_soon, world.note, now=lambda: world.loop.now)
        self.disks = [Disk() for _ in range(CONTAINERS)]
        self.life: Life | None = None
        self.failure: BaseException | None = None  # why it did not start
        self.kills = self.starts = 0
        self._folder = world.folder / name
        self._fate = world.chance(f"fate of {name}")
        self._process: Process | None = None
        self._set_ms = 0
        self._ended = False

    # --- lives ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a life as soon as possible."""
        self.starts += 1
        world = self.world
        self._process = process = world.process(self.name, f"{self.name}, life {self.starts}")
        process.runtime.set_ms = self._set_ms
        world.network.is_back(self.name)
        chunks = SimulatedChunks(world.objects, self.faults, process.runtime)
        parts = [
            MemoryParts(n, self._folder / f"container-{n}", partial(self._open_log, n), chunks, process.runtime)
            for n in range(CONTAINERS)
        ]
        process.start(self._boot(process, parts, chunks)).add_done_callback(self._booted)

    def _open_log(self, number: int) -> SimulatedLog:
        log = self._log.open(self.disks[number])
        log.faults = self.faults
        return log

    async def _boot(self, process: Process, parts: list[MemoryParts], chunks: SimulatedChunks) -> None:
        while True:
            store = SegmentStore(self._folder, CONTAINERS, None, process.runtime, chunks, parts)
            controller = Controller(
                store.exchange,
                clock=process.runtime,
                endpoint_of=lambda _: self.address,
                rpc_endpoint=(self.name, PORT + 1),
                scaling=FAST,
            )
            self.life = life = Life(process, store, controller, parts)
            try:
                await store.start()
                break
            except Exception as error:
                life.has_folder = False
                self.world.note("no start", error)
                if not isinstance(error, (UnavailableError, OSError)):
                    raise
                await asyncio.sleep(1.0)  # a disk or tier 2 failed: the server is restarted
        while True:
            try:
                await controller.start()
                break
            except UnavailableError as error:
                self.world.note("no controller", type(error).__name__)
                await asyncio.sleep(1.0)
        store.listen_on([cast("Any", self.world.network.door(process, self.address))])
        life.is_ready = True
        self.world.note("started", self.name)

    def _booted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = error

    def _kill_soon(self) -> None:
        """Kill it from within: the current code never continues."""
        self.world.loop.at(self.world.loop.now, self.kill)

    def kill(self, *, with_power: bool = False) -> None:
        """kill -9, which may lose unsynced data. with_power: its peers aren't notified."""
        process, life = self._process, self.life
        if process is None or not process.is_alive:
            return
        self._process = self.life = None
        self.kills += 1
        self.faults.kill_due = -1
        process.kill(with_power=with_power)
        is_ready = life is not None and life.is_ready
        self.world.note("killed", self.name, is_ready, with_power, [len(d.unsynced) for d in self.disks])
        if life is not None:
            for part in life.parts:
                part.killed()
            if life.has_folder:
                life.store._lock.release()
        for disk in self.disks:
            disk.killed(self.faults)
        if not self._ended:
            self.world.loop.at(self.world.loop.now + self._fate.uniform(0.1, 5.0), self.start)

    def pause(self, seconds: float) -> None:
        """Freeze it for that time."""
        if self._process is not None:
            self.world.note("paused", self.name, f"{seconds:.3f}")
            self._process.pause(seconds)

    def set_clock(self, ms: int) -> None:
        """Set its wall clock that far forward, or back, from its original time."""
        self._set_ms = ms
        if self._process is not None:
            self._process.runtime.set_ms = ms

    async def until_ready(self) -> Life:
        while self.life is None or not self.life.is_ready:
            if self.failure is not None:
                raise self.failure
            await asyncio.sleep(0.5)
        return self.life

    async def stop(self) -> None:
        """Stop it cleanly."""
        life = await self.until_ready()
        self.life = self._process = None
        await asyncio.wait_for(life.process.start(_stopped(life)), 300)
        life.process.kill()  # releases all remaining resources
        self.world.note("stopped", self.name)

    def rest(self) -> None:
        """End all faults."""
        self.faults.rest()

    def end(self) -> None:
        """End it for good."""
        self._ended = True
        self.kill()

    # --- its controller ---------------------------------------------------------------------------------

    def process(self) -> Process | None:
        """The process that currently answers, if any."""
        return self.life.process if self.life is not None and self.life.is_ready else None

    async def run(self, work: Callable[[Life], Coroutine[Any, Any, T]]) -> T:
        """Run work in its process, without a network."""
        life = await self.until_ready()
        return await life.process.start(work(life))

    async def ask(self, work: Callable[[Life], Awaitable[T]]) -> T:
        """Run work over the network, from the calling process; LostError if it may have been executed or not."""

        async def done() -> T:
            assert self.life is not None
            return await work(self.life)

        return await self.world.network.call(self.process, self.name, done)

    async def rpc(self, name: str, request: Any, timeout_s: float) -> Any:
        """Call one of the controller's RPCs over the network; AioRpcError as from gRPC."""

        async def answered(life: Life) -> Any:
            try:
                return await _method(name, life.service)(type(request).FromString(sent))
            except Exception as error:
                raise _rpc_error(grpc.StatusCode[code_of(error)], str(error)) from error

        sent = request.SerializeToString()
        try:
            async with asyncio.timeout(timeout_s):
                return await self.ask(answered)
        except TimeoutError:
            raise _rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, f"{name} took too long") from None
        except (LostError, UnavailableError) as error:
            raise _rpc_error(grpc.StatusCode.UNAVAILABLE, str(error) or "the connection was lost") from None


class OneServer(World):
    """A world with one server of two containers. log: the type of the containers' logs. Otherwise like `World`."""

    def __init__(
        self, loop: SimulatedLoop, seed: str, log: type[SimulatedLog] = SimulatedLog, drift: float = DRIFT
    ) -> None:
        super().__init__(loop, seed, drift)
        self.server = Server(self, "server", log)

    @property
    def hosts(self) -> list[Server]:
        return [self.server]

    async def endpoint_of(self, segment: str) -> tuple[str, int]:
        return self.server.address

    async def reach(self, work: Callable[[Life], Awaitable[T]]) -> T:
        return await self.server.ask(work)

    async def rpc(self, name: str, request: Any, timeout_s: float) -> Any:
        return await self.server.rpc(name, request, timeout_s)

    async def until_ready(self) -> None:
        await self.server.until_ready()

    async def run(self, work: Callable[[Life], Coroutine[Any, Any, T]]) -> T:
        return await self.server.run(work)


def _method(rpc: str, service: Service) -> Any:
    return getattr(service, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower())


async def _stopped(life: Life) -> None:
    await life.controller.stop()
    await life.store.close()


def _rpc_error(code: grpc.StatusCode, details: str) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), details)
