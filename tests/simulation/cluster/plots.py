"""Worst cases of a cluster, each a sequence of several well-timed faults: some rules matter only there, and random
faults would rarely reach them.

A plot is omniscient. It waits for its preconditions for a while, then gives up; every fault it injects could happen to
any cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from nadi.controller.controller import Controller
from nadi.errors import NadiError
from nadi.naming import READER_GROUP_PREFIX
from nadi.segmentstore.chain.layout import FRAME, ChainPosition, Header
from nadi.segmentstore.chain.layout import name_of as name_in_log
from nadi.segmentstore.tier2 import records
from nadi.wire import commands as wire

from ..clients.changing import replacement
from ..days import SCALED
from ..judging.history import History
from ..machine.process import Process
from ..machine.store import Trap
from .host import ClusterHost, Life
from .world import ClusterWorld

_LOOKS_S = 0.05
_CLAIMS = "claim ", "put "  # a mutation may put a record instead of claiming it
_SCALES_S = 3.0
_BEFORE = 0.4  # share of processes frozen before their claim
_SOON_S, _LONG_S = 12.0, 30.0  # time limits
_TIMED = "_system/_tables/timed"  # changed by the last step of a stream's deletion
_AHEAD = 40  # objects of a log after the deleted ones
_KINDS = "delete", "delete_group", "scale", "seal"


class Plots:
    """done: counts of plots."""

    def __init__(self, world: ClusterWorld, history: History, done: Counter[str]) -> None:
        self._world, self._history, self._done = world, history, done
        self._chance = world.chance("plots")

    async def run(self, first_s: float, mean_s: float) -> None:
        """Run plots endlessly, the first within first_s; some seeds have none."""
        chance = self._chance
        plots: list[Callable[[], Awaitable[bool]]] = [self.takeover, self.deposed, self.stopped_at_work, self.takeover]
        if chance.random() < 0.1:
            return
        await asyncio.sleep(first_s * chance.random())
        while True:
            plot = chance.choice(plots)
            name = plot.__name__.replace("_", " ")
            self._done[f"plotted {name}"] += 1
            self._world.note("plots", name)
            self._done[name] += await plot()
            await asyncio.sleep(chance.expovariate(1 / mean_s))

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        for _ in range(int(seconds / _LOOKS_S)):
            if is_so():
                return True
            await asyncio.sleep(_LOOKS_S)
        return is_so()

    # --- an overtaken takeover ------------------------------------------------------------------------------

    async def takeover(self) -> bool:
        """A server dies. The process that claims one of its containers freezes before the claim, or before it reads the
        log, until another has taken that container over and released the log past the first one's starting point. Then
        the first resumes, and can't read the records for a while; or the other one dies."""
        world, store, claimed = self._world, self._world.store, list[tuple[Process, int, ChainPosition]]()
        if not await self._until(lambda: bool(self._owners()), _SOON_S):
            return False

        is_before = self._chance.random() < _BEFORE

        def takes(process: Process, what: str) -> bool:
            number = _container_of(what)
            return what.startswith(_CLAIMS) and number is not None and self._has_frames(number)

        def meets(process: Process, what: str) -> None:
            number = _container_of(what)
            assert number is not None
            later_s = 0.0 if is_before else 0.1 + 0.9 * self._chance.random()  # while it fetches the state
            claimed.append((process, number, world.record(number).start.place))
            if not is_before:
                store.hide(process.name, "log", later_s)
            world.loop.at(world.loop.now + later_s, process.pause, _LONG_S)

        trap = store.trap = Trap(takes, meets, is_before=is_before)
        self._chance.choice(self._owners()).kill()
        if not await self._until(lambda: bool(claimed), _SOON_S):
            if store.trap is trap:
                store.trap = None
            return False
        (process, number, start), epoch = claimed[0], world.record(claimed[0][1]).epoch

        def is_overtaken() -> bool:
            remaining = (
                name_in_log(number, ChainPosition(start.epoch, start.number + n)) in store.objects
                for n in range(_AHEAD)
            )
            return world.record(number).epoch > epoch and sum(remaining) <= 1  # a seal

        reached = await self._until(is_overtaken, _LONG_S)
        await asyncio.sleep(self._chance.random())
        if not is_before:
            store.hide(process.name, "containers", 3.0 + 6.0 * self._chance.random())
        owner = world.record(number).owner
        self._world.note("goes on", process.name, number, reached)
        process.wake()
        if is_before:
            await asyncio.sleep(0.1 + 0.5 * self._chance.random())
            for host in world.hosts:
                if host.life is not None and host.life.node.id == owner:
                    host.kill()
        return reached

    def _owners(self) -> list[ClusterHost]:
        """Return the owners of containers whose logs have new frames; once per container."""
        world = self._world
        living = {host.life.node.id: host for host in world.hosts if host.life is not None and host.life.is_ready}
        owners = [world.record(number).owner for number in range(world.containers) if self._has_frames(number)]
        return [living[owner] for owner in owners if owner in living]

    def _has_frames(self, number: int) -> bool:
        """Return whether a container's log has frames that its snapshot lacks."""
        start = self._world.record(number).start.place
        stored = self._world.store.objects.get(name_in_log(number, start))
        header = Header.decode(memoryview(stored.value), number, start) if stored is not None else None
        return header is not None and header.kind == FRAME

    # --- a deposed controller ---------------------------------------------------------------------------------

    async def deposed(self) -> bool:
        """The server with the controller loses the store, for long enough that another one gets a controller and scales
        a stream; clients ask both."""
        active = self._world._active()
        if not active:
            return False
        former, store = active[0], self._world.store
        store.cut_off(former.process.name, _SOON_S + _LONG_S)
        reached = await self._until(lambda: self._other_than(former) is not None, _SOON_S)
        for _ in range(3 if reached else 0):
            if (successor := self._other_than(former)) is not None:
                scaling = successor.process.start(_scaled(successor.controller, self._chance))
                await asyncio.wait([scaling], timeout=_SCALES_S)
                if scaling.done() and not scaling.cancelled():
                    scaling.result()
            await asyncio.sleep(1.0 + 2.0 * self._chance.random())
        store.is_back(former.process.name)
        return reached

    def _other_than(self, former: Life) -> Life | None:
        """Return a life that has a controller instead of the former."""
        return next((life for life in self._world._active() if life is not former), None)

    # --- a controller that freezes in the middle of its work --------------------------------------------------

    async def stopped_at_work(self) -> bool:
        """The controller freezes right before it drops the table of a reader group that it deletes, until another has
        done so, and clients have recreated and used the group; or after any of its commands, for a while."""
        if self._chance.random() < 0.3:
            return await self._stopped_anywhere(6.0 + 12.0 * self._chance.random())
        stopped: list[tuple[ClusterHost, Process, str]] = []

        def stands_still(host: ClusterHost, command: wire.Command) -> float:
            stream = _struck_off(command)
            if stopped or host.life is None or READER_GROUP_PREFIX not in stream:
                return 0.0
            stopped.append((host, host.life.process, stream))
            return _LONG_S

        if not await self._stop(stands_still, stopped):
            return False
        host, process, stream = stopped[0]
        reached = await self._until(lambda: bool(self._history.retained.get(stream)), _LONG_S - 2.0)
        await asyncio.sleep(self._chance.random())
        self._world.note("goes on", host.name, stream, reached)
        process.wake()
        return reached

    async def _stopped_anywhere(self, seconds: float) -> bool:
        stopped: list[ClusterHost] = []
        commands = self._chance.randrange(1, 25)

        def stands_still(host: ClusterHost, command: wire.Command) -> float:
            nonlocal commands
            controller = host.life.node.leadership.controller if host.life is not None and host.life.is_ready else None
            if controller is None or not any(
                kind in kinds for kinds in controller._flow._pending.values() for kind in _KINDS
            ):
                return 0.0
            commands -= 1
            if commands or stopped:
                return 0.0
            stopped.append(host)
            return seconds

        return await self._stop(stands_still, stopped) and not await self._until(lambda: False, seconds)

    async def _stop(self, stands_still: Callable[[ClusterHost, wire.Command], float], stopped: list[Any]) -> bool:
        hosts = self._world.hosts
        for host in hosts:
            host.stands_still = partial(stands_still, host)
        try:
            return await self._until(lambda: bool(stopped), _SOON_S)
        finally:
            for host in hosts:
                host.stands_still = None


def _container_of(what: str) -> int | None:
    """Return the container whose record a store request is about."""
    number = what.rpartition(" ")[2].removeprefix(records.FOLDER)
    return int(number) if number.isdecimal() else None


def _struck_off(command: wire.Command) -> str:
    """Return the stream whose deletion reaches its last step with that command, if any."""
    if isinstance(command, wire.RemoveTableKeys) and command.segment == _TIMED:
        return bytes(command.keys[0].key).decode()
    return ""


async def _scaled(controller: Controller, chance: random.Random) -> None:
    with contextlib.suppress(NadiError):
        segments = await controller.current_segments(SCALED)
        await controller.scale(SCALED, *replacement(segments, chance))
