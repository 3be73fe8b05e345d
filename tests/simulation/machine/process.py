"""A process of a simulated machine: what lives, stands still and dies together, by a clock of its own.

What it does takes place in its context: its tasks, its timers and what the network delivers to it. There the loop's
time is the process's own, which began at some number and runs a little too fast or too slow.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from nadi.runtime import Runtime

if TYPE_CHECKING:
    from .loop import SimulatedLoop

T = TypeVar("T")
BEGIN_MS = 1_700_000_000_000  # by the wall clock
_LATEST_S = 1e6  # on a process's own clock, when it starts

current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Held(Protocol):
    """What a system takes back from a process that is gone."""

    def process_died(self, *, with_power: bool) -> None: ...


class Process:
    """name: for logs, and of its host for the network. rate: seconds of its clock in one of the simulation's."""

    def __init__(self, loop: SimulatedLoop, name: str, chance: random.Random, rate: float = 1.0) -> None:
        self.loop, self.name, self.rate = loop, name, rate
        self.is_alive, self.is_paused = True, False
        self.tasks: WeakKeyDictionary[asyncio.Task[Any], contextvars.Context] = WeakKeyDictionary()
        self.held: dict[Held, None] = {}  # connections, and ports that it listens at
        self.gone: asyncio.Future[None] = loop.create_future()  # done when it was killed
        self.context = contextvars.Context()
        self.context.run(current.set, self)
        self._began, self._first = loop.now, chance.random() * _LATEST_S
        self._pauses = 0
        self.runtime = SimulatedRuntime(self, chance)

    @property
    def runs(self) -> bool:
        return self.is_alive and not self.is_paused

    def local_time(self, now: float) -> float:
        """What its monotonic clock shows then."""
        return self._first + (now - self._began) * self.rate

    def true_time(self, local: float) -> float:
        """When its clock shows that."""
        return self._began + (local - self._first) / self.rate

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it in this process."""
        task: asyncio.Task[T] = self.loop.create_task(coroutine, context=self.context.copy())
        return task

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.loop.call_soon(callback, *arguments, context=self.context)

    # --- from outside of it -----------------------------------------------------------------------------

    def kill(self, *, with_power: bool = False) -> None:
        """kill -9: nothing of it runs any more, not even what would clean up. The system ends its connections, and
        their peers hear of that, unless it goes down too."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.loop.drop(self)
        for one in list(self.held):
            one.process_died(with_power=with_power)
        self.held.clear()
        if not self.gone.done():
            self.gone.set_result(None)

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later: nothing of it runs for so long, and then everything that was due. The system
        goes on: connections are accepted, and take bytes until their buffers are full."""
        if not self.is_alive:
            return
        self._pauses += 1
        self.is_paused = True
        self.loop.hold(self)
        self.loop.at(self.loop.now + seconds, self._go_on, self._pauses)

    def wake(self) -> None:
        """If it stands still, it does so no longer."""
        self._go_on(self._pauses)

    def _go_on(self, pauses: int) -> None:
        if pauses == self._pauses and self.is_paused:  # not if a later one lasts longer
            self.is_paused = False
            self.loop.release(self)


class SimulatedRuntime(Runtime):
    """A process's clocks, seeded chance, and work that blocks: done in one go, after a pause and before another."""

    def __init__(self, process: Process, chance: random.Random) -> None:
        self._process, self._loop, self._random = process, process.loop, chance
        self.set_ms = 0  # how far somebody has set the wall clock on, or back
        self.done_in_thread: Callable[[Callable[..., Any]], Any] = lambda work: work()  # does what blocks

    def now_ms(self) -> int:
        return BEGIN_MS + self.set_ms + int(self._loop.now * self._process.rate * 1000)

    def monotonic(self) -> float:
        return self._process.local_time(self._loop.now)

    def boottime(self) -> float:
        """As `monotonic`: a paused process is not a suspended machine."""
        return self.monotonic()

    def chance(self) -> float:
        return self._random.random()

    def unique(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def bytes(self, count: int) -> bytes:
        """From the system's source of chance."""
        return self._random.randbytes(count)

    def rest(self, seconds: float) -> None:
        """No time passes while something blocks."""

    def in_thread(
        self, function: Callable[..., T], *arguments: object, pool: Executor | None = None, **named: object
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            settle: Callable[[], None]
            try:
                settle = partial(future.set_result, self.done_in_thread(partial(function, *arguments, **named)))
            except Exception as error:
                settle = partial(future.set_exception, error)
            self._loop.call_later(self._pause_s(), lambda: None if future.done() else settle())

        self._loop.call_later(self._pause_s(), work)
        return future

    def _pause_s(self) -> float:
        return self._random.random() * (0.001 if self._random.random() < 0.95 else 0.2)
