"""Keeps as many workers as a function needs, from none to many, and tells others what they do.

While there are workers, it looks every second at how far the segments are written and handled. Without any, it waits at
the tails of the segments, and nobody of the function is in the group.

How much of each segment a group has not read yet, and waiting until there is something: at the tails of all of its
segments, where the server answers once there is data, so that nobody asks again and again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress

from msgspec.structs import replace

from nadi.backoff import Backoff
from nadi.client.aio import ReaderGroup, StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.readergroup.group import made_anew, shared_state_of
from nadi.client.readergroup.plan import Watch
from nadi.client.readergroup.state import GroupState
from nadi.client.readergroup.updates import Leave
from nadi.client.segments.info import segment_info
from nadi.client.segments.segment_input import read_bytes
from nadi.errors import NadiError, SegmentNotFoundError, TruncatedError, UnavailableError
from nadi.functions.definition import Function
from nadi.functions.handlers.outcome import Handler
from nadi.functions.instances import is_dead, running_instances, short_name, this_instance
from nadi.functions.plan import Ends, WorkerPlan
from nadi.functions.progress import Counters, Instance, StoredProgress
from nadi.functions.stopped import FunctionError
from nadi.functions.worker import Worker
from nadi.functions.writing import Step, TransactionWriters, settle_all
from nadi.limits import FUNCTION_BEAT_S, FUNCTION_DRAIN_S, FUNCTION_LOOK_S, FUNCTION_PROBES

_AGAIN_S = 1.0  # after an error at a tail


async def ends_of(manager: StreamManager, state: GroupState) -> Mapping[str, Ends]:
    """Return the group's position in each of its segments and the tail; a segment that is sealed, or was truncated
    away, and only has to be left, has one byte after its position."""
    stores, limit = stores_of(manager), asyncio.Semaphore(FUNCTION_PROBES)

    async def ends(segment: str, offset: int) -> Ends:
        async with limit:
            try:
                info = await segment_info(stores, segment)
            except SegmentNotFoundError:
                return Ends(offset, offset + 1)
        handled = max(offset, info.start_offset)
        return Ends(handled, max(info.write_offset, handled + info.is_sealed))

    active = {name: held.offset for name, held in state.segments.items() if held.is_active}
    found = await asyncio.gather(*(ends(name, offset) for name, offset in active.items()))
    return dict(zip(active, found, strict=True))


async def wait_for_data(manager: StreamManager, state: GroupState, purpose: str) -> None:
    """Return once there is something to do after the group's position in any of its segments.

    purpose: names the connections used, which are given back.
    """
    stores = stores_of(manager)

    async def wait(segment: str, offset: int) -> None:
        while True:
            try:
                async with aclosing(
                    read_bytes(stores, segment, offset, None, purpose=purpose, read_ahead_bytes=1)
                ) as pieces:
                    async for _ in pieces:
                        return
                return  # sealed
            except (TruncatedError, SegmentNotFoundError):
                return
            except UnavailableError:
                await asyncio.sleep(_AGAIN_S)

    waits = [asyncio.create_task(wait(name, held.offset)) for name, held in state.segments.items() if held.is_active]
    try:
        if waits:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
    finally:
        for one in waits:
            one.cancel()
        for one in waits:
            with suppress(asyncio.CancelledError, NadiError):
                await one
        stores.release(purpose)


_REFRESH_MS = 250
_numbers = itertools.count(1)  # of this process's workers, whatever function they are of
MakeHandler = Callable[[str, logging.Logger], Handler]


class Supervisor:
    """One instance of a function. handler: makes one for each worker, by its name."""

    def __init__(
        self, function: Function, manager: StreamManager, handler: MakeHandler, step: Step, logger: logging.Logger
    ) -> None:
        self._function, self._manager, self._make_handler, self._step = function, manager, handler, step
        self._log = logger
        self._counters = Counters()
        self._plan = WorkerPlan(function.min_workers, function.max_workers, function.idle_s)
        self._watch = Watch("")
        self._writers = TransactionWriters(manager)
        self._progress = StoredProgress(manager, function.scope, function.name)
        self._workers: dict[asyncio.Task[None], Worker] = {}
        self._starting = asyncio.Semaphore(os.cpu_count() or 1)  # the first of many workers shall begin soon
        self._started_ms = int(time.time() * 1000)
        self._reported: tuple[Instance, float] | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, or everything in a sealed stream was handled. FunctionStoppedError and other errors
        that retrying can't mend, once all workers have ended."""
        group = await self._prepare()
        stopping = asyncio.create_task(stop.wait())
        backoff = Backoff(first_s=0.2, longest_s=5.0)
        try:
            while not stopping.done():
                try:
                    if await self._round(group, stopping):
                        break
                    backoff.reset()
                except UnavailableError as error:
                    self._log.warning("trying again: %s", error)
                    await asyncio.wait([stopping], timeout=backoff.take())
        except NadiError as error:
            self._counters.stopped(str(error), int(time.time() * 1000))
            raise
        finally:
            stopping.cancel()
            await self._end()

    # --- before and after ---------------------------------------------------------------------

    async def _prepare(self) -> ReaderGroup:
        """The function's group: made if it is new, without the readers of instances that died here, and with what
        these recorded committed."""
        function, manager = self._function, self._manager
        handler = self._make_handler("w0", self._log)
        try:
            await handler.start()  # to see at once that it can be
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
                f"there is a reader group {function.name} of {', '.join(state.streams)}: give the function another name"
            )
        for reader in state.readers:
            if is_dead(reader):
                self._log.info("worker %s died: going on where it was", short_name(reader))
                await group.reader_offline(reader)
        await self._check_others()
        await settle_all(group, self._writers, self._log)
        return group

    async def _check_others(self) -> None:
        """Count instances that died here as ended. FunctionError if another runs that does something else with
        events."""
        record, function = await self._progress.record.find(), self._function
        if record is None:
            return
        now_ms = int(time.time() * 1000)
        running = running_instances(record, now_ms)
        for name in record.instances.keys() - running.keys():
            await self._progress.report(function, name, None, now_ms)
        for what, theirs, ours in (
            ("handled by", record.handled_by, function.handled_by),
            ("output", record.output, function.output_stream),
            ("dead letters", record.dead_letters, function.dead_letter_stream),
            ("delivery", record.delivery, function.delivery),
        ):
            if running and theirs != ours:
                raise FunctionError(
                    f"function {function.name} is running on {next(iter(running.values())).host} with other options "
                    f"({what}: {theirs}, here {ours}), and they would share its events: give this one another name, or "
                    "stop that one first"
                )

    async def _end(self) -> None:
        """Let all workers finish what they have in hand; those that take too long lose it."""
        for worker in self._workers.values():
            worker.stop()
        if self._workers:
            await asyncio.wait(self._workers, timeout=FUNCTION_DRAIN_S)
        late = [task for task in self._workers if not task.done()]
        for task in late:
            self._log.warning(
                "worker %s was not done after %g s: what it had in hand is handled again",
                *(short_name(self._workers[task].reader_id), FUNCTION_DRAIN_S),
            )
            task.cancel()
        results = await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers.clear()
        with suppress(NadiError):
            await self._report_now(self._seen(), is_last=True)
        for result in results:
            if isinstance(result, Exception):
                self._log.error("%s", result)

    # --- a round ------------------------------------------------------------------------------

    async def _round(self, group: ReaderGroup, stopping: asyncio.Task[bool]) -> bool:
        """Compare what is unread with who is there, and wait; return whether everything is read."""
        self._check_workers()
        state = await self._present(group)
        if state.is_completed:  # the workers find out by themselves
            if self._workers:
                await asyncio.wait(self._workers, timeout=FUNCTION_LOOK_S)
                return False
            if error := await made_anew(stores_of(self._manager), state):
                raise error
            self._log.info("everything was handled: the stream is sealed")
            return True
        ends = await ends_of(self._manager, state)
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
        is_told = await self._report()
        if self._workers or any(one.written > one.handled for one in ends.values()):
            waiting: set[asyncio.Task[object]] = {stopping, *self._workers}
            await asyncio.wait(waiting, timeout=FUNCTION_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            return False
        purpose = f"function {self._function.name}, idle"
        watching = asyncio.create_task(wait_for_data(self._manager, state, purpose))
        try:
            timeout = FUNCTION_BEAT_S if is_told else FUNCTION_LOOK_S
            await asyncio.wait([stopping, watching], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        return False

    async def _present(self, group: ReaderGroup) -> GroupState:
        """The group's state, without readers that were silent for too long: if no reader is left, nobody else looks."""
        shared = shared_state_of(group)
        state = await shared.read()
        self._watch.look(state, time.monotonic())
        silent = self._watch.silent(state)
        if not silent:
            return state
        self._log.warning("workers that are silent are taken for dead: %s", ", ".join(silent))
        return await shared.change(lambda now: now.apply(*(Leave(name) for name in silent)))

    def _start(self, group: ReaderGroup) -> None:
        number = next(_numbers)
        name = f"w{number}"
        logger = self._log.getChild(name)
        worker = Worker(
            self._function,
            number,
            manager=self._manager,
            group=group,
            handler=self._make_handler(name, logger),
            writers=self._writers,
            counters=self._counters,
            logger=logger,
            step=self._step,
            starting=self._starting,
        )
        self._workers[asyncio.create_task(worker.run(), name=name)] = worker
        self._counters.started()
        self._log.info("worker %s started", name)

    def _check_workers(self) -> None:
        """Forget workers that have ended; raise the error of one that failed."""
        for task in [task for task in self._workers if task.done()]:
            worker = self._workers.pop(task)
            self._log.info("worker %s ended", short_name(worker.reader_id))
            task.result()

    # --- what others see ----------------------------------------------------------------------

    async def _report(self) -> bool:
        """Return whether others see how it is now."""
        now = self._seen()
        if self._reported is not None:
            before, at = self._reported
            waited = time.monotonic() - at
            if waited < FUNCTION_LOOK_S * 0.9 or (before == now and waited < FUNCTION_BEAT_S * 0.9):
                return before == now
        self._reported = now, time.monotonic()
        await self._report_now(now)
        return True

    def _seen(self) -> Instance:
        return Instance(
            socket.gethostname(),
            os.getpid(),
            self._started_ms,
            0,
            "running" if self._workers else "idle",
            tuple(sorted(short_name(worker.reader_id) for worker in self._workers.values())),
            round(self._counters.events_per_s(), 1),
            self._counters.counts,
            self._counters.last_error,
            self._counters.last_error_ms,
        )

    async def _report_now(self, now: Instance, *, is_last: bool = False) -> None:
        now_ms = int(time.time() * 1000)
        now = replace(now, updated_ms=now_ms)
        await self._progress.report(self._function, this_instance(), now, now_ms, is_last=is_last)
