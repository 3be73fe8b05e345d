"""One worker: a reader of the function's group, and a handler of its own.

It takes one batch at a time. If others took it for dead meanwhile, or an output had to be undone, it joins the group
again; what it had not recorded is handled again, by whoever has the segment then.

What the handler returned is stored, by `outputs`, before the position after it counts. At most once, the position is
there already: an event that fails isn't tried again, and what it was handled with neither.

A batch is handled in order. Of several events that failed together, the first half is tried at once, then the
second, and so on down to single events: so a single one that fails is found in as many steps as the batch can be
halved, and the others are done. An event that fails alone is tried again after a pause, up to `retries` times; then
it is given up. Nothing after an event is handled before that event is done or given up.
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
from nadi.client.readergroup.outputs import OutputReader, Unsettled, open_output_reader
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
    """What to do after a failure. GIVE_UP: set the first event of `current` aside, then call `skip`."""

    NARROWED = "narrowed"
    PAUSE = "pause"
    GIVE_UP = "give up"


class Pieces:
    """The rest of a batch of `count` events.

    >>> pieces = Pieces(4, retries=0)
    >>> len(pieces.current)
    4
    >>> pieces.done(3)
    >>> pieces.current
    Piece(first=3, last=4, attempt=1)
    """

    def __init__(self, count: int, retries: int) -> None:
        self._rest = deque([BatchRange(0, count)] if count else [])
        self._retries = retries
        self._failures = 0  # of the first event, alone

    @property
    def current(self) -> BatchRange | None:
        return self._rest[0] if self._rest else None

    def done(self, count: int) -> None:
        piece = self._rest.popleft()
        if count:
            self._failures = 0
        if count < len(piece):
            self._rest.appendleft(BatchRange(piece.first + count, piece.last, 1 if count else piece.attempt))

    def skip(self) -> int:
        """Give the first event up; return how often it was tried."""
        attempts = self._rest[0].attempt
        self.done(1)
        return attempts

    def failed(self, outcome: Outcome, *, redo: bool = False) -> FailureAction:
        """Take note of a failure after those of the outcome's `done` events that `done` was called with.

        redo: what the outcome's `done` events gave was lost with it, so these are to be handled again, on their own.
        """
        failure, piece = outcome.failure, self._rest[0]
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

    def _again(self, verdict: FailureAction, *ends: int) -> FailureAction:
        """Have the current piece's events up to each of these ends tried again together, and those behind as new."""
        piece = self._rest.popleft()
        parts = [BatchRange(first, last, piece.attempt + 1) for first, last in pairwise([piece.first, *ends])]
        if ends[-1] < piece.last:
            parts.append(BatchRange(ends[-1], piece.last))
        self._rest.extendleft(reversed(parts))
        return verdict


class ResultOutputs(Protocol):
    """Where results go: written and acknowledged before the position is noted, or both at once in transactions."""

    def begin(self, end: int) -> None:
        """The handler is about to get the events in hand up to `end`, or got no more than these."""

    async def store(self, start: int, end: int, outputs: Sequence[Output], letters: Sequence[Output]) -> None:
        """Store what was made of the events in hand from `start` to `end`, and count these as done."""

    async def close(self) -> None: ...


class Stopping(Exception):
    """The worker is to stop, and the rest of the batch is not done."""


@dataclass(eq=False)
class Delivery:
    """Of one worker. `pause`: waits so many seconds; it raises Stopping if the worker is to stop meanwhile."""

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
            chance=lambda: random.uniform(0.5, 1.0),  # so that workers don't come back all at once
        )

    async def deliver(self, segment: str, block: EventBlock, outputs: ResultOutputs) -> None:
        """Handle a block's events; FunctionStoppedError at one that is given up without a dead-letter stream."""
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
            began = time.monotonic()
            outcome = await self.handler.call(events[piece.first : piece.last], piece.attempt)
            share = max(outcome.done / self.function.batch_events, (time.monotonic() - began) / FUNCTION_SLICE_S)
            begun = outcome.done + (outcome.together if outcome.failure is not None else 0)
            outputs.begin(ends[piece.first + begun - 1])
            redo = outcome.is_lost and wants_outputs and not self._is_at_most_once
            if outcome.done and not redo:
                end = ends[piece.first + outcome.done - 1]
                with self.counters.storing(min(share, 1.0)):
                    # those without a key keep the order of their segment
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
                for at in range(piece.first + outcome.done, piece.first + begun):
                    await self._give_up(events[at], ends[at], outcome.failure, pieces, outputs)
                continue
            verdict = pieces.failed(outcome, redo=redo)
            self.counters.failed(f"{failed.id}: {outcome.failure}")
            if verdict is FailureAction.GIVE_UP:
                await self._give_up(failed, ends[piece.first + outcome.done], outcome.failure, pieces, outputs)
            elif verdict is FailureAction.PAUSE:
                await self._pause_after(failed, outcome.failure)
            else:
                self.log.warning("%s events from %s on: %s; narrowing", outcome.together, failed.id, outcome.failure)

    async def _pause_after(self, event: HandlerEvent, failure: Failure) -> None:
        pause_s = self._backoff.take()
        if failure.retry_after_s is not None:
            pause_s = max(pause_s, min(failure.retry_after_s, FUNCTION_RETRY_AFTER_S))
        self.log.warning("event %s: %s; trying again in %.1f s", event.id, failure, pause_s)
        self.counters.count(retries=1)
        await self.pause(pause_s)

    async def _give_up(
        self, event: HandlerEvent, end: int, failure: Failure, pieces: Pieces, outputs: ResultOutputs
    ) -> None:
        attempts = pieces.skip()
        self._backoff.reset()
        if self.function.dead_letters is None and self._is_at_most_once:
            self.log.error("event %s is left out: %s", event.id, failure)
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
            given_up_ms=int(time.time() * 1000),
        )
        await outputs.store(event.offset, end, [], [(event.segment, letter.encode())])
        self.counters.count(dead_letters=1)
        self.log.error("event %s is a dead letter after %d attempts: %s", event.id, attempts, failure)


def member_of(reader_id: str) -> str:
    """The name of a worker's instance among its `Members`."""
    return reader_id.partition(".")[0]


@dataclass(eq=False)
class FunctionWorker:
    """Runs with `run`, until it was told to `stop`, or everything is read. name: that of its instance, and its own;
    reader_id: in the group, which it may join several times."""

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
        """Finish what the handler has in hand, record it, and leave the group."""
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
                    self.log.warning("trying again: %s", error)
                with suppress(Stopping):
                    await self._pause(backoff.take())
        finally:
            await self.handler.close()

    async def _read(self, delivery: Delivery, backoff: Backoff) -> None:
        """As one reader, until everything is read or the worker is to stop."""
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
            while (found := await self._next(reader)) is not None:
                if isinstance(found, Unsettled):
                    await settle(found, reader, self.writers, self.function.name, self.log)
                elif found.is_read_completed:
                    return
                elif found.gap is not None:
                    self.counters.count(gaps=1)
                    self.log.warning(
                        "data of %s from %d to %s %s: going on after it",
                        *(found.segment, found.gap.from_offset, found.gap.to_offset or "its end"),
                        f"is damaged ({found.gap.damage})" if found.gap.damage else "was truncated before it was read",
                    )
                elif found.block is not None:
                    with self.counters.busy():
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
        """Stopping if the worker is to stop meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        if self._stopping.is_set():
            raise Stopping
