"""A world whose servers are a cluster: which server a client asks, and where it finds the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from nadi.cluster.admin.metrics import Moves
from nadi.object_log.engine import VersionedValue
from nadi.segmentstore.container_registry import CONTROLLER_CONTAINER
from nadi.segmentstore.recovery.snapshotter import SnapshotPace
from nadi.segmentstore.tier2.records import ContainerRecord, name_of
from nadi.segmentstore.tier2.records import _record as decoded
from nadi.wire.rpc.service import METHODS, OWN_METHODS, path

from ..judging.history import GuaranteeError
from ..machine.loop import SimulatedLoop
from ..machine.process import Process
from ..machine.store import StoreFaults
from ..world import Serving, World
from .host import RPC_PORT, ClusterHost, Life, lives
from .rpc import Channels, RpcDoor

T = TypeVar("T")
CALM_S = 180.0  # time without faults after which a cluster must be at rest


class ClusterWorld(World):
    """A cluster as a `World`; the seed also determines the number of servers and the store's faults."""

    def __init__(self, loop: SimulatedLoop, seed: str) -> None:
        super().__init__(loop, seed)
        chance = self.chance("cluster")
        self.containers = chance.randrange(2, 6)
        self.interval_s = chance.choice([0.0, 0.0, 0.05, 0.25])
        self.snapshots = SnapshotPace(interval_s=chance.choice([0.5, 2.0, 10.0]), deltas=chance.choice([3, 64]))
        self.faults = StoreFaults(  # normal ones
            request_lost=chance.choice([0.0, 0.002, 0.01]),
            answer_lost=chance.choice([0.0, 0.002, 0.01]),
            late=chance.choice([0.0, 0.002, 0.01]),
            busy=chance.choice([0.0, 0.005]),
            repeated=chance.choice([0.0, 0.005]),
            throttled=chance.choice([0.0, 0.0, 0.01]),
            unlisted_s=chance.choice([0.0, 0.5, 1.5]),
            timeout_s=chance.choice([1.0, 5.0, 10.0]),
        )
        self.channels = Channels(self.network, self._door)
        self._hosts = [ClusterHost(self, f"server-{number}") for number in range(chance.randrange(3, 6))]
        self._asked = self.chance("asked")
        self.moved: list[Moves] = []  # by ended lives

    @property
    def hosts(self) -> list[ClusterHost]:
        return self._hosts

    def _door(self, address: str) -> tuple[RpcDoor, Process] | None:
        name = address.partition(":")[0]
        host = next(host for host in self._hosts if host.name == name)
        process = host.process()
        return None if process is None or host.life is None else (host.life.rpc, process)

    # --- for clients --------------------------------------------------------------------------------------

    async def endpoint_of(self, segment: str) -> tuple[str, int]:
        async def answered(life: Life) -> tuple[str, int]:
            return life.node.map.endpoint_of(segment)

        return await self._call(self._asked.choice(self._hosts), answered)

    async def reach(self, work: Callable[[Serving], Awaitable[T]]) -> T:
        """Ask any server, which forwards the client to the controller or is it."""

        async def done(life: Life) -> T:
            async with life.node.proxy._active.call():
                life.controller  # noqa: B018 - or it is elsewhere
                return await life.node.proxy._active.checked(work(life))

        async def where(life: Life) -> str:
            return life.node.controller_elsewhere()

        host = self._asked.choice(self._hosts)
        if address := await self._call(host, where):
            host = next(host for host in self._hosts if address.startswith(f"{host.name}:"))
        return await self._call(host, done)

    async def _call(self, host: ClusterHost, work: Callable[[Life], Awaitable[T]]) -> T:
        async def done() -> T:
            assert host.life is not None
            return await work(host.life)

        return await self.network.call(host.process, host.name, done)

    async def rpc(self, name: str, request: Any, timeout_s: float) -> Any:
        """Send an RPC to any server, as through a load balancer."""
        channel = self.channels.to(f"{self._asked.choice(self._hosts).name}:{RPC_PORT}")
        kind = (OWN_METHODS.get(name) or METHODS[name])[1]
        reply = await channel.unary_unary(path(name))(request.SerializeToString(), timeout=timeout_s)
        return kind.FromString(reply)

    def record(self, number: int) -> ContainerRecord:
        """Return the store's record of a container."""
        stored = self.store.objects.get(name_of(number))
        return ContainerRecord() if stored is None else decoded(number, VersionedValue(stored.value, ""))

    # --- without a network ----------------------------------------------------------------------------------

    async def until_ready(self) -> None:
        """Wait until the cluster is ready, without faults; GuaranteeError if it takes so long that it never will be."""
        start = self.loop.now
        while not self._active():
            if self.failure is not None:
                raise self.failure
            if self.loop.now >= start + CALM_S:
                raise GuaranteeError(f"the cluster lacks a controller after {CALM_S:.0f} s without faults")
            await asyncio.sleep(0.5)

    async def run(self, work: Callable[[Serving], Coroutine[Any, Any, T]]) -> T:
        await self.until_ready()
        life = self._active()[-1]
        return await life.process.start(work(life))

    def _active(self) -> list[Life]:
        """Return the lives with the controller, without deposed ones that haven't noticed it yet."""
        candidates = lives(self._hosts, lambda life: life.node.leadership.controller is not None)
        return [life for life in candidates if life.node.reconciler.may_answer(CONTROLLER_CONTAINER)]
