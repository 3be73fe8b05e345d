"""Faults and operator actions in a cluster, and their timing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, cast

from nadi.errors import NadiError
from nadi.segmentstore.container_registry import CONTROLLER_CONTAINER

from ..machine.process import Process
from ..machine.store import Trap
from .host import ClusterHost, Life, lives
from .world import ClusterWorld

_DAY_MS = 24 * 3600 * 1000
_OLD_S = 5.0, 60.0  # age from which the janitor removes objects
_STOPS_S = 3.0, 10.0, 40.0  # the shortest is too short for others to notice


class Fate:
    """world: whose servers are affected. `done`: counts of faults and actions."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world, self.done = world, Counter[str]()
        self._chance = world.chance("fate")
        self._work: set[asyncio.Task[None]] = set()
        self._kinds: list[tuple[float, Callable[[ClusterHost], None]]] = [
            (20, self.kill),
            (3, self.kill_all),
            (40, self.set_trap),
            (6, self.power),
            (20, self.pause),
            (10, self.cut_from_store),
            (3, self.store_down),
            (6, self.store_slow),
            (4, self.throttle),
            (5, self.storm),
            (4, self.fill_disk),
            (6, self.set_clock),
            (5, self.drain),
            (8, self.restart),
            (5, self.rebalance),
            (6, self.clean),
            (2, self.rolling),
        ]

    async def run(self, mean_s: float) -> None:
        """Run endlessly; raises the error that kept a server from starting, or that must never happen."""
        chance, world = self._chance, self.world
        weights = [weight * chance.choice([0.2, 1.0, 3.0]) for weight, _ in self._kinds]  # differ by seed
        world.store.faults = world.faults
        while True:
            await asyncio.sleep(chance.expovariate(1 / mean_s))
            if world.failure is not None:
                raise world.failure
            _, what = chance.choices(self._kinds, weights)[0]
            self.done[what.__name__] += 1
            what(chance.choice(world.hosts))

    def _some_s(self, *mosts: float) -> float:
        return self._chance.choice(mosts) * self._chance.random()

    # --- faults -----------------------------------------------------------------------------------------

    def kill(self, host: ClusterHost) -> None:
        host.kill()

    def kill_all(self, host: ClusterHost) -> None:
        """Kill all servers at once, so that no memory survives."""
        for one in self.world.hosts:
            one.kill(with_power=self._chance.random() < 0.5)

    def power(self, host: ClusterHost) -> None:
        host.kill(with_power=True)

    def pause(self, host: ClusterHost) -> None:
        host.pause(self._some_s(0.5, 6.0, 30.0))

    def set_trap(self, host: ClusterHost) -> None:
        """Set a trap for the next process that claims a container, or changes or reads its record."""
        if self.world.store.trap is not None:
            return
        what = self._chance.choice(["claim containers/", "set containers/", "get containers/"])
        self.world.store.trap = Trap(lambda _, asked: asked.startswith(what), self._trapped)

    def _trapped(self, process: Process, what: str) -> None:
        """Freeze or kill a process at the worst moment."""
        host = next((host for host in self.world.hosts if host.life is not None and host.life.process is process), None)
        if host is None:
            return
        self.done["trapped"] += 1
        self.world.note("trapped", host.name, what)
        if self._chance.random() < 0.2:
            self.world.loop.at(self.world.loop.now, host.kill)
        else:
            seconds = self._chance.choice(_STOPS_S) * (0.5 + self._chance.random())
            self.world.loop.at(self.world.loop.now, process.pause, seconds)  # it is currently running

    def cut_from_store(self, host: ClusterHost) -> None:
        self.world.store.cut_off(host.name, self._some_s(1.0, 6.0, 30.0))

    def store_down(self, host: ClusterHost) -> None:
        self.world.store.fail(self._some_s(2.0, 8.0, 30.0))

    def store_slow(self, host: ClusterHost) -> None:
        self.world.store.slow(self._some_s(5.0, 30.0), self._chance.choice([5.0, 20.0, 60.0]))

    def throttle(self, host: ClusterHost) -> None:
        self.world.store.throttle(self._some_s(2.0, 20.0))

    def storm(self, host: ClusterHost) -> None:
        """Lose or delay many of the store's requests for a while."""
        faults, seconds = self.world.store.faults, self._some_s(5.0, 20.0)
        before = faults.request_lost, faults.answer_lost, faults.late, faults.busy
        if max(before) > 0.05:
            return
        faults.request_lost, faults.answer_lost, faults.late, faults.busy = (
            self._chance.choice([0.0, 0.2, 0.4]) for _ in before
        )
        self.world.note("storm", f"{seconds:.3f}", faults.request_lost, faults.answer_lost, faults.late)

        def over() -> None:
            faults.request_lost, faults.answer_lost, faults.late, faults.busy = before

        self.world.loop.at(self.world.loop.now + seconds, over)

    def fill_disk(self, host: ClusterHost) -> None:
        host.fill_disk(self._some_s(3.0, 30.0))

    def set_clock(self, host: ClusterHost) -> None:
        host.set_clock(self._chance.randrange(-_DAY_MS, _DAY_MS))

    # --- actions of an operator ---------------------------------------------------------------------------

    def drain(self, host: ClusterHost) -> None:
        """Drain a server like the REST call: it has no containers until it is restarted."""
        life = host.life
        if life is None or not life.is_ready:
            return
        self.world.note("is drained", host.name)
        life.process.call_soon(_drain, life)

        async def ended() -> None:
            await asyncio.sleep(self._some_s(10.0, 60.0))
            if host.life is life:
                await host.restart(drains=True)

        self._spawn(ended())

    def restart(self, host: ClusterHost) -> None:
        self._spawn(host.restart(drains=self._chance.random() < 0.8))

    def rolling(self, host: ClusterHost) -> None:
        async def each() -> None:
            for one in self.world.hosts:
                await one.restart(drains=True)
                await asyncio.sleep(self._some_s(10.0))

        self._spawn(each())

    def rebalance(self, host: ClusterHost) -> None:
        life = host.life
        if life is not None and life.is_ready:
            self.world.note("rebalances", host.name)
            life.process.call_soon(life.node.reconciler.rebalance)

    def clean(self, host: ClusterHost) -> None:
        """Run the janitor at the server that has, or believes to have, container 0."""
        older_s = self._chance.choice(_OLD_S)
        for life in lives(self.world.hosts, lambda life: life.node.map.controller(life.node.id) is None):
            if CONTROLLER_CONTAINER in {container.number for container in life.node.store.containers}:
                self.world.note("cleans", life.process.name, older_s)
                life.process.start(_cleaned(life.node.janitor(older_s=older_s).clean()))

    async def last(self) -> None:
        """Let all started actions end; then remove everything unneeded, and kill some or all servers."""
        if self._work:
            await asyncio.wait(self._work)
        await self.world.until_ready()
        await self.world.run(lambda life: _cleaned(cast("Life", life).node.janitor(older_s=0.0).clean()))
        if self._chance.random() < 0.5:
            self.kill_all(self.world.hosts[0])
        else:
            self._chance.choice(self.world.hosts).kill()

    # --- long actions ---------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.hosts[0].failure = error


def _drain(life: Life) -> None:
    try:
        life.node.operator.drain()
    except NadiError:
        pass  # no other server accepts containers


async def _cleaned(cleaning: Coroutine[Any, Any, object]) -> None:
    try:
        await cleaning
    except (NadiError, TimeoutError, OSError):
        pass  # left to a later cleaning
