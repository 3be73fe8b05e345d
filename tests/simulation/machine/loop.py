"""An event loop whose time passes only when nothing is left to do: then it jumps to the next timer. What runs in it
takes no real time but that of its own work, and does the same each time.

What belongs to a `Process` runs by that process's clock, and not while it stands still or once it is dead.
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
_TURNS_AT_ONCE = 200_000  # that take no time: more wouldn't end
_TICK_S = 1e-8  # a wait takes no less: what is rounded off it would let no time pass, for whoever waits again and again


class StuckError(Exception):
    """Everybody waits, and for nothing that could come."""


class Sockets(Protocol):
    """Where the loop's connections come from: a network."""

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]: ...

    def accept(self, factory: Callable[[], Any], accepted: Any) -> tuple[Any, Any]: ...

    def watch(self, listening: Any, callback: Callable[[], object] | None) -> None: ...


class SimulatedLoop(asyncio.BaseEventLoop):
    """now: seconds since the start. sockets: the network, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sockets: Sockets | None = None
        self._ready: deque[asyncio.Handle] = deque()
        self._scheduled: list[tuple[float, int, asyncio.TimerHandle]] = []  # a heap, by when they are due
        self._stopping = False
        self._number, self._turns = itertools.count(), 0
        self._remains: list[tuple[asyncio.Task[Any], contextvars.Context]] = []
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # asyncio's own is all threads'
        self._held: dict[Process, list[asyncio.Handle]] = {}
        self._outside = contextvars.Context()
        self._is_over = False
        self._collected = 0.0
        self.failures: list[BaseException] = []  # of callbacks, which nobody waits for
        self.set_exception_handler(self._failed)

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "handle" in context and context.get("exception") is not None:
            self.failures.append(context["exception"])
        else:
            self.default_exception_handler(context)

    def time(self) -> float:
        """What a clock shows whoever asks."""
        process = current.get()
        return self.now if process is None else process.local_time(self.now)

    def _run_once(self) -> None:
        """As asyncio's, without what only real time and real sockets need."""
        scheduled, ready = self._scheduled, self._ready
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)
        if not ready and not self._stopping:
            self._wait_for(scheduled[0][0] if scheduled else None)
        self._turns += 1
        if self._turns > _TURNS_AT_ONCE:
            self._turns = 0
            raise StuckError(f"at {self.now:.3f} s there is no end of what is to do, and no time passes")
        while scheduled and scheduled[0][0] <= self.now:
            ready.append(heapq.heappop(scheduled)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _wait_for(self, when: float | None) -> None:
        if when is None:
            raise StuckError(f"at {self.now:.3f} s nobody waits for a timer")
        if when > self.now:
            self.now, self._turns = when, 0
        if self.now >= self._collected + _COLLECTED_EACH_S:
            self._collected = self.now
            gc.collect()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is let go of when it is due

    def _write_to_self(self) -> None:
        pass  # nothing else has a thread

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> Never:  # type: ignore[override]
        raise AssertionError(f"{func} goes to a thread past the runtime")

    # --- what is due ----------------------------------------------------------------------------------

    def at(self, when: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        """At that time of the simulation, in no process."""
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
            raise RuntimeError("nothing is started any more")
        context = context or contextvars.copy_context()
        task = super().create_task(coro, name=name, context=context)
        self._tasks.add(task)
        process = context.get(current)
        if process is not None:
            process.tasks[task] = context
        return task

    def drop(self, process: Process) -> None:
        """It is dead: nothing of it is run."""
        # what is dropped would be told of its end, and write, so all of it is kept
        self._remains += process.tasks.items()
        timers = (timer for _, _, timer in self._scheduled)
        for handle in [*self._ready, *timers, *self._held.pop(process, [])]:
            if handle._context.get(current) is process:  # type: ignore[attr-defined]
                handle.cancel()

    def hold(self, process: Process) -> None:
        """It stands still: nothing of it is run until `release`."""
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
        self._scheduled[:] = others  # in order, and so a heap

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
        assert how.get("ssl") is None, "the network has no TLS"
        return await self.sockets.connect(factory, host, port)

    async def connect_accepted_socket(self, factory: Any, sock: Any, **how: Any) -> Any:  # type: ignore[override]
        assert self.sockets is not None
        assert how.get("ssl") is None, "the network has no TLS"
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
        """Of those who live."""
        for process in list(self._held):
            process.is_paused = False
            self.release(process)
        spared = {asyncio.current_task(), *(task for task, _ in self._remains)}
        rest = [task for task in self._tasks if not task.done() and task not in spared]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def bury(self) -> None:
        """After the end, when nothing runs any more: let go of those who were killed."""
        self._is_over = True
        self.set_exception_handler(lambda _loop, _context: None)  # whom they would have told of errors is dead too
        asyncio.set_event_loop(self)  # else what they gather as they are closed would make one that nobody closes
        for task, context in self._remains:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with contextlib.suppress(BaseException):
                context.run(task.get_coro().close)
        asyncio.set_event_loop(None)
        self._remains.clear()  # whoever keeps the loop doesn't keep the world
        self._held.clear()
        self.sockets = None


def _nothing(loop: asyncio.AbstractEventLoop) -> asyncio.Handle:
    handle = asyncio.Handle(lambda: None, (), loop)
    handle.cancel()
    return handle


@contextmanager
def _collected_in_time() -> Iterator[None]:
    """Garbage is collected by the simulation's time alone. What is collected may start tasks, as an asynchronous
    generator does that nobody has ended; by itself Python collects when it has made so many objects, and it had made
    some before the simulation began."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # what was there before isn't looked at: that takes a second and more beside other tests
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@contextmanager
def _unheard() -> Iterator[None]:
    """What is in the middle of something as it is let go of, outside of its context, complains to nobody; nor what
    would have become a task, such as the end of an asynchronous generator."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            gc.collect()
    finally:
        sys.unraisablehook = before


def run(main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]]) -> T:
    """What `main` gives, in a loop of its own; raises what a callback raised."""
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
    """A test in virtual time, whose first argument is the loop."""

    @functools.wraps(test)
    def ran(**given: Any) -> None:
        run(lambda loop: test(loop, **given))

    signature = inspect.signature(test)
    ran.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return ran
