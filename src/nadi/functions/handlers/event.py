"""The arguments of a handler: events and a context; and the outcome of a call: the number of events handled, their
outputs, and the failure that ended it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from nadi.errors import NadiError
from nadi.naming import parse_segment_name


class HandlerEvent(msgspec.Struct, frozen=True, gc=False):
    """An event and its position: `segment` is the segment's full name, `offset` where the event starts in it.

    routing_key: None unless the function has a key field: streams don't store routing keys.

    >>> event = HandlerEvent(b"12 Wh", "home/meters/0.#epoch.0", 40)
    >>> event.id
    'home/meters/0.#epoch.0@40'
    >>> event.stream
    'home/meters'
    """

    data: bytes
    segment: str
    offset: int
    routing_key: str | None = None

    @property
    def id(self) -> str:
        """The event's position as text, the same each time that the event is handled."""
        return f"{self.segment}@{self.offset}"

    @property
    def stream(self) -> str:
        """The stream, as `scope/stream`."""
        scope, stream, _ = parse_segment_name(self.segment)
        return f"{scope}/{stream}"


@dataclass(frozen=True, slots=True)
class Context:
    """The context of a call. attempt: 1 for the first; worker: the name of this process in logs; logger: writes to
    standard error, with the worker's name."""

    function: str
    worker: str
    attempt: int
    logger: logging.Logger


class Reject(Exception):
    """Raised by a handler for an event that can't be handled and shouldn't be retried.

    It goes to the dead-letter stream at once; without one, the function stops.
    """


Output = tuple[str | None, bytes]  # routing key, event


class FunctionError(NadiError):
    """The function can't continue: its handler can't be started, or a request can't be fulfilled."""


class HandlerNotStartedError(FunctionError):
    """The handler's process can't be started now, or died before it was ready: the machine may lack memory or
    processes. A running function retries."""


class FunctionStoppedError(FunctionError):
    """An event failed for good, and the function doesn't have a dead-letter stream. The group's position is just before
    the event: a restarted function begins with it."""

    def __init__(self, function: str, event: str, attempts: int, why: str) -> None:
        tries = "1 attempt" if attempts == 1 else f"{attempts:,} attempts"
        super().__init__(
            f"function {function} stopped at event {event} after {tries}: {why}. No later event of its segment was "
            "handled, so order is kept. Fix the handler and restart the function, or skip such events with a "
            "dead-letter stream (--dead-letter STREAM)"
        )
        self.function, self.event, self.attempts, self.why = function, event, attempts, why


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why an event, or several at once, could not be handled.

    kind: "raised", "died", "timed out", "refused" (by a service) or "unavailable" (no answer from the service). error:
    the exception's class or a substitute. is_final: don't retry. is_busy: the events aren't the cause: retry without
    limit. retry_after_s: earliest retry.
    """

    kind: str
    error: str
    message: str
    is_final: bool = False
    is_busy: bool = False
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.error}: {self.message}"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a call. done: number of events handled, from the first; outputs: theirs, in order; failure: of the
    next `together` events. is_lost: the outputs of the events done are lost."""

    done: int
    outputs: list[Output] = []
    failure: Failure | None = None
    together: int = 1
    is_lost: bool = False


class Handler(Protocol):
    """A process or a service, one for each worker. Any method may be cancelled at any time."""

    async def start(self) -> None:
        """Get ready for events; FunctionError if that is impossible."""

    async def call(self, events: Sequence[HandlerEvent], attempt: int) -> Outcome: ...

    async def close(self) -> None: ...
