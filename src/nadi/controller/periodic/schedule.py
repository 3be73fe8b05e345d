"""The controller's periodic work: each kind in its own task, forever.

A round that fails is logged and tried again with the next; the same failure is logged once, until it changes or ends.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from nadi.controller.engine.tasks import Tasks
from nadi.runtime import Runtime
from nadi.throttled_log import Complaints

log = logging.getLogger(__name__)


class Schedule:
    def __init__(self, clock: Runtime, tasks: Tasks) -> None:
        self._clock, self._tasks = clock, tasks
        self._complaints = Complaints(log, "%s wait for the next round")

    def start(self, what: str, period_s: float, one_round: Callable[[], Awaitable[None]]) -> None:
        """what: a few words for log messages, which say that it is waiting."""
        self._tasks.spawn(self._run(what, period_s, one_round))

    async def _run(self, what: str, period_s: float, one_round: Callable[[], Awaitable[None]]) -> None:
        """One round per period, however long each takes: after a round that overruns, the next follows at once, and
        missed ones are not made up for."""
        clock, period_ms = self._clock, int(period_s * 1000)
        due_ms = clock.monotonic_ms()
        while True:
            due_ms = max(due_ms + period_ms, clock.monotonic_ms())
            await clock.sleep((due_ms - clock.monotonic_ms()) / 1000)
            try:
                await one_round()
            except Exception as error:
                self._complaints.tell(what, error)
            else:
                self._complaints.settled(what)
