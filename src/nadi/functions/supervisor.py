"""Runs a function as a program (`run`) or in an event loop (`serve`).

A supervisor keeps as many workers as the function needs, from none to many, and reports their status. While there are
workers, it polls the segments' written and handled positions every second. Without workers, the group doesn't have
readers, and the supervisor waits for data at the segments' tails with pending reads.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from nadi.backoff import Backoff
from nadi.client.aio import ReaderGroup, StreamManager
from nadi.client.control.security import Credentials
from nadi.client.manager.streams import stores_of
from nadi.client.readergroup.group import find_recreated_stream, shared_state_of
from nadi.client.readergroup.state import GroupState
from nadi.client.readergroup.updates import Leave
from nadi.client.segments.info import segment_info
from nadi.defaults import DEFAULT_URI
from nadi.errors import InvalidArgumentError, NadiError, SegmentNotFoundError, UnavailableError
from nadi.functions.definition import Function
from nadi.functions.handlers.event import FunctionError, Handler
from nadi.functions.handlers.process import HandlerProcess
from nadi.functions.plan import Ends, WorkerPlan
from nadi.functions.progress import Counters, FunctionProgressRecord
from nadi.functions.worker import FunctionWorker, member_of
from nadi.functions.writing import Step, TransactionWriters, settle_all
from nadi.limits import FUNCTION_DRAIN_S, FUNCTION_IDLE_POLL_S, FUNCTION_POLL_S, FUNCTION_PROBES
from nadi.naming import parse_segment_name
from nadi.process.runner import each_beat, run_program
from nadi.process.segment_follower import Follower, SegmentProgress

log = logging.getLogger("nadi.functions")
_REFRESH_MS = 250
_numbers = itertools.count(1)  # of this process's workers, over all functions


def run(
    function: Function,
    controller_uri: str = DEFAULT_URI,
    *,
    credentials: Credentials | None = None,
    trust_store: str | os.PathLike[str] | None = None,
) -> None:
    """Run a function until Ctrl-C or SIGTERM, then finish and record current events. Also returns once a sealed stream
    is handled completely.

    FunctionStoppedError for an event that fails for good without a dead-letter stream; FunctionError if the handler
    can't be loaded. Logs go to `logging`, by default to standard error.

    >>> from nadi.functions import Function, run
    >>> run(Function(scope="home", stream="meters", handler="billing:bill"))  # doctest: +SKIP
    """
    logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx logs each request
    run_program(lambda manager, stop: serve(function, manager, stop=stop), controller_uri, credentials, trust_store)


async def serve(
    function: Function, manager: StreamManager, *, stop: asyncio.Event | None = None, step: Step = lambda name: None
) -> None:
    """Run a function with a client of `nadi.client.aio` until `stop` is set; see `run`.

    step: with delivery="exactly-once", called after each step of a batch: "begun", "written", "recorded", "committed".
    """
    if not isinstance(function, Function):
        raise InvalidArgumentError(f"{function!r} is not a Function: decorate it with @function, or pass a Function")
    await Supervisor(function, manager, step).run(stop if stop is not None else asyncio.Event())


def _handler_of(function: Function, worker: str, logger: logging.Logger) -> Handler:
    if function.target is not None:
        from nadi.functions.handlers.target import HttpTarget

        return HttpTarget(function.target, function.timeout_s, wants_outputs=function.output is not None)
    return HandlerProcess(
        function.handled_by,
        function=function.name,
        worker=worker,
        by_list=function.by_batch,
        timeout_s=function.timeout_s,
        memory_mib=function.memory_mib,
        logger=logger,
    )


async def ends_of(manager: StreamManager, offsets: Mapping[str, int]) -> Mapping[str, Ends]:
    """Return the handled and written positions of each segment, from the group's offsets; a sealed or truncated segment
    that only needs to be completed counts as one unread byte."""
    stores, limit = stores_of(manager), asyncio.Semaphore(FUNCTION_PROBES)

    async def ends(segment: str, offset: int) -> Ends:
        async with limit:
            try:
                info = await segment_info(stores, segment)
            except SegmentNotFoundError:
                return Ends(offset, offset + 1)
        handled = max(offset, info.start_offset)
        return Ends(handled, max(info.write_offset, handled + info.is_sealed))

    return dict(zip(offsets, await asyncio.gather(*(ends(*at) for at in offsets.items())), strict=True))


class Supervisor:
    """One instance of a function."""

    def __init__(self, function: Function, manager: StreamManager, step: Step) -> None:
        self._function, self._manager, self._step = function, manager, step
        self._log = log.getChild(function.name)
        self._counters = Counters()
        self._plan = WorkerPlan(function.min_workers, function.max_workers, function.idle_s)
        self._writers = TransactionWriters(manager)
        self._progress = FunctionProgressRecord(manager, function.scope, function.name)
        self._members = self._progress.members()
        self._workers: dict[asyncio.Task[None], FunctionWorker] = {}
        self._starting = asyncio.Semaphore(os.cpu_count() or 1)  # limits parallel starts: the first start sooner
        self._reported: object = None
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, or a sealed stream is handled completely. FunctionStoppedError and other permanent
        errors, once all workers have ended."""
        group, self._stop = await self._prepare(), stop
        stopping = asyncio.create_task(stop.wait())
        beat = asyncio.create_task(each_beat(self._report))
        backoff = Backoff(first_s=0.2, longest_s=5.0)
        try:
            await self._live_state(group)
            await settle_all(group, self._writers, self._log)
            while not stopping.done():
                try:
                    if await self._round(group, stopping):
                        break
                    backoff.reset()
                except UnavailableError as error:
                    self._log.warning("retrying: %s", error)
                    await asyncio.wait([stopping], timeout=backoff.take())
        except NadiError as error:
            self._counters.stopped(str(error))
            raise
        finally:
            stopping.cancel()
            await self._end(beat)

    # --- start and end ---------------------------------------------------------------------

    async def _prepare(self) -> ReaderGroup:
        """Return the function's group, created if it is new. FunctionError, StreamNotFoundError."""
        function, manager = self._function, self._manager
        handler = _handler_of(function, "w0", self._log)
        try:
            await handler.start()  # fail now if it can't start
        finally:
            await handler.close()
        for stream in (function.output_stream, function.dead_letter_stream):
            if stream is not None:
                await manager.stream_configuration(*stream.split("/"))  # StreamNotFoundError
        cuts = manager.cuts(function.scope, function.stream)
        start = await (cuts.head() if function.start == "head" else cuts.tail())
        groups = manager.reader_group_manager(function.scope)
        await groups.create_reader_group(
            function.name, f"{function.scope}/{function.stream}", starts=[start], refresh_ms=_REFRESH_MS
        )
        group = await groups.get_reader_group(function.name)
        state = await shared_state_of(group).read()
        if state.streams != (f"{function.scope}/{function.stream}",):
            raise FunctionError(
                f"reader group {function.name} exists and reads {', '.join(state.streams)}: choose another name for "
                "the function"
            )
        await self._check_others()
        await self._report(begins=True)
        return group

    async def _check_others(self) -> None:
        """Raise FunctionError if a running instance has another handler, output, dead letters or delivery."""
        record, function = await self._progress.record.find(), self._function
        if record is None:
            return
        running = await self._progress.running()
        for option, theirs, ours in (
            ("handled by", record.handled_by, function.handled_by),
            ("output", record.output, function.output_stream),
            ("dead letters", record.dead_letters, function.dead_letter_stream),
            ("delivery", record.delivery, function.delivery),
        ):
            if running and theirs != ours:
                raise FunctionError(
                    f"function {function.name} is running on {running[0].host} with other options ({option}: {theirs}, "
                    f"here {ours}), which would share its events: choose another name, or stop the running one first"
                )

    async def _end(self, beat: asyncio.Task[None]) -> None:
        """Let all workers finish their batches; cancel those that take too long."""
        for worker in self._workers.values():
            worker.stop()
        if self._workers:
            await asyncio.wait(self._workers, timeout=FUNCTION_DRAIN_S)
        late = [task for task in self._workers if not task.done()]
        for task in late:
            self._log.warning(
                "worker %s didn't finish within %g s and is cancelled: its batch is handled again",
                *(task.get_name(), FUNCTION_DRAIN_S),
            )
            task.cancel()
        results = await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers.clear()
        beat.cancel()
        with suppress(NadiError):
            await self._report()
        await self._members.leave()
        for result in results:
            if isinstance(result, Exception):
                self._log.error("%s", result)

    # --- a round ------------------------------------------------------------------------------

    async def _round(self, group: ReaderGroup, stopping: asyncio.Task[bool]) -> bool:
        """Adjust the number of workers to the unread data, and wait; return whether a sealed stream is completed."""
        self._check_workers()
        state = await self._live_state(group)
        if state.is_completed:  # the workers end by themselves
            if self._workers:
                await asyncio.wait(self._workers, timeout=FUNCTION_POLL_S)
                return False
            if error := await find_recreated_stream(stores_of(self._manager), state):
                raise error
            self._log.info("the sealed stream is handled completely")
            return True
        offsets = {name: progress.offset for name, progress in state.segments.items() if progress.is_active}
        ends = await ends_of(self._manager, offsets)
        own = {worker.reader_id: worker for worker in self._workers.values() if not worker.is_stopping}
        leaving = {worker.reader_id for worker in self._workers.values() if worker.is_stopping}
        others = [name for name in state.readers if name not in own and name not in leaving]
        is_starting = any(name not in state.readers for name in own)
        work = self._counters.work()
        change = self._plan.change(time.monotonic(), ends, work, own.keys(), others, is_starting=is_starting)
        for name in change.stop:
            own[name].stop()
        for _ in range(change.start):
            self._start(group)
        if self._workers or any(segment.written > segment.handled for segment in ends.values()):
            waiting: set[asyncio.Task[object]] = {stopping, *self._workers}
            await asyncio.wait(waiting, timeout=FUNCTION_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            return False
        follower = Follower(stores_of(self._manager), self._function.scope, self._function.stream)
        follower.follow(
            SegmentProgress(parse_segment_name(name)[2], 0.0, 1.0, offset) for name, offset in offsets.items()
        )
        wakeup = asyncio.create_task(follower.wakeup.wait())
        try:
            await asyncio.wait([stopping, wakeup], timeout=FUNCTION_IDLE_POLL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wakeup.cancel()
            follower.close()
        return False

    async def _live_state(self, group: ReaderGroup) -> GroupState:
        """Return the group's state, without the readers of dead instances."""
        shared = shared_state_of(group)
        state = await shared.read()
        if all(member_of(reader) in self._members.live for reader in state.readers):
            return state
        await self._members.refresh()  # after reading the state: an instance reports before its workers join
        dead = [reader for reader in state.readers if member_of(reader) not in self._members.live]
        if not dead:
            return state
        self._log.warning("taking over from workers of dead instances: %s", ", ".join(dead))
        return await shared.change(lambda newest: newest.apply(*(Leave(reader) for reader in dead)))

    def _start(self, group: ReaderGroup) -> None:
        number = next(_numbers)
        name = f"w{number}"
        logger = self._log.getChild(name)
        worker = FunctionWorker(
            self._function,
            f"{self._members.name}.{name}",
            manager=self._manager,
            group=group,
            handler=_handler_of(self._function, name, logger),
            writers=self._writers,
            counters=self._counters,
            log=logger,
            step=self._step,
            starting=self._starting,
        )
        self._workers[asyncio.create_task(worker.run(), name=name)] = worker
        self._counters.count(starts=1)
        self._log.info("worker %s started", name)

    def _check_workers(self) -> None:
        """Remove workers that have ended; raise the error of one that failed."""
        for task in [task for task in self._workers if task.done()]:
            del self._workers[task]
            self._log.info("worker %s ended", task.get_name())
            task.result()

    async def _report(self, *, begins: bool = False) -> None:
        """Report this instance and its counters; stop if the function was stopped."""
        counters = self._counters
        rate = round(counters.rate.per_s(), 1)
        state = "running" if self._workers else "idle"
        await self._members.report(counters.counts.events, rate, 0, counters.last_error, state)
        await self._members.refresh()
        current = counters.counts, counters.last_error
        if begins or current != self._reported:
            record = await self._progress.report(self._function, self._members, counters, begins=begins)
            self._reported = current
        else:
            record = await self._progress.record.find()
        if record is not None and record.is_stopped and not self._stop.is_set():
            self._log.info("the function was stopped: this instance ends")
            self._stop.set()
