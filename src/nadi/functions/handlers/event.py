"""What a handler gets: events, and a context; and what it may raise to have an event set aside."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from nadi.naming import parse_segment_name


class Event(msgspec.Struct, frozen=True, gc=False):
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
