"""What came of some events that were handled: how many, in order, what was made of them, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from nadi.functions.handlers.event import Event

Output = tuple[str | None, bytes]  # routing key, event


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

    async def call(self, events: Sequence[Event], attempt: int) -> Outcome: ...

    async def close(self) -> None: ...
