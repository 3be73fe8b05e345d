"""Dead letters: events that were given up, as JSON in a stream of their own, with what there is to know for trying
again."""

from __future__ import annotations

import msgspec

from nadi.errors import SerializationError
from nadi.limits import DEAD_LETTER_DATA_BYTES


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was given up.

    by: what gave it up, as "function billing", "lake meters-lake" or "index home/logs". segment, offset: where the
    event is in its stream. kind, error: of the failure, as "raised" and "ValueError"; reason: in words. attempts: how
    often it was tried. given_up_ms: when, in milliseconds since 1970; None where a letter is the same whenever it is
    written. data: the event, base64 in the JSON, or None for one over 4 MiB, which has to be read where it is.

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
    given_up_ms: int | None = None
    routing_key: str | None = None

    def encode(self) -> bytes:
        data = self.data if self.data is None or len(self.data) <= DEAD_LETTER_DATA_BYTES else None
        return msgspec.json.encode(msgspec.structs.replace(self, data=data))

    @staticmethod
    def decode(data: bytes) -> DeadLetter:
        """Return the letter that an event of a dead-letter stream holds; SerializationError for anything else."""
        try:
            return msgspec.json.decode(data, type=DeadLetter)
        except msgspec.MsgspecError as error:
            raise SerializationError(f"this is not a dead letter: {error}") from None
