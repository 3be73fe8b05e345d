"""Changes of a record that others change, too, by whoever has it open: one at a time here, and by compare-and-set among
all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from nadi.backoff import Backoff, Tries
from nadi.errors import ClosedError, ConditionFailedError, UnavailableError

T = TypeVar("T")


class Changes(Generic[T]):
    """`newest` is what is known here. load: the record and its version; store: another in place of that version, which
    gives its own. what: names it."""

    def __init__(
        self,
        first: T,
        load: Callable[[], Awaitable[tuple[T, int]]],
        store: Callable[[T, int], Awaitable[int]],
        what: str,
    ) -> None:
        self.newest, self._load, self._store, self._what = first, load, store, what
        self._lock = asyncio.Lock()
        self._version = 0

    async def look(self) -> T:
        """The newest record; what `load` raises passes."""
        async with self._lock:
            return await self._look()

    async def _look(self) -> T:
        self.newest, self._version = await self._load()
        return self.newest

    async def change(self, make: Callable[[T], T | None], is_done: Callable[[T], bool] = lambda record: False) -> T:
        """Store what `make` makes of the newest record, unless that is None; what it raises passes.

        is_done: whether a record has the change, for a change that was sent and not answered; without it, what it would
        do again is to be refused by `make`.
        """
        tries, backoff = Tries(self._what), Backoff()
        async with self._lock:
            unsure = False
            while True:
                try:
                    if not self._version or unsure:
                        await self._look()
                        if unsure and is_done(self.newest):
                            return self.newest
                    made = make(self.newest)
                    if made is None:
                        return self.newest
                    self._version = await self._store(made, self._version)
                    self.newest = made
                    return made
                except ConditionFailedError:
                    unsure = True
                    await tries.lost()
                except ClosedError:
                    raise
                except UnavailableError:
                    unsure = True
                    await backoff.pause()
