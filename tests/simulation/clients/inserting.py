"""Clients that insert new table entries, several at a time, without reading before."""

from __future__ import annotations

import asyncio

from nadi.errors import UnavailableError
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, WireTableEntry, WireTableKey

from ..judging.history import GuaranteeError, History
from ..machine.network import LostError
from ..machine.process import Process
from ..world import World
from .base import Client

_KEEPS_S = 60.0
_ANEW = 0.3  # probability of asking any server for the table's location, like a fresh client
_AT_ONCE = 100


class Inserter(Client):
    """An inserter, which waits for a frozen server, and keeps asking one that is said to have the table, whatever it
    replies."""

    TABLES = tuple(f"home/inserted-{number}/0.#epoch.0" for number in range(6))

    def __init__(self, world: World, history: History, name: str, process: Process | None = None) -> None:
        super().__init__(world, history, name, process)
        self.patience_s, self._keeps_s = _KEEPS_S, 0.0

    def _moved(self, segment: str) -> None:
        if self.world.loop.now >= self._places[segment][1] + _KEEPS_S:
            self._forget(segment)

    async def run(self, mean_s: float) -> None:
        await asyncio.gather(*(self._fill(table, mean_s) for table in self.TABLES))

    async def _fill(self, table: str, mean_s: float) -> None:
        await self.sure(wire.CreateTableSegment(self.id(), table, ""))
        while True:
            await self._insert(table, f"{self.name}-{self.id()}".encode())
            await self.pause(mean_s)

    async def _insert(self, table: str, key: bytes) -> None:
        entry = WireTableEntry(key, NOT_EXISTS, key)
        if self.chance.random() < _ANEW:
            self._places.pop(table, None)
        while True:
            try:
                reply = await self.once(wire.UpdateTableEntries(self.id(), table, "", (entry,)))
            except (LostError, UnavailableError):
                await self.pause(0.1)
                continue
            match reply:
                case wire.TableEntriesUpdated() | wire.TableKeyBadVersion():  # by this attempt or an earlier one
                    self.history.inserted.setdefault(table, []).append(key)
                    return
                case wire.ErrorMessage():
                    await self.pause(0.1)
                case _:
                    raise GuaranteeError(f"{table} was created, but now the reply is {reply}")

    async def judge(self) -> None:
        """Check that all acknowledged entries exist."""
        for table, keys in self.history.inserted.items():
            for first in range(0, len(keys), _AT_ONCE):
                some = keys[first : first + _AT_ONCE]
                asked = tuple(WireTableKey(key, NO_VERSION) for key in some)
                reply = await self.sure(wire.ReadTable(self.id(), table, "", asked))
                if not isinstance(reply, wire.TableRead):
                    raise GuaranteeError(f"{table} was created, but now the reply is {reply}")
                for key, entry in zip(some, reply.entries, strict=True):
                    if bytes(entry.value) != key:
                        raise GuaranteeError(f"{key!r} was put into {table}, which has {bytes(entry.value)!r}")
