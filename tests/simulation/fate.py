"""Faults and their timing: servers and clients die or freeze; links are cut, slowed and reset; disks fail; wall clocks
are set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .machine.process import Process
from .server import OneServer
from .world import World

_DAY_MS = 24 * 3600 * 1000


async def servers(world: OneServer, mean_s: float) -> None:
    """Inject faults of servers and their disks; raises the error that kept a server from starting."""
    chance = world.chance("fate")
    for server in world.hosts:
        server.faults.frame_fails, server.faults.put_fails = 0.0005, 0.01
    while True:
        await asyncio.sleep(chance.expovariate(1 / mean_s))
        if world.failure is not None:
            raise world.failure
        server, what = chance.choice(world.hosts), chance.random()
        if what < 0.6:
            server.faults.kill_due = chance.randrange(40)
        elif what < 0.7:
            server.kill(with_power=True)
        elif what < 0.9:
            server.pause(chance.choice([0.3, 3.0, 20.0]) * chance.random())
        else:
            server.faults.tier2_away(chance.choice([3.0, 30.0]) * chance.random())
        if chance.random() < 0.2:
            server.set_clock(chance.randrange(-_DAY_MS, _DAY_MS))


async def network(world: World, clients: Callable[[], list[Process]], mean_s: float) -> None:
    """Inject faults between servers and clients, and between servers."""
    chance = world.chance("weather")
    while True:
        await asyncio.sleep(chance.expovariate(1 / mean_s))
        server = chance.choice(world.hosts).name
        hosts = sorted({process.name for process in clients()} | {server.name for server in world.hosts})
        others = [name for name in hosts if name != server]
        if not others:
            continue
        other, what, seconds = chance.choice(others), chance.random(), chance.choice([1.0, 10.0, 60.0])
        seconds *= chance.random()
        if what < 0.3:
            one, other = chance.choice([(server, other), (other, server)])
            world.network.cut(one, other, seconds, both=chance.random() < 0.5)
        elif what < 0.5:
            world.network.reset(server, other)
        elif what < 0.8:
            world.network.stall(server, 0.5, lambda: chance.choice([1.0, 10.0, 60.0]) * chance.random())
        else:
            world.network.slow(server, other, seconds, 0.5 * chance.random(), chance.choice([2e3, 2e4, 1e9]))


async def clients(world: World, living: Callable[[], list[Process]], mean_s: float) -> None:
    """Kill or freeze one client at a time."""
    chance = world.chance("clients' fate")
    while True:
        await asyncio.sleep(chance.expovariate(1 / mean_s))
        if not (processes := living()):
            continue
        process = chance.choice(processes)
        if chance.random() < 0.5:
            world.note("killed", process.name)
            process.kill(with_power=chance.random() < 0.3)
        else:
            seconds = chance.choice([0.3, 3.0, 30.0]) * chance.random()
            world.note("paused", process.name, f"{seconds:.3f}")
            process.pause(seconds)
