"""One batch, from the reader to its recorded position: handled piece by piece, tried again, narrowed, set aside.

What the handler returned is stored, by `outputs`, before the position after it counts. At most once, the position is
there already: an event that fails isn't tried again, and what it was handled with neither.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from nadi.backoff import Backoff
from nadi.functions.dead_letters import DeadLetter
from nadi.functions.definition import Function
from nadi.functions.handlers.event import Event
from nadi.functions.handlers.outcome import Failure, Handler, Output
from nadi.functions.pieces import Pieces, Verdict
from nadi.functions.progress import Counters
from nadi.functions.stopped import FunctionStoppedError
from nadi.limits import FUNCTION_RETRY_AFTER_S, FUNCTION_SLICE_S
from nadi.model.delivery import AT_MOST_ONCE
from nadi.model.event import EventBlock
from nadi.model.field_path import parse_path
from nadi.model.json_events import known_key_in


class Outputs(Protocol):
    """Where results go: written and acknowledged before the position is noted, or both at once in transactions."""

    def begin(self, end: int) -> None:
        """The handler is about to get the events in hand up to `end`, or got no more than these."""

    async def store(self, start: int, end: int, outputs: Sequence[Output], letters: Sequence[Output]) -> None:
        """Store what was made of the events in hand from `start` to `end`, and count these as done."""

    async def close(self) -> None: ...


class Stopping(Exception):
    """The worker is to stop, and the rest of the batch is not done."""


class Delivery:
    """Of one worker. `pause`: waits so many seconds; it raises Stopping if the worker is to stop meanwhile."""

    def __init__(
        self,
        function: Function,
        handler: Handler,
        counters: Counters,
        logger: logging.Logger,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._function, self._handler, self._counters, self._log = function, handler, counters, logger
        self._key_path = None if function.key_field is None else parse_path(function.key_field)
        self._pause = pause
        self._is_at_most_once = function.delivery == AT_MOST_ONCE
        self._backoff = Backoff(
            first_s=function.retry_first_s,
            longest_s=function.retry_longest_s,
            chance=lambda: random.uniform(0.5, 1.0),  # so that workers don't come back all at once
        )

    async def deliver(self, segment: str, block: EventBlock, outputs: Outputs) -> None:
        """Handle a block's events; FunctionStoppedError at one that is given up without a dead-letter stream."""
        events = self._events(segment, block)
        ends = [*block.offsets().tolist()[1:], block.offset + block.size_bytes]
        pieces = Pieces(len(events), self._function.retries)
        wants_outputs = self._function.output is not None
        is_first = True
        while (piece := pieces.current) is not None:
            if not is_first:
                await self._pause(0.0)
            is_first = False
            outputs.begin(ends[piece.last - 1])
            began = time.monotonic()
            outcome = await self._handler.call(events[piece.first : piece.last], piece.attempt)
            share = max(outcome.done / self._function.batch_events, (time.monotonic() - began) / FUNCTION_SLICE_S)
            begun = outcome.done + (outcome.together if outcome.failure is not None else 0)
            outputs.begin(ends[piece.first + begun - 1])
            redo = outcome.is_lost and wants_outputs and not self._is_at_most_once
            if outcome.done and not redo:
                end = ends[piece.first + outcome.done - 1]
                with self._counters.storing(min(share, 1.0)):
                    await outputs.store(events[piece.first].offset, end, self._keyed(segment, outcome.outputs), [])
                self._counters.handled(outcome.done, len(outcome.outputs), end - events[piece.first].offset)
                pieces.done(outcome.done)
                self._backoff.reset()
            if outcome.failure is None:
                continue
            failed = events[piece.first + outcome.done]
            if self._is_at_most_once:
                self._counters.failed(f"{failed.id}: {outcome.failure}", int(time.time() * 1000))
                for at in range(piece.first + outcome.done, piece.first + begun):
                    await self._give_up(events[at], ends[at], outcome.failure, pieces, outputs)
                continue
            verdict = pieces.failed(outcome, redo=redo)
            self._counters.failed(f"{failed.id}: {outcome.failure}", int(time.time() * 1000))
            if verdict is Verdict.GIVE_UP:
                await self._give_up(failed, ends[piece.first + outcome.done], outcome.failure, pieces, outputs)
            elif verdict is Verdict.PAUSE:
                await self._pause_after(failed, outcome.failure)
            else:
                self._log.warning("%s events from %s on: %s; narrowing", outcome.together, failed.id, outcome.failure)

    def _events(self, segment: str, block: EventBlock) -> list[Event]:
        places = block.offsets().tolist()
        path = self._key_path
        if path is None:
            return [Event(data, segment, at) for at, data in zip(places, block, strict=True)]
        return [Event(data, segment, at, known_key_in(data, path)) for at, data in zip(places, block, strict=True)]

    def _keyed(self, segment: str, outputs: Sequence[Output]) -> list[Output]:
        """Outputs without a key keep the order of their segment: its name is their key."""
        return [(key if key is not None else segment, data) for key, data in outputs]

    async def _pause_after(self, event: Event, failure: Failure) -> None:
        pause_s = self._backoff.take()
        if failure.retry_after_s is not None:
            pause_s = max(pause_s, min(failure.retry_after_s, FUNCTION_RETRY_AFTER_S))
        self._log.warning("event %s: %s; trying again in %.1f s", event.id, failure, pause_s)
        self._counters.retried()
        await self._pause(pause_s)

    async def _give_up(self, event: Event, end: int, failure: Failure, pieces: Pieces, outputs: Outputs) -> None:
        attempts = pieces.skip()
        self._backoff.reset()
        if self._function.dead_letters is None and self._is_at_most_once:
            self._log.error("event %s is left out: %s", event.id, failure)
            return
        if self._function.dead_letters is None:
            raise FunctionStoppedError(self._function.name, event.id, attempts, str(failure))
        letter = DeadLetter.of(self._function.name, event, failure, attempts, int(time.time() * 1000))
        await outputs.store(event.offset, end, [], [(event.segment, letter.encode())])
        self._counters.dead_lettered()
        self._log.error("event %s is a dead letter after %d attempts: %s", event.id, attempts, failure)
