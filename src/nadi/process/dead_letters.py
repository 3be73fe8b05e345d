"""Dead letters: events that failed for good, as JSON in a separate stream, with all that a retry needs."""

from __future__ import annotations

import msgspec

from nadi.errors import SerializationError
from nadi.limits import DEAD_LETTER_DATA_BYTES


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that failed for good.

    by: the component that rejected it, such as "function billing", "lake meters-lake" or "index home/logs". segment,
    offset: the event's position. kind, error: of the failure, such as "raised" and "ValueError"; reason: a sentence.
    attempts: number of attempts. failed_ms: time in milliseconds since 1970, or None if the letter must be the same
    on each write. data: the event, base64 in the JSON; None above 4 MiB, then read it from the stream.

    >>> letter = DeadLetter(by="lake m", segment="home/m/0.#epoch.0", offset=7, reason="no number", data=b"x")
    >>> DeadLetter.decode(letter.encode()).reason
    'no number'
    """

    by: str
    segment: str
    offset: int
    reason: str
    data: bytes | None
    kind: str = "unreadable"
    error: str = ""
    attempts: int = 1
    failed_ms: int | None = None
    routing_key: str | None = None

    def encode(self) -> bytes:
        data = self.data if self.data is None or len(self.data) <= DEAD_LETTER_DATA_BYTES else None
        return msgspec.json.encode(msgspec.structs.replace(self, data=data))

    @staticmethod
    def decode(data: bytes) -> DeadLetter:
        """Return the dead letter in an event of a dead-letter stream; SerializationError for other events."""
        try:
            return msgspec.json.decode(data, type=DeadLetter)
        except msgspec.MsgspecError as error:
            raise SerializationError(f"the event is not a dead letter ({error}): read a dead-letter stream") from None
