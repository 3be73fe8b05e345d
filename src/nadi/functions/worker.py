"""One worker: a reader of the function's group, with a separate handler.

It handles one batch at a time. If the group has removed it as dead, or an output had to be undone, it joins the group
again; events that weren't recorded are handled again by the segment's new reader.

`outputs` stores the handler's results before the position behind them is recorded. With at-most-once delivery the
position is recorded first, and a failed event isn't retried.

A batch is handled in order. If several events failed together, the first half is tried again at once, then the second,
and so on down to single events: a single faulty event is found in logarithmically many steps, and the others are
handled. An event that fails alone is retried after a pause, up to `retries` times; then it fails for good. An event is
handled only after all events before it were handled or have failed for good.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Protocol

from msgspec import structs

from nadi.backoff import Backoff
from nadi.client.aio import EventRead, ReaderGroup, StreamManager
from nadi.client.readergroup.outputs import OutputReader, UncommittedOutput, open_output_reader
from nadi.errors import AlreadyExistsError, ConditionFailedError, NadiError, ReaderOfflineError, UnavailableError
from nadi.functions.definition import Function
from nadi.functions.handlers.event import (
    Failure,
    FunctionStoppedError,
    Handler,
    HandlerEvent,
    HandlerNotStartedError,
    Outcome,
    Output,
)
from nadi.functions.progress import Counters
from nadi.functions.writing import Acknowledged, ExactlyOnce, RedoError, Step, TransactionWriters, settle
from nadi.limits import FUNCTION_RETRY_AFTER_S, FUNCTION_SLICE_S
from nadi.model.delivery import AT_MOST_ONCE, EXACTLY_ONCE
from nadi.model.event import EventBlock
from nadi.model.field_path import parse_path
from nadi.model.json_events import known_key_in
from nadi.process.dead_letters import DeadLetter


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Events `first` to `last` of the batch, to be handled next; attempt: of its first event, from 1."""

    first: int
    last: int
    attempt: int = 1

    def __len__(self) -> int:
        return self.last - self.first


class FailureAction(Enum):
    """The action after a failure. GIVE_UP: write the first event of `current` as a dead letter, then call `skip`."""

    NARROWED = "narrowed"
    PAUSE = "pause"
    GIVE_UP = "give up"


class Pieces:
    """The remaining events of a batch of `count` events.

    >>> pieces = Pieces(4, retries=0)
    >>> len(pieces.current)
    4
    >>> pieces.done(3)
    >>> pieces.current
    BatchRange(first=3, last=4, attempt=1)
    """

    def __init__(self, count: int, retries: int) -> None:
        self._pending = deque([BatchRange(0, count)] if count else [])
        self._retries = retries
        self._failures = 0  # of the first event when called alone

    @property
    def current(self) -> BatchRange | None:
        return self._pending[0] if self._pending else None

    def done(self, count: int) -> None:
        piece = self._pending.popleft()
        if count:
            self._failures = 0
        if count < len(piece):
            self._pending.appendleft(BatchRange(piece.first + count, piece.last, 1 if count else piece.attempt))

    def skip(self) -> int:
        """Skip the first event, which failed for good; return the number of attempts."""
        attempts = self._pending[0].attempt
        self.done(1)
        return attempts

    def failed(self, outcome: Outcome, *, redo: bool = False) -> FailureAction:
        """Record a failure, after `done` was called with the outcome's `done` events.

        redo: the outputs of these `done` events were lost, so they are handled again, separately.
        """
        failure, piece = outcome.failure, self._pending[0]
        assert failure is not None
        if redo and outcome.done:
            at = piece.first + outcome.done
            return self._again(FailureAction.NARROWED, at, at + 1)
        if failure.is_busy:
            return self._again(FailureAction.PAUSE, piece.last)
        together = min(outcome.together, len(piece))
        if together > 1:
            return self._again(FailureAction.NARROWED, piece.first + (together + 1) // 2, piece.first + together)
        self._failures += 1
        if failure.is_final or self._failures > self._retries:
            return FailureAction.GIVE_UP
        return self._again(FailureAction.PAUSE, piece.first + 1)

    def _again(self, action: FailureAction, *ends: int) -> FailureAction:
        """Retry the current piece's events up to each of these ends together; those after the last end count as new."""
        piece = self._pending.popleft()
        parts = [BatchRange(first, last, piece.attempt + 1) for first, last in pairwise([piece.first, *ends])]
        if ends[-1] < piece.last:
            parts.append(BatchRange(ends[-1], piece.last))
        self._pending.extendleft(reversed(parts))
        return action


class ResultOutputs(Protocol):
    """Stores results: before the position is recorded, or both at once in transactions."""

    def begin(self, end: int) -> None:
        """Called before the handler gets the events up to `end`, and again with where it has stopped."""

    async def store(self, start: int, end: int, outputs: Sequence[Output], dead_letters: Sequence[Output]) -> None:
        """Store the results of the current events from `start` to `end`, and record these as done."""

    async def close(self) -> None: ...


class Stopping(Exception):
    """The worker is stopping, with a batch unfinished."""


@dataclass(eq=False)
class Delivery:
    """Delivers events to one worker's handler. pause: waits that many seconds; raises Stopping if the worker stops."""

    function: Function
    handler: Handler
    counters: Counters
    log: logging.Logger
    pause: Callable[[float], Awaitable[None]]

    def __post_init__(self) -> None:
        function = self.function
        self._key_path = None if function.key_field is None else parse_path(function.key_field)
        self._is_at_most_once = function.delivery == AT_MOST_ONCE
        self._backoff = Backoff(
            first_s=function.retry_first_s,
            longest_s=function.retry_longest_s,
            chance=lambda: random.uniform(0.5, 1.0),  # spreads the workers' retries
        )

    async def deliver(self, segment: str, block: EventBlock, outputs: ResultOutputs) -> None:
        """Handle a block's events; FunctionStoppedError if one fails for good without a dead-letter stream."""
        path = self._key_path
        events = [
            HandlerEvent(data, segment, at, None if path is None else known_key_in(data, path))
            for at, data in zip(block.offsets().tolist(), block, strict=True)
        ]
        ends = [*block.offsets().tolist()[1:], block.offset + block.size_bytes]
        pieces = Pieces(len(events), self.function.retries)
        wants_outputs = self.function.output is not None
        is_first = True
        while (piece := pieces.current) is not None:
            if not is_first:
                await self.pause(0.0)
            is_first = False
            outputs.begin(ends[piece.last - 1])
            started = time.monotonic()
            outcome = await self.handler.call(events[piece.first : piece.last], piece.attempt)
            share = max(outcome.done / self.function.batch_events, (time.monotonic() - started) / FUNCTION_SLICE_S)
            attempted = outcome.done + (outcome.together if outcome.failure is not None else 0)
            outputs.begin(ends[piece.first + attempted - 1])
            redo = outcome.is_lost and wants_outputs and not self._is_at_most_once
            if outcome.done and not redo:
                end = ends[piece.first + outcome.done - 1]
                with self.counters.storing(min(share, 1.0)):
                    # outputs without a key keep the order of their segment
                    keyed = [(segment if key is None else key, data) for key, data in outcome.outputs]
                    await outputs.store(events[piece.first].offset, end, keyed, [])
                self.counters.handled(outcome.done, len(outcome.outputs), end - events[piece.first].offset)
                pieces.done(outcome.done)
                self._backoff.reset()
            if outcome.failure is None:
                continue
            failed = events[piece.first + outcome.done]
            if self._is_at_most_once:
                self.counters.failed(f"{failed.id}: {outcome.failure}")
                for at in range(piece.first + outcome.done, piece.first + attempted):
                    await self._write_dead_letter(events[at], ends[at], outcome.failure, pieces, outputs)
                continue
            action = pieces.failed(outcome, redo=redo)
            self.counters.failed(f"{failed.id}: {outcome.failure}")
            if action is FailureAction.GIVE_UP:
                await self._write_dead_letter(
                    failed, ends[piece.first + outcome.done], outcome.failure, pieces, outputs
                )
            elif action is FailureAction.PAUSE:
                await self._pause_after(failed, outcome.failure)
            else:
                self.log.warning(
                    "%s events from %s failed together: %s; halving the batch",
                    outcome.together,
                    failed.id,
                    outcome.failure,
                )

    async def _pause_after(self, event: HandlerEvent, failure: Failure) -> None:
        pause_s = self._backoff.take()
        if failure.retry_after_s is not None:
            pause_s = max(pause_s, min(failure.retry_after_s, FUNCTION_RETRY_AFTER_S))
        self.log.warning("event %s failed: %s; retrying in %.1f s", event.id, failure, pause_s)
        self.counters.count(retries=1)
        await self.pause(pause_s)

    async def _write_dead_letter(
        self, event: HandlerEvent, end: int, failure: Failure, pieces: Pieces, outputs: ResultOutputs
    ) -> None:
        attempts = pieces.skip()
        self._backoff.reset()
        if self.function.dead_letters is None and self._is_at_most_once:
            self.log.error("skipped event %s, which failed: %s", event.id, failure)
            return
        if self.function.dead_letters is None:
            raise FunctionStoppedError(self.function.name, event.id, attempts, str(failure))
        letter = DeadLetter(
            by=f"function {self.function.name}",
            **structs.asdict(event),
            reason=failure.message,
            kind=failure.kind,
            error=failure.error,
            attempts=attempts,
            failed_ms=int(time.time() * 1000),
        )
        await outputs.store(event.offset, end, [], [(event.segment, letter.encode())])
        self.counters.count(dead_letters=1)
        self.log.error("wrote event %s as a dead letter after %d attempts: %s", event.id, attempts, failure)


def member_of(reader_id: str) -> str:
    """Return the name of a worker's instance among its `Members`."""
    return reader_id.partition(".")[0]


@dataclass(eq=False)
class FunctionWorker:
    """Runs until `stop`, or until all is read. name: the instance's name and its own; reader_id: in the group, which it
    may join several times."""

    function: Function
    name: str
    manager: StreamManager
    group: ReaderGroup
    handler: Handler
    writers: TransactionWriters
    counters: Counters
    log: logging.Logger
    step: Step
    starting: asyncio.Semaphore

    def __post_init__(self) -> None:
        self._stopping = asyncio.Event()
        self._part = 0
        self.reader_id = f"{self.name}.0"

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Finish and record the handler's current events, and leave the group."""
        self._stopping.set()

    async def run(self) -> None:
        delivery = Delivery(self.function, self.handler, self.counters, self.log, self._pause)
        backoff = Backoff(first_s=0.1, longest_s=5.0)
        is_started = False
        try:
            while not self._stopping.is_set():
                try:
                    if not is_started:
                        async with self.starting:
                            await self.handler.start()
                        is_started = True
                    await self._read(delivery, backoff)
                    return
                except Stopping:
                    return
                except RedoError:
                    continue
                except (ReaderOfflineError, ConditionFailedError, AlreadyExistsError) as error:
                    self.log.warning("joining the group again: %s", error)
                except (UnavailableError, HandlerNotStartedError) as error:
                    self.counters.failed(str(error))
                    self.log.warning("retrying: %s", error)
                with suppress(Stopping):
                    await self._pause(backoff.take())
        finally:
            await self.handler.close()

    async def _read(self, delivery: Delivery, backoff: Backoff) -> None:
        """Read as one reader until all is read or the worker stops."""
        self.reader_id = f"{self.name}.{self._part}"
        self._part += 1
        reader = await open_output_reader(
            self.group,
            self.reader_id,
            on_damage="skip" if self.function.skip_damage else "raise",
            records_first=self.function.delivery == AT_MOST_ONCE,
        )
        outputs: ResultOutputs
        if self.function.delivery == EXACTLY_ONCE:
            outputs = ExactlyOnce(self.writers, self.function, reader, self.log, self.step)
        else:
            outputs = Acknowledged(self.manager, self.function, reader)
        try:
            while (item := await self._next(reader)) is not None:
                if isinstance(item, UncommittedOutput):
                    await settle(item, reader, self.writers, self.function.name, self.log)
                elif item.is_read_completed:
                    return
                elif item.gap is not None:
                    self.counters.count(gaps=1)
                    self.log.warning(
                        "skipped data of %s from %d to %s, which %s",
                        *(item.segment, item.gap.from_offset, item.gap.to_offset or "its end"),
                        f"is damaged ({item.gap.damage})" if item.gap.damage else "was truncated before it was read",
                    )
                elif item.block is not None:
                    with self.counters.busy():
                        await delivery.deliver(item.segment, item.block, outputs)
                    backoff.reset()
        finally:
            await outputs.close()
            with suppress(NadiError):  # the others notice by its silence
                await reader.close(is_done=False)

    async def _next(self, reader: OutputReader) -> EventRead | UncommittedOutput | None:
        """Return the next batch or other item of the group; None if the worker stops."""
        if self._stopping.is_set():
            return None
        reading = asyncio.create_task(reader.next_batch(self.function.batch_events, self.function.batch_ms / 1000))
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
        """Wait; raise Stopping if the worker stops meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        if self._stopping.is_set():
            raise Stopping
