"""The errors that end a function."""

from __future__ import annotations

from nadi.errors import NadiError


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
