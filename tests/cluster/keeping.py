"""A server that claims containers and gives them away, and nothing else: what a lease and placement are to be used by.

Of a container there is only its record. A server serves a container from when it has set its record, until it lets go
of it or learns that it was replaced; and reads are answered while its lease is valid.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from nadi.cluster.placement import Claim, Holding, Release, decisions, placement
from nadi.errors import UnavailableError
from tests.simulation.machine.loop import SimulatedLoop

from .support import Cluster, Node

CONTAINERS = 6


class Record(msgspec.Struct, frozen=True):
    epoch: int = 0
    owner: str = ""
    released_to: str = ""
    nonce: str = ""


class Keeper:
    def __init__(self, node: Node) -> None:
        self.node, self.membership, self._registry, self._clock = node, node.membership, node.registry, node.clock
        self.served: dict[int, int] = {}  # containers by the epoch that they were claimed with
        self._holdings: dict[int, Holding] = {}
        self._term = 1
        node.process.start(self._run())

    def answers_reads(self, container: int) -> bool:
        return container in self.served and self.membership.lease_is_valid()

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(0.2)
            try:
                await self._step()
            except (UnavailableError, TimeoutError):
                pass

    async def _step(self) -> None:
        if self.membership.term > self._term:
            await self._renew(self.membership.term)
        for container in range(CONTAINERS):
            await self._read(container)
        self.membership.name({name for one in self._holdings.values() for name in (one.owner, one.released_to) if name})
        for one in decisions(self.membership.view(self._holdings, CONTAINERS)):
            match one:
                case Claim(container, epoch, version):
                    holding = self._holdings[container]
                    if not holding.owner or holding.released_to or await self.membership.is_dead(holding.owner):
                        await self._set(container, epoch, version)
                case Release(container, target):
                    epoch = self.served.pop(container, 0)
                    if epoch:
                        await self._set(container, epoch, self._holdings[container].version, released_to=target)

    async def _renew(self, term: int) -> None:
        for container in list(self.served):
            epoch = self.served.pop(container)
            holding = await self._look(container)
            if holding.owner == self.node.name and holding.epoch == epoch and not holding.released_to:
                await self._set(container, epoch, holding.version)
        self._term = term
        self.membership.affirm(term)

    async def _read(self, container: int) -> None:
        holding = self._holdings[container] = await self._look(container)
        is_mine = holding.owner == self.node.name and not holding.released_to
        if not is_mine or self.served.get(container, holding.epoch) != holding.epoch:
            self.served.pop(container, None)
        elif container not in self.served:  # claimed by a call that wasn't answered, or in an earlier term
            await self._set(container, holding.epoch, holding.version)

    async def _look(self, container: int) -> Holding:
        async with asyncio.timeout(5.0):
            entry = await self._registry.get(f"containers/{container}")
        known, now = self._holdings.get(container), self._clock.monotonic()
        if known is not None and known.version == (entry.version if entry else None):
            return known
        if entry is None:
            return Holding(None, 0, now)
        record = msgspec.json.decode(entry.value, type=Record)
        return Holding(entry.version, record.epoch, now, record.owner, record.released_to)

    async def _set(self, container: int, epoch: int, version: str | None, released_to: str = "") -> None:
        term = self.membership.term
        record = Record(epoch, self.node.name, released_to, self._clock.unique())
        name = f"containers/{container}"
        async with asyncio.timeout(5.0):
            new = await self._registry.compare_and_set(name, msgspec.json.encode(record), version)
        if new is None:
            return
        self._holdings[container] = Holding(new, epoch, self._clock.monotonic(), self.node.name, released_to)
        if not released_to and self.membership.term == term:
            self.served[container] = epoch


@dataclass(slots=True)
class Outcome:
    """What happened in a story."""

    claims: int = 0
    deaths: int = 0
    terms: int = 0


class TwoReadersError(Exception):
    """Two servers answer reads of one container."""


class Story:
    """Servers that are killed, paused, suspended, cut off and drained, by a registry that loses and delays calls."""

    def __init__(self, loop: SimulatedLoop, seed: int, stale_s: float = 0.0) -> None:
        self.cluster, self._chance, self._stale_s = Cluster(loop, seed), random.Random(seed), stale_s
        self.cluster.records.keeps_history = stale_s > 0
        self.keepers: dict[str, Keeper] = {}
        self._names = (f"s{number}" for number in itertools.count())
        self.outcome = Outcome()

    async def tell(self, seconds: float) -> Outcome:
        for _ in range(4):
            self._add()
        end = self.cluster.loop.now + seconds
        while self.cluster.loop.now < end:
            self._disturb()
            await self.cluster.watch(self._chance.random() * 6.0, self._check, 0.02)
        for keeper in self.keepers.values():
            self._calm(keeper.node)
        await self.cluster.watch(90.0, self._check, 0.05)
        self._check_balance()
        self.outcome.claims = sum(self._record(container).epoch for container in range(CONTAINERS))
        self.outcome.terms = sum(keeper.membership.term for keeper in self.keepers.values())
        return self.outcome

    def _add(self) -> None:
        (node,) = self.cluster.add(next(self._names), rate=0.9 + 0.2 * self._chance.random(), stale_s=self._stale_s)
        self._calm(node)
        self.keepers[node.name] = Keeper(node)

    def _calm(self, node: Node) -> None:
        faults = node.faults
        faults.before_s = faults.after_s = 0.02
        faults.spread, faults.lost, faults.unanswered, faults.late = 1.0, 0.0, 0.0, 0.0
        faults.hangs, faults.failing = False, set()

    def _disturb(self) -> None:
        keeper = self._chance.choice(list(self.keepers.values()))
        node, chance = keeper.node, self._chance
        faults = node.faults
        what = chance.choice(["kill", "leave", "drain", *3 * ["pause", "suspend", "slow", "lossy", "cut", "calm"]])
        match what:
            case "kill" | "leave" | "drain" if len(self.keepers) > 2:
                del self.keepers[node.name]
                self.outcome.deaths += 1
                if what == "kill":
                    node.kill()
                elif what == "leave":
                    keeper.served.clear()
                    node.process.start(node.membership.leave())
                else:
                    node.membership.drain()
                    self.keepers[node.name] = keeper
                    self.outcome.deaths -= 1
                self._add()
            case "pause" | "suspend" if node.clock.opened.is_set():
                self.cluster.loop.create_task(node.pause(chance.random() * 8.0, suspended=what == "suspend"))
            case "slow":
                faults.before_s, faults.after_s = chance.random() ** 2 * 3.0, chance.random() ** 2 * 3.0
            case "lossy":
                faults.lost, faults.unanswered, faults.late = (0.4 * chance.random() for _ in range(3))
                faults.late_s = 6.0
            case "cut":
                faults.failing = set(chance.sample(["put", "list", "get", "compare_and_set"], 2))
            case _:
                self._calm(node)

    def _check(self) -> None:
        for container in range(CONTAINERS):
            readers = [name for name, keeper in self.keepers.items() if keeper.answers_reads(container)]
            if len(readers) > 1:
                raise TwoReadersError(f"at {self.cluster.loop.now:.3f} s {readers} all read container {container}")

    def _check_balance(self) -> None:
        """Placement is what there is."""
        live = [
            name for name, keeper in self.keepers.items() if not keeper.membership.view({}, 1).servers[name].is_draining
        ]
        wanted = [order[0] for order in placement(live, CONTAINERS)]
        found = [self._record(container).owner for container in range(CONTAINERS)]
        assert found == wanted, f"{found} have the containers, and not {wanted}"
        for container, name in enumerate(wanted):
            assert self.keepers[name].answers_reads(container), f"{name} has {container}, and doesn't read from it"

    def _record(self, container: int) -> Record:
        return msgspec.json.decode(self.cluster.records.values[f"containers/{container}"].value, type=Record)


def tell(
    seed: int, seconds: float = 120.0, stale_s: float = 0.0
) -> Callable[[SimulatedLoop], Coroutine[Any, Any, Outcome]]:
    return lambda loop: Story(loop, seed, stale_s).tell(seconds)
