"""Who makes a reader group, uses its state, deletes it, and makes another of the same name."""

from __future__ import annotations

from nadi.controller.state.metadata import GroupName
from nadi.controller.state.records import GroupConfig, GroupRetention
from nadi.errors import NotFoundError, UnavailableError
from nadi.naming import READER_GROUP_PREFIX, TABLE_SUFFIX, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, WireTableEntry, WireTableKey

from ..judging.history import BrokenWordError, History
from ..machine.network import LostError
from ..machine.process import Process
from ..world import World
from .base import Client

_CONFIG = GroupConfig(1_000, 1_000, 3, GroupRetention.NONE, {"home/scaled": {}})


class Regrouper(Client):
    """group: its name, which nobody else uses. What was put into the state of a group stays until that is deleted."""

    def __init__(self, world: World, history: History, name: str, group: str, process: Process | None = None) -> None:
        super().__init__(world, history, name, process)
        self.patience_s = 2.0
        self._group = GroupName("home", group)
        self._table = segment_name("home", READER_GROUP_PREFIX + group + TABLE_SUFFIX, 0)

    async def run(self, mean_s: float) -> None:
        while True:
            group_id = await self._made()
            await self.sure(wire.CreateTableSegment(self.id(), self._table, ""))
            kept = self.history.kept[self._group.stream.key] = []
            for _ in range(self.chance.randrange(1, 4)):
                await self._put(kept, f"{self.name}-{self.id()}".encode())
                await self.pause(mean_s)
                await self._check(kept)
            await self._delete(group_id)

    async def _made(self) -> str:
        """The id of a new group. One of another life is deleted first."""
        while True:
            wanted = f"{self.chance.getrandbits(128):032x}"
            found = await self.control(
                "make group",
                lambda server: server.create_reader_group(self._group, _CONFIG, wanted),  # noqa: B023
            )
            if found.group_id == wanted:
                return wanted
            await self._delete(found.group_id)

    async def _delete(self, group_id: str) -> None:
        self.history.kept[self._group.stream.key] = []
        try:
            await self.control("delete group", lambda server: server.delete_reader_group(self._group, group_id))
        except NotFoundError:
            pass  # an answer that was lost

    async def _put(self, kept: list[bytes], key: bytes) -> None:
        entry = WireTableEntry(key, NOT_EXISTS, key)
        try:
            reply = await self.once(wire.UpdateTableEntries(self.id(), self._table, "", (entry,)))
        except (LostError, UnavailableError):
            return
        if isinstance(reply, wire.TableEntriesUpdated):
            kept.append(key)
        elif not isinstance(reply, wire.ErrorMessage):
            raise BrokenWordError(f"{self._table} was made, and now {reply}")

    async def _check(self, kept: list[bytes]) -> None:
        asked = tuple(WireTableKey(key, NO_VERSION) for key in kept)
        if not asked:
            return
        reply = await self.sure(wire.ReadTable(self.id(), self._table, "", asked))
        if not isinstance(reply, wire.TableRead) or [bytes(entry.value) for entry in reply.entries] != kept:
            raise BrokenWordError(f"{kept} were put into {self._table}, and now {reply}")
