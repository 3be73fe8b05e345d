"""Dead letters: events that a function gave up, as JSON in a stream, with what there is to know for trying again."""

from __future__ import annotations

import msgspec

from nadi.errors import SerializationError
from nadi.functions.handlers.event import Event
from nadi.functions.handlers.outcome import Failure
from nadi.limits import DEAD_LETTER_DATA_BYTES


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was given up.

    segment, offset: where it is in its stream, as in its `id` there; `data`: the event, base64 in the JSON, or None for
    one over 4 MiB, which has to be read there. attempts: how often it was tried; kind, error, message: of the last
    failure; given_up_ms: when, in milliseconds since 1970.

    >>> failure = Failure(kind="raised", error="ValueError", message="no number")
    >>> letter = DeadLetter.of("billing", Event(b"x", "home/meters/0.#epoch.0", 0), failure, 6, 0)
    >>> DeadLetter.decode(letter.encode()).message
    'no number'
    """

    function: str
    segment: str
    offset: int
    attempts: int
    kind: str
    error: str
    message: str
    given_up_ms: int
    data: bytes | None = None
    routing_key: str | None = None

    @classmethod
    def of(cls, function: str, event: Event, failure: Failure, attempts: int, now_ms: int) -> DeadLetter:
        return cls(
            function=function,
            segment=event.segment,
            offset=event.offset,
            attempts=attempts,
            kind=failure.kind,
            error=failure.error,
            message=failure.message,
            given_up_ms=now_ms,
            data=event.data if len(event.data) <= DEAD_LETTER_DATA_BYTES else None,
            routing_key=event.routing_key,
        )

    @property
    def event(self) -> Event:
        """The event, to be handled again; SerializationError for one that was too large to keep here."""
        if self.data is None:
            raise SerializationError(
                f"the event at {self.segment}@{self.offset} was too large for its dead letter: read it from its stream"
            )
        return Event(self.data, self.segment, self.offset, self.routing_key)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> DeadLetter:
        """Return the letter that an event of a dead-letter stream holds; SerializationError for anything else."""
        try:
            return msgspec.json.decode(data, type=DeadLetter)
        except msgspec.MsgspecError as error:
            raise SerializationError(f"this is not a dead letter: {error}") from None
