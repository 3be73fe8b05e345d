"""Clients that use a table's entries as counters."""

from __future__ import annotations

from nadi.errors import UnavailableError
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, WireTableEntry, WireTableKey

from ..judging.history import Counter
from ..machine.network import LostError
from .base import Client


class TableUser(Client):
    """Counts in entries of a table, always two of them in one step."""

    SEGMENT = "home/table/0.#epoch.0"
    KEYS = (b"one", b"two", b"three", b"four")

    async def run(self, mean_s: float) -> None:
        await self.create()
        while True:
            await self.pause(mean_s)
            await self._count(self.chance.sample(self.KEYS, 2), mean_s / 10)

    async def create(self) -> None:
        """Create the table if it doesn't exist."""
        await self.sure(wire.CreateTableSegment(self.id(), self.SEGMENT, ""))

    async def read(self, keys: list[bytes]) -> dict[bytes, WireTableEntry]:
        counters = [self.history.counters.setdefault(key, Counter()) for key in keys]
        at_least = [counter.highest for counter in counters]
        asked = tuple(WireTableKey(key, NO_VERSION) for key in keys)
        reply = await self.sure(wire.ReadTable(self.id(), self.SEGMENT, "", asked))
        assert isinstance(reply, wire.TableRead), reply
        for counter, entry, least in zip(counters, reply.entries, at_least, strict=True):
            counter.seen(int(bytes(entry.value) or b"0"), least)
        return {bytes(entry.key): entry for entry in reply.entries}

    async def _count(self, keys: list[bytes], mean_s: float) -> None:
        stored = await self.read(keys)
        await self.pause(mean_s)  # others count meanwhile
        values = {key: int(bytes(entry.value) or b"0") + 1 for key, entry in stored.items()}
        entries = tuple(
            WireTableEntry(key, entry.version if entry.value else NOT_EXISTS, str(values[key]).encode())
            for key, entry in stored.items()
        )
        for key, value in values.items():
            self.history.counters[key].tried = max(self.history.counters[key].tried, value)
        try:
            reply = await self.once(wire.UpdateTableEntries(self.id(), self.SEGMENT, "", entries))
        except (LostError, UnavailableError):
            return
        if isinstance(reply, wire.TableEntriesUpdated):
            for key, value in values.items():
                self.history.counters[key].acknowledged(value)
        else:
            assert isinstance(reply, (wire.TableKeyBadVersion, wire.TableKeyDoesNotExist, wire.ErrorMessage)), reply
