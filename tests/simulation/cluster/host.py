"""A server of a simulated cluster: the production node over the simulated store, restarted again and again. Each life
is a new server, with a new id and an empty disk.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from nadi.cluster.node import ClusterNode, NodeSettings, ServerAddresses, Stores
from nadi.cluster.proxy.segment_router import SegmentRouter
from nadi.controller.controller import Controller
from nadi.controller.scaling.decisions import FAST
from nadi.errors import NadiError, UnavailableError
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.shutdown import ShutdownSteps
from nadi.wire import commands as wire

from ..descriptions import described
from ..machine.process import Process
from ..machine.storeclients import SimulatedEngine, SimulatedRegistry
from .chunks import StoredChunks
from .rpc import RpcDoor

if TYPE_CHECKING:
    from .world import ClusterWorld

STORE_PORT, RPC_PORT = 12345, 9090
_WRITES = (
    ContainerMetadata,
    ContainerMetadata.commit,
    ContainerMetadata.apply,
    snapshots._append,
)  # write to this machine's disk
_AGAIN_S = 5.0  # maximum time until an ended server is restarted


class Life:
    """A server's life, from its start to its end."""

    def __init__(self, process: Process, node: ClusterNode) -> None:
        self.process, self.node = process, node
        self.parts = ShutdownSteps()  # ended by a clean stop
        self.rpc = RpcDoor()
        self.is_ready = False
        self.states: list[ContainerMetadata] = []  # opened ones

    @property
    def controller(self) -> Controller:
        """The active controller, if it is here."""
        controller = self.node.leadership.controller if self.is_ready else None
        if controller is None:
            raise UnavailableError("the active controller is elsewhere")
        return controller

    async def exchange(self, command: wire.Command) -> wire.Command:
        node = self.node
        host, port = node.addresses.store
        reach = SegmentRouter(node.store, f"{host}:{port}", node.map.store_of_segment, node.map.stores)
        try:
            return await reach(command)
        finally:
            reach.close()


class ClusterHost:
    """A machine. name: for the network and the store."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.world, self.name = world, name
        self.life: Life | None = None
        self.failure: BaseException | None = None  # an error that no life may end with
        self.kills = self.starts = self.stops = 0
        self.disk_is_full = False
        # how long it freezes after a command of its controller was executed here
        self.stands_still: Callable[[wire.Command], float] | None = None
        self._fate = world.chance(f"fate of {name}")
        self._process: Process | None = None
        self._set_ms = 0
        self._ended = False

    # --- lives ------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._ended or self._process is not None:
            return
        self.starts += 1
        world = self.world
        process = self._process = world.process(self.name, f"{self.name}, life {self.starts}")
        process.runtime.set_ms = self._set_ms
        world.network.is_back(self.name)
        cache = world.folder / self.name / f"life-{self.starts}"
        engine, registry = SimulatedEngine(world.store, process), SimulatedRegistry(world.store, process)
        settings = NodeSettings(
            containers=world.containers,
            channels=world.channels.open,
            interval_s=world.interval_s,
            scaling=FAST,
        )
        stores = Stores(engine, registry, StoredChunks(world.store, process))
        life = self.life = Life(process, ClusterNode(stores, cache, settings, process.runtime))
        process.runtime.done_in_thread = partial(self._done_in_thread, life)
        world.note("starts", self.name, life.node.id)
        process.start(self._lived(life)).add_done_callback(partial(self._over, life))

    def _done_in_thread(self, life: Life, work: partial[Any]) -> Any:
        function = getattr(work.func, "__func__", work.func)
        if self.disk_is_full and function in _WRITES:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = work()
        if isinstance(done, ContainerMetadata):
            life.states.append(done)
        return done

    async def _exchanged(
        self, process: Process, exchange: Callable[[wire.Command], Awaitable[wire.Command]], command: wire.Command
    ) -> wire.Command:
        """Execute a command of its controller at its own store, after which it may freeze."""
        reply = await exchange(command)
        if self.stands_still is not None and (seconds := self.stands_still(command)):
            self.world.note("stands still at work", self.name, f"{seconds:.3f} after", described(command))
            process.pause(seconds)
            await asyncio.sleep(0)
        return reply

    async def _lived(self, life: Life) -> None:
        """Run until ready. A server that can't start ends, as a real one does, and is restarted."""
        node, name = life.node, self.name
        try:
            async with ShutdownSteps() as parts:
                await node.open(parts)
                node.store.exchange = partial(self._exchanged, life.process, node.store.exchange)  # type: ignore[method-assign]
                node.store.listen_on([cast("Any", self.world.network.door(life.process, (name, STORE_PORT)))])
                node.proxy.add_to(cast("Any", life.rpc))
                node.join(ServerAddresses((name, STORE_PORT), (name, RPC_PORT)), parts)
                life.is_ready = True
                life.parts = parts.pop_all()
            await node.settled("the simulation")
        except NadiError as error:
            self.world.note("no start", name, error)
            await life.parts.aclose()
            raise
        self.world.note("started", name)

    def _over(self, life: Life, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, NadiError):
            self.world.loop.at(self.world.loop.now, self._end_of, life)
        else:
            self.failure = error

    def _end_of(self, life: Life) -> None:
        """End the process by itself."""
        if self.life is life:
            self._gone(life, with_power=False)

    def kill(self, *, with_power: bool = False) -> None:
        """kill -9. with_power: its peers aren't notified."""
        if self.life is None:
            return
        self.kills += 1
        self.world.note("killed", self.name, self.life.is_ready, with_power)
        self._gone(self.life, with_power=with_power)

    def _gone(self, life: Life, *, with_power: bool) -> None:
        self._process = self.life = None
        life.process.kill(with_power=with_power)
        for state in life.states:
            state.close()
        if (store := getattr(life.node, "store", None)) is not None:
            store._lock.release()
        if (reconciler := getattr(life.node, "reconciler", None)) is not None:
            self.world.moved.append(reconciler.moves)
        shutil.rmtree(self.world.folder / self.name, ignore_errors=True)
        if not self._ended:
            self.world.loop.at(self.world.loop.now + self._fate.uniform(0.1, _AGAIN_S), self.start)

    async def restart(self, *, drains: bool) -> None:
        """Stop it cleanly and restart it. drains: its containers are handed over first."""
        life = self.life
        if life is None or not life.is_ready:
            return
        self.stops += 1
        self.world.note("is asked to stop", self.name, drains)
        stopped = life.process.start(_stopped(life, drains=drains))
        await asyncio.wait([stopped, life.process.gone], return_when=asyncio.FIRST_COMPLETED)
        if stopped.done() and not stopped.cancelled() and (error := stopped.exception()) is not None:
            self.failure = error
        self.world.note("stopped", self.name)
        self._end_of(life)

    def pause(self, seconds: float) -> None:
        """Freeze it for that time."""
        if self._process is not None:
            self.world.note("paused", self.name, f"{seconds:.3f}")
            self._process.pause(seconds)

    def set_clock(self, ms: int) -> None:
        """Set its wall clock that far forward, or back, from its original time."""
        self.world.note("clock set", self.name, ms)
        self._set_ms = ms
        if self._process is not None:
            self._process.runtime.set_ms = ms

    def fill_disk(self, seconds: float) -> None:
        """Make its disk full for that time."""
        self.world.note("disk full", self.name, f"{seconds:.3f}")
        self.disk_is_full = True
        self.world.loop.at(self.world.loop.now + seconds, self.rest)

    def rest(self) -> None:
        """End all faults."""
        self.disk_is_full = False

    def end(self) -> None:
        """End it for good."""
        self._ended = True
        if self.life is not None:
            self._gone(self.life, with_power=False)

    def process(self) -> Process | None:
        """The process that currently answers, if any."""
        return self.life.process if self.life is not None and self.life.is_ready else None


async def _stopped(life: Life, *, drains: bool) -> None:
    if drains:
        await life.node.drain()
    life.is_ready = False
    await life.parts.aclose()


def lives(hosts: Sequence[ClusterHost], is_so: Callable[[Life], bool]) -> list[Life]:
    """Return the current lives that satisfy the predicate."""
    running = [host.life for host in hosts if host.life is not None and host.life.is_ready and host.life.process.runs]
    return [life for life in running if is_so(life)]
