"""One worker: a reader of the function's group, and a handler of its own.

It takes one batch at a time. If others took it for dead meanwhile, or an output had to be undone, it joins the group
again; what it had not recorded is handled again, by whoever has the segment then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from nadi.backoff import Backoff
from nadi.client.aio import EventRead, ReaderGroup, StreamManager
from nadi.client.readergroup.outputs import OutputReader, Unsettled, open_output_reader
from nadi.errors import AlreadyExistsError, ConditionFailedError, NadiError, ReaderOfflineError, UnavailableError
from nadi.functions.definition import Function
from nadi.functions.delivery import Delivery, Outputs, Stopping
from nadi.functions.handlers.outcome import Handler
from nadi.functions.instances import worker_name
from nadi.functions.progress import Counters
from nadi.functions.stopped import HandlerNotStartedError
from nadi.functions.writing import AtLeastOnce, AtMostOnce, ExactlyOnce, RedoError, Step, TransactionWriters, settle
from nadi.model.delivery import AT_MOST_ONCE, EXACTLY_ONCE


class Worker:
    """Runs with `run`, until it was told to `stop`, or everything is read. `reader_id`: its name in the group."""

    def __init__(
        self,
        function: Function,
        number: int,
        *,
        manager: StreamManager,
        group: ReaderGroup,
        handler: Handler,
        writers: TransactionWriters,
        counters: Counters,
        logger: logging.Logger,
        step: Step,
        starting: asyncio.Semaphore,
    ) -> None:
        self._function, self._number, self._manager, self._group = function, number, manager, group
        self._handler, self._writers, self._counters, self._log, self._step = handler, writers, counters, logger, step
        self._starting = starting
        self._stopping = asyncio.Event()
        self._part = 0
        self._batch_s = function.batch_ms / 1000
        self.reader_id = worker_name(number, 0)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Finish what the handler has in hand, record it, and leave the group."""
        self._stopping.set()

    async def run(self) -> None:
        delivery = Delivery(self._function, self._handler, self._counters, self._log, self._pause)
        backoff = Backoff(first_s=0.1, longest_s=5.0)
        is_started = False
        try:
            while not self._stopping.is_set():
                try:
                    if not is_started:
                        async with self._starting:
                            await self._handler.start()
                        is_started = True
                    await self._read(delivery, backoff)
                    return
                except Stopping:
                    return
                except RedoError:
                    continue
                except (ReaderOfflineError, ConditionFailedError, AlreadyExistsError) as error:
                    self._log.warning("joining the group again: %s", error)
                except (UnavailableError, HandlerNotStartedError) as error:
                    self._counters.failed(str(error), int(time.time() * 1000))
                    self._log.warning("trying again: %s", error)
                with suppress(Stopping):
                    await self._pause(backoff.take())
        finally:
            await self._handler.close()

    async def _read(self, delivery: Delivery, backoff: Backoff) -> None:
        """As one reader, until everything is read or the worker is to stop."""
        self.reader_id = worker_name(self._number, self._part)
        self._part += 1
        reader = await open_output_reader(
            self._group,
            self.reader_id,
            on_damage="skip" if self._function.skip_damage else "raise",
            records_first=self._function.delivery == AT_MOST_ONCE,
        )
        outputs: Outputs
        if self._function.delivery == EXACTLY_ONCE:
            outputs = ExactlyOnce(self._writers, self._function, reader, self._log, self._step)
        else:
            kind = AtMostOnce if self._function.delivery == AT_MOST_ONCE else AtLeastOnce
            outputs = kind(self._manager, self._function, reader)
        try:
            while (found := await self._next(reader)) is not None:
                if isinstance(found, Unsettled):
                    await settle(found, reader, self._writers, self._function.name, self._log)
                elif found.is_read_completed:
                    return
                elif found.gap is not None:
                    self._counters.met_gap()
                    self._log.warning(
                        "data of %s from %d to %s %s: going on after it",
                        *(found.segment, found.gap.from_offset, found.gap.to_offset or "its end"),
                        f"is damaged ({found.gap.damage})" if found.gap.damage else "was truncated before it was read",
                    )
                elif found.block is not None:
                    with self._counters.busy():
                        await delivery.deliver(found.segment, found.block, outputs)
                    backoff.reset()
        finally:
            await outputs.close()
            with suppress(NadiError):  # then the others find it silent
                await reader.close(is_done=False)

    async def _next(self, reader: OutputReader) -> EventRead | Unsettled | None:
        """The next batch, or whatever else the group reports; None if the worker is to stop."""
        if self._stopping.is_set():
            return None
        reading = asyncio.create_task(reader.next_batch(self._function.batch_events, self._batch_s))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not reading.done():
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading
        return reading.result() if not reading.cancelled() else None

    async def _pause(self, seconds: float) -> None:
        """Stopping if the worker is to stop meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        if self._stopping.is_set():
            raise Stopping
