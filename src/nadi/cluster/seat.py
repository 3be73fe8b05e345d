"""The seat of the cluster's one active controller: it is where container 0 is, for its records lie there.

A server that has taken that container runs a controller, which resumes whatever the last one left unfinished. Before
the container is handed over, or once it is lost, the controller ends. Other servers pass calls on (`front`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nadi.backoff import Backoff
from nadi.cluster.mapping import CONTROLLER_CONTAINER
from nadi.controller.controller import Controller
from nadi.errors import NadiError
from nadi.runtime import Runtime

log = logging.getLogger(__name__)


class Seat:
    """make: makes a controller that isn't started yet, and what ends it. changed: told who is active here, or None."""

    def __init__(
        self,
        make: Callable[[], tuple[Controller, Callable[[], None]]],
        changed: Callable[[Controller | None], None],
        runtime: Runtime,
    ) -> None:
        self.controller: Controller | None = None  # once it answers
        self._make, self._changed, self._runtime = make, changed, runtime
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def taken(self, number: int) -> None:
        """A container is here now."""
        if number == CONTROLLER_CONTAINER:
            async with self._lock:
                await self._end()
                self._task = asyncio.create_task(self._run(), name="controller")

    async def leaving(self, number: int) -> None:
        """A container is about to be handed over, or was lost."""
        if number == CONTROLLER_CONTAINER:
            async with self._lock:
                await self._end()

    async def stop(self) -> None:
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        backoff = Backoff(first_s=0.1, longest_s=2.0, sleep=self._runtime.sleep)
        while True:
            controller, close = self._make()
            try:
                await controller.start()
            except NadiError as error:  # another container may be on its way to another server
                log.warning("the controller can't start yet: %s", error)
                await _ended(controller.stop(), close)
                await backoff.pause()
                continue
            except BaseException:
                await _ended(controller.stop(), close)
                raise
            self.controller = controller
            self._changed(controller)
            log.info("this server has the active controller")
            try:
                await asyncio.get_running_loop().create_future()  # until it is cancelled
            finally:
                self.controller = None
                self._changed(None)
                await _ended(controller.stop(), close)


async def _ended(stop: Awaitable[None], close: Callable[[], None]) -> None:
    try:
        await stop
    except NadiError as error:
        log.info("the controller's end: %s", error)
    finally:
        close()
