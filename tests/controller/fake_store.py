"""The in-memory segment store (`tests.support.memory_store`) for controller tests, with simulated failures.

After `die_at` the given command and all later ones fail like an unreachable store; with `lose_reply` that command is
still executed, and only its reply is lost. `revive` restores the store with all its data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from nadi.errors import UnavailableError
from nadi.wire import commands as wire
from nadi.wire.codec import encode
from nadi.wire.commands import Command
from tests.support.memory_store import MemoryStore

_GROWING = (wire.UpdateTableEntries, wire.CreateSegment, wire.CreateTableSegment)  # rejected when the disk is full
_PAGE_ENTRIES = 7  # so that small tables span several pages


class FakeStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Command] = []
        self.die_after: int | None = None
        self.lose_reply = False
        self.full = False  # only commands that free space are accepted
        self.dead = asyncio.Event()
        self.before: Callable[[Command], Awaitable[None]] | None = None  # called before each command

    def die_at(self, commands: int, *, lose_reply: bool = False) -> None:
        """Die at the given command, counted from 0."""
        self.die_after, self.lose_reply = commands, lose_reply
        self.dead = asyncio.Event()

    def revive(self) -> None:
        self.die_after = None
        self.dead = asyncio.Event()

    async def exchange(self, command: Command) -> Command:
        encode(command)  # it must fit the wire
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(command)
        if self.full and isinstance(command, _GROWING):
            return wire.ErrorMessage(command.request_id, command.segment, "no room", wire.STORAGE_FULL)
        if self.dead.is_set():
            raise UnavailableError("the fake store is dead")
        if self.die_after is not None:
            self.die_after -= 1
            if self.die_after < 0:
                if self.lose_reply:
                    self.answer(command)
                self.dead.set()
                raise UnavailableError("the fake store dies")
        if isinstance(command, wire.LocateOffset):  # reads in several turns
            self.log.append(command)
            return await super().exchange(command)
        reply = self.answer(command)
        await asyncio.sleep(0)
        return reply

    def answer(self, command: Command) -> Command:
        self.log.append(command)
        if isinstance(command, wire.ReadTableEntries):
            command = replace(command, suggested_count=min(command.suggested_count, _PAGE_ENTRIES))
        reply: Command = super().answer(command)
        return reply
