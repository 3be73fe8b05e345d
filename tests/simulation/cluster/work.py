"""A simulation of a cluster from start to end: clients at work, faults of all kinds, and a check of what clients saw.
To see what happened at a seed: script/simulate --cluster SEED --log FILE
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from nadi.cluster.placement import placement
from nadi.segmentstore.recovery import snapshotter

from .. import fate
from ..clients.asking import Asker
from ..clients.groups import Regrouper
from ..clients.inserting import Inserter
from ..days import SCALED, Outcome, at_work, judged, outcome_of
from ..judging.history import GuaranteeError, History
from ..machine.loop import SimulatedLoop, run
from ..machine.process import Process
from .fate import Fate
from .heard import Ear
from .host import Life, lives
from .plots import Plots
from .world import CALM_S, ClusterWorld


def simulate(seed: int | str, seconds: float = 600.0, *, pace: float = 1.0, log_file: Path | None = None) -> Outcome:
    """Raises GuaranteeError, or any other error that must not happen.

    pace: factor by which the mean time of half a minute between faults, and the pauses of clients, are prolonged.
    log_file: gets the last events, whatever the outcome.
    """
    ear = Ear()
    try:
        with ear.open():
            return run(lambda loop: _simulate(loop, f"{seed}", seconds, pace, ear))
    finally:
        if log_file is not None:
            log_file.write_text("\n".join(ear.lines) + "\n")


async def _simulate(loop: SimulatedLoop, seed: str, seconds: float, pace: float, ear: Ear) -> Outcome:
    async with ClusterWorld(loop, seed) as world:
        ear.lines, ear.now = world.last_lines, lambda: loop.now
        try:
            with (
                mock.patch.object(tempfile, "tempdir", str(world.folder)),
                mock.patch.object(snapshotter, "PACE", world.snapshots),
            ):
                outcome = await _lived(world, seconds, pace)
            if ear.errors:
                raise ear.errors[0]
            return outcome
        except BaseException as error:
            again = f"script/simulate --cluster {seed} --minutes {seconds / 60:g} --pace {pace:g} --log {seed}.log"
            error.add_note(f"again: {again}")
            world.note(type(error).__name__, error)
            raise
        finally:
            ear.is_open = False


async def _lived(world: ClusterWorld, seconds: float, pace: float) -> Outcome:
    history, own = History(), Fate(world)

    def inserter(name: str, process: Process) -> Coroutine[Any, Any, None]:
        return Inserter(world, history, name, process).run(20.0 * pace)

    def regrouper(name: str, process: Process) -> Coroutine[Any, Any, None]:
        return Regrouper(world, history, name, f"readers-{name.partition('.')[0]}", process).run(5.0 * pace)

    def asker(name: str, process: Process) -> Coroutine[Any, Any, None]:
        return Asker(world, history, name, process).run(SCALED, 8.0 * pace)

    await at_work(
        world,
        history,
        seconds,
        pace,
        lambda crowd: [
            _watch(world),
            own.run(30.0 * pace),
            Plots(world, history, own.done).run(10.0 * pace, 90.0 * pace),
            fate.network(world, crowd.living, 30.0 * pace),
            fate.clients(world, crowd.living, 30.0 * pace),
        ],
        {
            "inserter-1": inserter,
            "inserter-2": inserter,
            "regrouper-1": regrouper,
            "regrouper-2": regrouper,
            "asker-1": asker,
            "asker-2": asker,
        },
    )
    world.rest()
    await own.last()
    await judged(world, history, "judge-1")
    await _come_to_rest(world)
    await asyncio.gather(*(host.restart(drains=False) for host in world.hosts))
    watermarks = await judged(world, history, "judge-2")
    await _come_to_rest(world)
    return outcome_of(world, history, watermarks, _figures(world, own))


async def _watch(world: ClusterWorld) -> None:
    """Check that two servers never answer reads of the same container."""
    while True:
        await asyncio.sleep(0.1)
        for number in range(world.containers):
            answer = [life.process.name for life in lives(world.hosts, lambda life: True) if _answers(life, number)]
            if len(answer) > 1:
                raise GuaranteeError(f"{answer} all answer reads of container {number}")


def _answers(life: Life, number: int) -> bool:
    has_it = any(container.number == number and container.started for container in life.node.store.containers)
    return has_it and life.node.reconciler.may_answer(number)


async def _come_to_rest(world: ClusterWorld) -> None:
    """Check that each container has one live owner, which has it open and is the right one."""
    try:
        async with asyncio.timeout(CALM_S):
            while _restless(world):  # noqa: ASYNC110
                await asyncio.sleep(1.0)
    except TimeoutError:
        raise GuaranteeError(f"{_restless(world)} after {CALM_S:.0f} s without faults") from None
    if world.failure is not None:
        raise world.failure


def _restless(world: ClusterWorld) -> str:
    living = {host.life.node.id: host.life for host in world.hosts if host.life is not None and host.life.is_ready}
    owners = [order[0] for order in placement(living, world.containers)]
    for number in range(world.containers):
        record = world.record(number)
        if record.owner != owners[number]:
            return f"container {number} belongs to {owners[number]}: {record}"
        owner = living.get(record.owner)
        if record.released or owner is None:
            return f"container {number} lacks an owner: {record}"
        if number not in {container.number for container in owner.node.store.containers if container.started}:
            return f"{owner.process.name} has claimed container {number}, but doesn't have it open"
        if not owner.node.reconciler.may_answer(number):
            return f"{owner.process.name} doesn't answer reads of container {number}"
    return "" if world._active() else "the cluster lacks a controller"


def _figures(world: ClusterWorld, own: Fate) -> Mapping[str, int]:
    store, hosts = world.store, world.hosts
    moves = [*world.moved, *(life.node.reconciler.moves for life in lives(hosts, lambda life: True))]
    counts: Counter[str] = Counter({what.replace("_", " "): count for what, count in own.done.items()})
    counts["servers"] = len(hosts)
    counts["starts"], counts["stops"] = sum(host.starts for host in hosts), sum(host.stops for host in hosts)
    counts["taken over"] = sum(each.taken_over for each in moves)
    counts["handed over"] = sum(each.handed_over for each in moves)
    counts["fenced"] = sum(each.fenced for each in moves)
    counts["epochs"] = sum(world.record(number).epoch for number in range(world.containers))
    counts["requests"], counts["requests lost"] = store.requests, store.lost
    counts["puts that came late"], counts["answers lost"], counts["throttled"] = (
        store.came_late,
        store.unanswered,
        store.refused,
    )
    return counts
