"""A process of a simulated machine: everything in it runs, freezes and dies together, by one clock.

Its tasks, timers and received data run in its context. There the loop's time is the process's own, which starts at a
random value and runs slightly too fast or too slow.
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
_LATEST_S = 1e6  # maximum value of a process's clock at its start

current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Resource(Protocol):
    """Something that the system reclaims from a dead process."""

    def process_died(self, *, with_power: bool) -> None: ...


class Process:
    """name: for logs, and its host on the network. rate: seconds of its clock per second of the simulation."""

    def __init__(self, loop: SimulatedLoop, name: str, chance: random.Random, rate: float = 1.0) -> None:
        self.loop, self.name, self.rate = loop, name, rate
        self.is_alive, self.is_paused = True, False
        self.tasks: WeakKeyDictionary[asyncio.Task[Any], contextvars.Context] = WeakKeyDictionary()
        self.resources: dict[Resource, None] = {}  # connections and listening ports
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
        """Return what its monotonic clock shows at that time."""
        return self._first + (now - self._began) * self.rate

    def true_time(self, local: float) -> float:
        """Return the time at which its clock shows that."""
        return self._began + (local - self._first) / self.rate

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in this process."""
        task: asyncio.Task[T] = self.loop.create_task(coroutine, context=self.context.copy())
        return task

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.loop.call_soon(callback, *arguments, context=self.context)

    # --- from outside -----------------------------------------------------------------------------------

    def kill(self, *, with_power: bool = False) -> None:
        """kill -9: its code stops at once, without any cleanup. The system ends its connections and notifies their
        peers, unless it goes down too."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.loop.drop(self)
        for resource in list(self.resources):
            resource.process_died(with_power=with_power)
        self.resources.clear()
        if not self.gone.done():
            self.gone.set_result(None)

    def pause(self, seconds: float) -> None:
        """SIGSTOP, then SIGCONT: its code is frozen for that time, and then catches up. The system keeps running:
        connections are accepted, and take bytes until their buffers are full."""
        if not self.is_alive:
            return
        self._pauses += 1
        self.is_paused = True
        self.loop.hold(self)
        self.loop.at(self.loop.now + seconds, self._resume, self._pauses)

    def wake(self) -> None:
        """Resume it if it is frozen."""
        self._resume(self._pauses)

    def _resume(self, pauses: int) -> None:
        if pauses == self._pauses and self.is_paused:  # unless a later pause lasts longer
            self.is_paused = False
            self.loop.release(self)


class SimulatedRuntime(Runtime):
    """A process's clocks, seeded randomness, and blocking work: done in one step, between two pauses."""

    def __init__(self, process: Process, chance: random.Random) -> None:
        self._process, self._loop, self._random = process, process.loop, chance
        self.set_ms = 0  # how far the wall clock was set forward, or back
        self.done_in_thread: Callable[[Callable[..., Any]], Any] = lambda work: work()  # runs blocking work

    def now_ms(self) -> int:
        return BEGIN_MS + self.set_ms + int(self._loop.now * self._process.rate * 1000)

    def monotonic(self) -> float:
        return self._process.local_time(self._loop.now)

    def boottime(self) -> float:
        """Return `monotonic`: a paused process is not a suspended machine."""
        return self.monotonic()

    def chance(self) -> float:
        return self._random.random()

    def unique(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def bytes(self, count: int) -> bytes:
        """Return bytes as from the system's random source."""
        return self._random.randbytes(count)

    def rest(self, seconds: float) -> None:
        """Return at once: blocking takes no time."""

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
