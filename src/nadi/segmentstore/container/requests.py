"""Requests to a container: each waits for its turn, is checked and applied in it, and is answered afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from nadi.errors import UnavailableError
from nadi.segmentstore.container.frame import FrameBuilder


class Request(Protocol):
    """Something that waits for its turn: `prepare` when the frame is built, then `done` or `failed`."""

    @property
    def size_bytes(self) -> int:
        """What it takes in memory while it waits, about."""

    @property
    def count(self) -> int:
        """How many it stands for."""

    def prepare(self, frame: FrameBuilder) -> Any:
        """Check against the state and add to the frame; return the result, or raise a NadiError."""

    def done(self, result: Any) -> None: ...

    def failed(self, error: Exception) -> None: ...


@dataclass(slots=True, eq=False)
class Call:
    """A request made of a function; its result or error goes to a future."""

    function: Callable[[FrameBuilder], Any]
    size_bytes: int
    future: asyncio.Future[Any]
    count: int = 1

    def prepare(self, frame: FrameBuilder) -> Any:
        return self.function(frame)

    def done(self, result: Any) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def failed(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def again(error: UnavailableError) -> UnavailableError:
    """A copy for another request: one object raised many times gathers the frames of all, and what they hold."""
    fresh = type(error)(*error.args)
    fresh.__cause__ = error.__cause__
    return fresh
