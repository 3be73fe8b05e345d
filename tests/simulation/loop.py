"""An event loop whose time passes only when nothing is left to do: then it jumps to the next timer. What runs in it
takes no real time but that of its own work, and does the same each time.

Tasks belong to a `Process`, as do those that they start. `kill` is a kill -9: nothing of that process runs any more,
not even what would clean up.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, Never, TypeVar
from weakref import WeakKeyDictionary

from nadi.runtime import Runtime

T = TypeVar("T")
BEGIN_MS = 1_700_000_000_000  # by the wall clock


class Process:
    """What lives and dies together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.tasks: WeakKeyDictionary[asyncio.Task[Any], contextvars.Context] = WeakKeyDictionary()


_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class StuckError(Exception):
    """Everybody waits, and for nothing that could come."""


class SimulatedLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self  # whom the loop asks to wait for what comes from outside, which is nothing
        self._remains: list[tuple[asyncio.Task[Any], contextvars.Context]] = []
        self._is_over = False

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Never]:
        if timeout is None:
            raise StuckError(f"at {self._now:.3f} s nobody waits for a timer")
        self._now += timeout
        return []

    def _process_events(self, events: list[Never]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass  # nothing else has a thread

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> Never:  # type: ignore[override]
        raise AssertionError(f"{func} goes to a thread past the runtime")

    # --- processes ------------------------------------------------------------------------------------

    def create_task(self, coro: Any, *, name: Any = None, context: contextvars.Context | None = None) -> Any:
        if self._is_over:
            coro.close()
            raise RuntimeError("nothing is started any more")
        context = context or contextvars.copy_context()
        task = super().create_task(coro, name=name, context=context)
        process = context.get(_process)
        if process is not None:
            process.tasks[task] = context
        return task

    def start(self, process: Process, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it in that process."""
        context = contextvars.copy_context()
        context.run(_process.set, process)
        task: asyncio.Task[T] = self.create_task(coroutine, context=context)
        return task

    def kill(self, process: Process) -> None:
        """From outside of it."""
        process.is_alive = False
        # what is dropped would be told of its end, and write, so all of it is kept
        self._remains += process.tasks.items()
        for handle in [*self._ready, *self._scheduled]:  # type: ignore[attr-defined]
            if handle._context.get(_process) is process:
                handle.cancel()

    async def end(self) -> None:
        """Of those who live."""
        dead = {task for task, _ in self._remains}
        rest = [task for task in asyncio.all_tasks(self) if task not in dead and task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def bury(self) -> None:
        """After the end, when nothing runs any more: let go of those who were killed."""
        self._is_over = True
        self.set_exception_handler(lambda _loop, _context: None)  # whom they would have told of errors is dead too
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that would have become tasks
            for task, context in self._remains:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    context.run(task.get_coro().close)


def run(main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]]) -> T:
    """What `main` gives, in a loop of its own."""
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.run_until_complete(loop.end())
        loop.bury()
        loop.close()


class SimulatedRuntime(Runtime):
    """The loop's time, seeded chance, and work that blocks: done in one go, after a pause and before another."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random) -> None:
        self._loop, self._random = loop, chance
        self.set_ms = 0  # how far somebody has set the wall clock on, or back

    def now_ms(self) -> int:
        return BEGIN_MS + self.set_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def boottime(self) -> float:
        return self._loop.time()

    def chance(self) -> float:
        return self._random.random()

    def unique(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def rest(self, seconds: float) -> None:
        """No time passes while something blocks."""

    def in_thread(
        self, function: Callable[..., T], *arguments: object, pool: Executor | None = None, **named: object
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            settle: Callable[[], None]
            try:
                settle = partial(future.set_result, function(*arguments, **named))
            except Exception as error:
                settle = partial(future.set_exception, error)
            self._loop.call_later(self._pause_s(), lambda: None if future.done() else settle())

        self._loop.call_later(self._pause_s(), work)
        return future

    def _pause_s(self) -> float:
        return self._random.random() * (0.001 if self._random.random() < 0.95 else 0.2)
