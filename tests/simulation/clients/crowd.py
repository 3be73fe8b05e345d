"""Clients at work: each role is played by a sequence of processes, which are killed like servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..judging.history import History
from ..machine.process import Process
from ..world import World

Role = Callable[[str, Process], Coroutine[Any, Any, None]]
"""A client's endless work, by its name and in its process."""


class Crowd:
    """All roles of a simulation. roles: by name."""

    def __init__(self, world: World, history: History, roles: dict[str, Role]) -> None:
        self._world, self._history, self._roles = world, history, roles
        self._processes: dict[str, Process] = {}

    def living(self) -> list[Process]:
        return [process for process in self._processes.values() if process.is_alive]

    async def work(self, seconds: float, *fates: Awaitable[None]) -> None:
        """Let all roles and faults run for that time; raises the first failure."""
        tasks = [asyncio.ensure_future(fate) for fate in fates]
        tasks += [asyncio.create_task(self._play(name, role)) for name, role in self._roles.items()]
        try:
            done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for process in self._processes.values():
                process.kill()

    async def _play(self, name: str, role: Role) -> None:
        chance = self._world.chance(f"lives of {name}")
        life = 0
        while True:
            life += 1
            its_name = name if life == 1 else f"{name}.{life}"
            process = self._processes[name] = self._world.process(name, its_name)
            task = process.start(role(its_name, process))
            await asyncio.wait([task, process.gone], return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                task.result()
            await asyncio.sleep(chance.uniform(0.1, 10.0))
