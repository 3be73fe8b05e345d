"""Which controller is the cluster's active one, as far as this server knows: its own, another server's, or none.

What is being answered by one that no longer is, ends: a deposed controller's answers aren't to be trusted, and one
whose server is dead would never answer. Nor is the own one's answer given once others may have taken its server for
dead, and be active: it answers from memory, and knows nothing of what they have done. That something is not there is
an answer, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from nadi.controller.controller import Controller
from nadi.errors import UnavailableError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server answers, each as "host:port". rest: "" if it has no REST port."""

    rpc: str
    rest: str = ""


class Active:
    """The current knowledge: `here` counts, otherwise `there`. may_answer: whether `here` still is, see `lease`."""

    def __init__(self, may_answer: Callable[[], bool] = lambda: True) -> None:
        self._may_answer = may_answer
        self.here: Controller | None = None
        self.there: Addresses | None = None
        self._calls: dict[asyncio.Timeout, None] = {}

    def set(self, here: Controller | None, there: Addresses | None) -> bool:
        """Return whether that is something else than before, for those who call; calls under way end then."""
        before = self.here or self.there
        self.here, self.there = here, there
        if (here or there) == before:
            return False
        now = asyncio.get_running_loop().time()
        for call in self._calls:
            if not call.expired():
                call.reschedule(now)
        return True

    def check(self) -> None:
        """Before an answer of `here` is given, after it was made; UnavailableError if it may be an old one."""
        if not self._may_answer():
            raise UnavailableError("another server may have the active controller by now: try again")

    async def checked(self, answer: Awaitable[T]) -> T:
        """An answer that `here` makes, or its error, if that is to be trusted: see `check`."""
        try:
            made = await answer
        except Exception:
            self.check()
            raise
        self.check()
        return made

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Wrap what the active one answers: UnavailableError once another is it, or none is."""
        try:
            async with asyncio.timeout(None) as limit:
                self._calls[limit] = None
                try:
                    yield
                finally:
                    del self._calls[limit]
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise UnavailableError("another server has the active controller now, or will: try again") from error
