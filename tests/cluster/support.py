"""Simulated servers, each with its own clock and registry, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from nadi.cluster.membership import Load, Membership
from nadi.cluster.membership_view import MembershipPace, ServerMember
from nadi.runtime import Runtime
from tests.simulation.machine.loop import SimulatedLoop
from tests.simulation.machine.process import Process
from tests.support.memory_registry import Faults, MemoryRecords, MemoryRegistry


class ServerClock(Runtime):
    """Clock of one server, `rate` times as fast as the loop's. Sleeping servers continue only while `opened` is set."""

    def __init__(self, loop: SimulatedLoop, seed: int, rate: float = 1.0) -> None:
        self._loop, self._random, self._rate = loop, random.Random(seed), rate
        self._start = self._random.random() * 1e6
        self.suspended_s = 0.0
        self.opened = asyncio.Event()
        self.opened.set()

    def now_ms(self) -> int:
        return int(self._loop.now * 1000)

    def monotonic(self) -> float:
        return self._start + self._rate * (self._loop.now - self.suspended_s)

    def boottime(self) -> float:
        return self._start + self._rate * self._loop.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)
        await self.opened.wait()

    def chance(self) -> float:
        return self._random.random()

    def unique(self) -> str:
        return f"{self._random.getrandbits(128):032x}"


class Node:
    """Server of the simulated cluster: its membership, registry, clock and process."""

    def __init__(self, cluster: Cluster, name: str, rate: float, faults: Faults, **more: Any) -> None:
        self.name, self.loop, self._nodes = name, cluster.loop, cluster.nodes
        seed = cluster.chance.getrandbits(32)
        self.clock = ServerClock(cluster.loop, seed, rate)
        self.registry = MemoryRegistry(cluster.records, faults, seed=seed)
        self.registry.opened = self.clock.opened
        self.faults = self.registry.faults
        self.changes = 0
        self.load = Load()
        member = ServerMember(
            id=name, store=f"{name}:12345", controller=f"{name}:9090", rest="", version="1", started_ms=0
        )
        self.membership = Membership(
            self.registry, member, runtime=self.clock, load=lambda: self.load, on_change=self._on_change, **more
        )
        self.process = Process(cluster.loop, name, random.Random(seed))
        self.on_change: Callable[[], None] = lambda: None
        self.process.start(self._start())

    async def _start(self) -> None:
        self.membership.start()

    def _on_change(self) -> None:
        self.changes += 1
        self.on_change()

    def kill(self) -> None:
        self.process.kill()

    async def pause(self, seconds: float, *, suspended: bool = False) -> None:
        """Pause the server; `suspended` also stops its monotonic clock."""
        self.clock.opened.clear()
        await asyncio.sleep(seconds)
        if suspended:
            self.clock.suspended_s += seconds
        if self.process.is_alive:
            self.clock.opened.set()

    def sees(self) -> dict[str, bool]:
        """Return whether each server is alive in this one's view."""
        return {name: peer.is_alive for name, peer in sorted(self.membership.members.items())}

    def alive(self) -> set[str]:
        return {name for name, is_alive in self.sees().items() if is_alive}

    def knows_all(self) -> bool:
        """Return whether the server has joined, and read all other servers' entries."""
        members = self.membership.members
        return (
            self.name in members
            and members.keys() == self._nodes.keys()
            and None not in [peer.member for peer in members.values()]
        )

    def dead(self) -> set[str]:
        return {name for name, is_alive in self.sees().items() if not is_alive}


class Cluster:
    def __init__(self, loop: SimulatedLoop, seed: int = 1, pace: MembershipPace | None = None) -> None:
        self.loop, self.records, self.chance, self.pace = loop, MemoryRecords(), random.Random(seed), pace
        self.nodes: dict[str, Node] = {}

    def add(self, *names: str, rate: float = 1.0, **faults: Any) -> list[Node]:
        added = [Node(self, name, rate, Faults(**faults), pace=self.pace) for name in names]
        self.nodes.update((node.name, node) for node in added)
        return added

    async def watch(self, seconds: float, look: Callable[[], None], every_s: float = 0.05) -> None:
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            look()
            await asyncio.sleep(every_s)
