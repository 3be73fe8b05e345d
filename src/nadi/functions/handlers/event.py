"""What a handler gets: events, and a context; and what came of them: how many were handled, in order, what was made of
them, and why it ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from nadi.errors import NadiError
from nadi.naming import parse_segment_name


class HandlerEvent(msgspec.Struct, frozen=True, gc=False):
    """An event and where it is stored: `segment` is the segment's full name, `offset` where the event starts in it.

    routing_key: None unless the function says how to find it in the data: streams don't store it.

    >>> event = Event(b"12 Wh", "home/meters/0.#epoch.0", 40)
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
        """The event's place as a text: the same each time that the event is handled."""
        return f"{self.segment}@{self.offset}"

    @property
    def stream(self) -> str:
        """The stream, as `scope/stream`."""
        scope, stream, _ = parse_segment_name(self.segment)
        return f"{scope}/{stream}"


@dataclass(frozen=True, slots=True)
class Context:
    """Of one call. attempt: 1 the first time these events are handled; worker: the name of this process in the logs;
    logger: writes to standard error, with the worker's name."""

    function: str
    worker: str
    attempt: int
    logger: logging.Logger


class Reject(Exception):
    """Raised by a handler: this event can't be handled, and trying again is of no use.

    It goes to the dead-letter stream at once; without one, the function stops.
    """


Output = tuple[str | None, bytes]  # routing key, event


class FunctionError(NadiError):
    """The function can't go on: its handler can't be started, or what it was asked for can't be done."""


class HandlerNotStartedError(FunctionError):
    """The handler's process can't be started now, or died before it was ready: the machine may be short of memory or
    processes. While the function runs it is tried again."""


class FunctionStoppedError(FunctionError):
    """An event could not be handled, and there is no dead-letter stream to set it aside in. The group's position is
    just before it: started again, the function begins with it."""

    def __init__(self, function: str, event: str, attempts: int, why: str) -> None:
        tries = "1 attempt" if attempts == 1 else f"{attempts:,} attempts"
        super().__init__(
            f"function {function} stopped at event {event} after {tries}: {why}. Nothing after it was handled in that "
            "segment, so order is kept. Correct the handler and start the function again, or give it a dead-letter "
            "stream (--dead-letter STREAM) to go on without such events"
        )
        self.function, self.event, self.attempts, self.why = function, event, attempts, why


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an event, or several at once, could not be handled.

    kind: "raised", "died", "timed out", "refused" (by a service) or "unavailable" (the service could not be asked).
    error: the exception's class, or what stands for it. is_final: trying again is of no use. is_busy: it is not the
    events' fault, try again as often as it takes. retry_after_s: not before so many seconds.
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
    """`done`: how many events were handled, from the first; `outputs`: what was made of them, in order; `failure`: of
    the next `together` events. is_lost: the outputs of those done are not known."""

    done: int
    outputs: list[Output] = []
    failure: Failure | None = None
    together: int = 1
    is_lost: bool = False


class Handler(Protocol):
    """A process, or a service; one for each worker. All of it may be cancelled at any time."""

    async def start(self) -> None:
        """Be ready for events; FunctionError if it never can."""

    async def call(self, events: Sequence[HandlerEvent], attempt: int) -> Outcome: ...

    async def close(self) -> None: ...
