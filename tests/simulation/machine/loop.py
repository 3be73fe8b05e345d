"""An event loop with virtual time, which jumps to the next timer whenever nothing is left to do. Programs take no real
time except for their own work, and behave identically in each run.

Code of a `Process` runs by that process's clock, and not while it is frozen or after it was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import heapq
import inspect
import itertools
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, Never, Protocol, TypeVar

from .outside import nothing_from_outside
from .process import Process, current

T = TypeVar("T")
_COLLECTED_EACH_S = 60.0
_TURNS_AT_ONCE = 200_000  # turns without progress of time: more would be an endless loop
_TICK_S = 1e-8  # minimum wait: rounding could otherwise stop the time for repeated waits


class StuckError(Exception):
    """All tasks are waiting, and nothing can wake them."""


class Sockets(Protocol):
    """The source of the loop's connections: a network."""

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]: ...

    def accept(self, factory: Callable[[], Any], accepted: Any) -> tuple[Any, Any]: ...

    def watch(self, listening: Any, callback: Callable[[], object] | None) -> None: ...


class SimulatedLoop(asyncio.BaseEventLoop):
    """now: seconds since the start. sockets: the network, if any."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sockets: Sockets | None = None
        self._ready: deque[asyncio.Handle] = deque()
        self._scheduled: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap, by due time
        self._stopping = False
        self._number, self._turns = itertools.count(), 0
        self._remains: list[tuple[asyncio.Task[Any], contextvars.Context]] = []
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # asyncio's own set spans all threads
        self._held: dict[Process, list[asyncio.Handle]] = {}
        self._outside = contextvars.Context()
        self._is_over = False
        self._collected = 0.0
        self.failures: list[BaseException] = []  # of callbacks that are never awaited
        self.set_exception_handler(self._failed)

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "handle" in context and context.get("exception") is not None:
            self.failures.append(context["exception"])
        else:
            self.default_exception_handler(context)

    def time(self) -> float:
        """Return the time of the current process's clock."""
        process = current.get()
        return self.now if process is None else process.local_time(self.now)

    def _run_once(self) -> None:
        """Run like asyncio's loop, without its handling of real time and sockets."""
        scheduled, ready = self._scheduled, self._ready
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)
        if not ready and not self._stopping:
            self._wait_for(scheduled[0][0] if scheduled else None)
        self._turns += 1
        if self._turns > _TURNS_AT_ONCE:
            self._turns = 0
            raise StuckError(f"at {self.now:.3f} s the work is endless, and time doesn't progress")
        while scheduled and scheduled[0][0] <= self.now:
            ready.append(heapq.heappop(scheduled)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _wait_for(self, when: float | None) -> None:
        if when is None:
            raise StuckError(f"at {self.now:.3f} s all tasks wait without a timer")
        if when > self.now:
            self.now, self._turns = when, 0
        if self.now >= self._collected + _COLLECTED_EACH_S:
            self._collected = self.now
            gc.collect()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is dropped when it is due

    def _write_to_self(self) -> None:
        pass  # there are no other threads

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> Never:  # type: ignore[override]
        raise AssertionError(f"{func} goes to a thread, bypassing the runtime")

    # --- timers ---------------------------------------------------------------------------------------

    def at(self, when: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        """Call something at that time of the simulation, outside of any process."""
        timer = asyncio.TimerHandle(when, callback, arguments, self, self._outside)
        self._schedule(timer)
        return timer

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        process = current.get()
        if process is not None:
            waits = when > process.local_time(self.now)
            when = process.true_time(when)
            if waits:
                when = max(when, self.now + _TICK_S)
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        its: Process | None = timer._context.get(current)  # type: ignore[attr-defined]
        if its is None or its.runs:
            self._schedule(timer)
        else:
            self._set_aside(its, timer)
        return timer

    def _schedule(self, timer: asyncio.TimerHandle) -> None:
        heapq.heappush(self._scheduled, (timer.when(), next(self._number), timer))

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.Handle(callback, args, self, context)
        process: Process | None = handle._context.get(current)  # type: ignore[attr-defined]
        if process is None or process.runs:
            self._ready.append(handle)
        else:
            self._set_aside(process, handle)
        return handle

    def _set_aside(self, process: Process, handle: asyncio.Handle) -> None:
        if process.is_alive:
            self._held[process].append(handle)
        else:
            handle.cancel()

    # --- processes ------------------------------------------------------------------------------------

    def create_task(self, coro: Any, *, name: Any = None, context: contextvars.Context | None = None) -> Any:
        if self._is_over:
            coro.close()
            raise RuntimeError("the simulation is ending: nothing can start")
        context = context or contextvars.copy_context()
        task = super().create_task(coro, name=name, context=context)
        self._tasks.add(task)
        process = context.get(current)
        if process is not None:
            process.tasks[task] = context
        return task

    def drop(self, process: Process) -> None:
        """Drop all work of a dead process."""
        # dropped objects would be notified of their end, and write, so all are retained
        self._remains += process.tasks.items()
        timers = (timer for _, _, timer in self._scheduled)
        for handle in [*self._ready, *timers, *self._held.pop(process, [])]:
            if handle._context.get(current) is process:  # type: ignore[attr-defined]
                handle.cancel()

    def hold(self, process: Process) -> None:
        """Withhold all work of a frozen process until `release`."""
        held = self._held.setdefault(process, [])
        for place, handle in enumerate(self._ready):
            if handle._context.get(current) is process:  # type: ignore[attr-defined]
                self._ready[place] = _nothing(self)  # the loop may be counting them
                held.append(handle)
        others = []
        for entry in sorted(self._scheduled):
            if entry[2]._context.get(current) is process:  # type: ignore[attr-defined]
                held.append(entry[2])
            else:
                others.append(entry)
        self._scheduled[:] = others  # still in order, and so a heap

    def release(self, process: Process) -> None:
        for handle in self._held.pop(process, []):
            if handle.cancelled():
                continue
            if isinstance(handle, asyncio.TimerHandle):
                self._schedule(handle)
            else:
                self._ready.append(handle)

    # --- connections ----------------------------------------------------------------------------------

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **how: Any) -> Any:  # type: ignore[override]
        assert self.sockets is not None
        assert how.get("ssl") is None, "TLS is not simulated"
        return await self.sockets.connect(factory, host, port)

    async def connect_accepted_socket(self, factory: Any, sock: Any, **how: Any) -> Any:  # type: ignore[override]
        assert self.sockets is not None
        assert how.get("ssl") is None, "TLS is not simulated"
        return self.sockets.accept(factory, sock)

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        assert self.sockets is not None
        self.sockets.watch(fd, lambda: callback(*args))

    def remove_reader(self, fd: Any) -> bool:
        assert self.sockets is not None
        self.sockets.watch(fd, None)
        return True

    # --- the end --------------------------------------------------------------------------------------

    async def end(self) -> None:
        """End the live processes."""
        for process in list(self._held):
            process.is_paused = False
            self.release(process)
        spared = {asyncio.current_task(), *(task for task, _ in self._remains)}
        rest = [task for task in self._tasks if not task.done() and task not in spared]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def bury(self) -> None:
        """Release killed processes after the end, when nothing runs any more."""
        self._is_over = True
        self.set_exception_handler(lambda _loop, _context: None)  # the owners of such errors are dead, too
        asyncio.set_event_loop(self)  # otherwise closing futures would create a loop that is never closed
        for task, context in self._remains:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                context.run(task.get_coro().close)
        asyncio.set_event_loop(None)
        self._remains.clear()  # so that references to the loop don't keep the world alive
        self._held.clear()
        self.sockets = None


def _nothing(loop: asyncio.AbstractEventLoop) -> asyncio.Handle:
    handle = asyncio.Handle(lambda: None, (), loop)
    handle.cancel()
    return handle


@contextmanager
def _collected_in_time() -> Iterator[None]:
    """Collect garbage at simulated times only. Collected objects may start tasks, such as an unfinished asynchronous
    generator's; Python's own collections depend on the number of objects, including those made before the
    simulation."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # ignores older objects, which would take a second or more under load
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@contextmanager
def _unheard() -> Iterator[None]:
    """Silence complaints of objects that are released in the middle of their work, outside of their context, and of
    tasks that can't be started any more, such as the end of an asynchronous generator."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            gc.collect()
    finally:
        sys.unraisablehook = before


def run(main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]]) -> T:
    """Run `main` in a new loop and return its result; raises the errors of callbacks."""
    loop = SimulatedLoop()
    with nothing_from_outside(lambda: loop.now), _collected_in_time():
        try:
            result = loop.run_until_complete(main(loop))
            if loop.failures:
                raise loop.failures[0]
            return result
        finally:
            try:
                loop.run_until_complete(loop.end())
            finally:
                with _unheard():
                    loop.bury()
                    loop.close()


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test run in virtual time, with the loop as its first argument."""

    @functools.wraps(test)
    def ran(**given: Any) -> None:
        run(lambda loop: test(loop, **given))

    signature = inspect.signature(test)
    ran.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return ran
