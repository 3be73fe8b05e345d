"""A controller's hold on a turn while it works: one that was passed over does nothing more.

Before a command, a controller that hasn't looked for some seconds stores its turn anew, at the version that it knows.
Another that takes the turn over stores it as its own, and waits until the former one would have had to look. So a
controller that was paused in the middle of its work finds out before its next command, and clocks needn't agree.
In a cluster another may begin sooner than that, and doesn't wait: one whose lease is over looks before each command.
While its work waits for room, a controller only reads its turn: to store it would use up the room kept for deletions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container

from msgspec.structs import replace

from nadi.controller.state.records import AnyWork, Turn
from nadi.controller.state.segments import only_if
from nadi.controller.state.store import RecordTable, freeing_room
from nadi.errors import ConditionFailedError, StorageFullError
from nadi.limits import WORKFLOW_HOLD_S
from nadi.runtime import Runtime

_SURELY_S = 1.0  # clocks differ a little, and a command given just in time takes some


Leased = Callable[[], bool]
"""Whether no other controller can have started by now."""


def always() -> bool:
    return True


class TurnLostError(Exception):
    """Another controller has taken the turn over."""


class Hold:
    def __init__(
        self,
        table: RecordTable[AnyWork],
        clock: Runtime,
        full: Container[str],
        is_leased: Leased,
        key: str,
        turn: Turn,
        version: int,
        known_at: float,
    ) -> None:
        """The turn is stored at that version, as was known at a time of the monotonic clock. full: the keys of turns
        whose work waits for room."""
        self.key, self.version = key, version
        self._table, self._clock, self._full, self._turn = table, clock, full, turn
        self._is_leased = is_leased
        self._until = known_at + WORKFLOW_HOLD_S
        self._looking = asyncio.Lock()

    async def check(self) -> None:
        """Make sure of the turn; TurnLostError if it is another's."""
        if self._is_sure():
            return
        async with self._looking:
            if self._is_sure():
                return
            now = self._clock.monotonic()
            with only_if(None), freeing_room():
                await (self._read() if self.key in self._full else self._store())
            self._until = now + WORKFLOW_HOLD_S

    def _is_sure(self) -> bool:
        return self._clock.monotonic() < self._until and self._is_leased()

    async def _store(self) -> None:
        try:
            self.version = (await self._table.put(self.key, self._turn, self.version)).version
        except ConditionFailedError as error:
            raise TurnLostError(self.key) from error

    async def _read(self) -> None:
        found = await self._table.get(self.key, fresh=True)
        if found is None or found.version != self.version:
            raise TurnLostError(self.key)

    async def taken_over(self, controller: str, *, at_start: bool = False) -> Hold | None:
        """Make the turn the given controller's; None if another has taken it or given it up.

        at_start: of a server, which has the folder to itself; where there is no room at all, that is stored later.
        """
        self._turn, now = replace(self._turn, controller=controller), self._clock.monotonic()
        try:
            with freeing_room():
                await self._store()
        except TurnLostError:
            return None
        except StorageFullError:
            if not at_start:
                raise
        self._until = now + WORKFLOW_HOLD_S
        return self

    async def others_know(self) -> None:
        """Wait until the one that was passed over must have looked, before it could give another command."""
        await self._clock.sleep(WORKFLOW_HOLD_S + _SURELY_S)
