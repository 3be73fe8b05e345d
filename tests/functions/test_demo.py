"""From zero workers to many and back, with a real service as target, while instances are killed: the guide's claims,
counted. The short form has one kill; the long one, `-m slow -s`, prints its measurements."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from nadi.client.aio import StreamManager
from nadi.functions import Function, TargetAddress
from nadi.testing import RestartableServer

from .service import Answer, Service, serving
from .support import streams, until_handled, until_workers, write

RANGES = [(i / 8, (i + 1) / 8) for i in range(8)]


@dataclass
class Demo:
    """Instances of one function, as processes of the command."""

    server: RestartableServer
    function: Function
    processes: list[asyncio.subprocess.Process]

    async def start(self) -> None:
        assert self.function.target is not None
        words = ["--scope", self.function.scope, "--stream", "in", "--name", self.function.name, "--idle", "1"]
        words += ["--target", self.function.target.url, "--mode", "batched", "--max", "8", "--batch", "10"]
        command = [sys.executable, "-m", "nadi.cli.app", "function", "run", *words]
        environment = {**os.environ, "NADI_CONTROLLER": self.server.controller_uri}
        log = asyncio.subprocess.DEVNULL
        self.processes.append(await asyncio.create_subprocess_exec(*command, env=environment, stderr=log))

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        self.processes.remove(process)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def demo(server: RestartableServer, scope: str, service: Service) -> AsyncIterator[Demo]:
    shown = Demo(server, Function(scope=scope, stream="in", target=TargetAddress(service.url), name="demo"), [])
    try:
        yield shown
    finally:
        for process in list(shown.processes):
            await shown.kill(process)


async def until_received(service: Service, count: int, timeout_s: float = 300.0) -> None:
    """Wait until that many distinct events have arrived."""
    async with asyncio.timeout(timeout_s):
        while True:
            if len(service.ids) >= count:
                return
            await asyncio.sleep(0.02)


async def sample(manager: StreamManager, function: Function, counts: dict[int, float]) -> None:
    """Record the number of workers, and when each number was first reached, until cancelled."""
    began = time.monotonic()
    group = await manager.reader_group_manager(function.scope).get_reader_group(function.name)
    while True:
        counts.setdefault(len(await group.online_readers()), time.monotonic() - began)
        await asyncio.sleep(0.05)


async def shown(server: RestartableServer, manager: StreamManager, scope: str, events: int, kills: int) -> str:
    await streams(manager, scope, 1)
    chance = random.Random(kills)
    counts: dict[int, float] = {}
    with serving(Service(lambda events, count: Answer(after_s=0.3))) as service:
        async with demo(server, scope, service) as shown:
            await shown.start()
            await until_handled(manager, shown.function, 0)
            await until_workers(manager, shown.function, 0, 0)
            began = time.monotonic()
            await write(manager, scope, 0, 1)
            await until_received(service, 1)
            from_zero_s = time.monotonic() - began

            await manager.scale_stream(scope, "in", [0], RANGES)
            await shown.start()
            sampling = asyncio.create_task(sample(manager, shown.function, counts))
            for number in range(kills):
                first, last = 1 + events * number // kills, 1 + events * (number + 1) // kills
                writing = asyncio.create_task(write(manager, scope, first, last))
                await asyncio.sleep(chance.random() * 2 / kills if kills == 1 else chance.random())
                await shown.kill(chance.choice(shown.processes))
                await shown.start()
                await writing
            try:
                await until_received(service, 1 + events)
            finally:
                sampling.cancel()
            began = time.monotonic()
            await until_workers(manager, shown.function, 0, 0)
            to_zero_s = time.monotonic() - began
        seen: set[str] = set()
        last_of: dict[str, int] = {}
        for event, data in zip(service.events, service.data(), strict=True):
            if event.get_id() not in seen:
                seen.add(str(event.get_id()))
                key, number_of = data.decode().split()
                assert int(number_of) > last_of.get(key, -1)
                last_of[key] = int(number_of)
        assert len(seen) == 1 + events
        assert max(counts) > 1
        again = len(service.events) - len(seen)
        most = min(max(counts), 8)  # killed workers count until they are found dead
        to_many_s = min(after_s for count, after_s in counts.items() if count >= most)
    return (
        f"{events:,} events, {kills} kills: the first after {from_zero_s:.2f} s; {most} workers after "
        f"{to_many_s:.1f} s; none {to_zero_s:.1f} s after the last event; {again:,} came again"
    )


@pytest.mark.slow
async def test_workers_scale_up_and_down_with_a_kill(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str
) -> None:
    print(await shown(nadi_server, manager, nadi_scope, 600, 1))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_workers_scale_up_and_down_with_many_kills(
    nadi_server: RestartableServer, manager: StreamManager, nadi_scope: str
) -> None:
    print(await shown(nadi_server, manager, nadi_scope, 20_000, 30))
