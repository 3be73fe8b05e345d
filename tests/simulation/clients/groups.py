"""Clients that create a reader group, use its state, delete it, and recreate it under the same name."""

from __future__ import annotations

from nadi.controller.state.metadata import GroupName
from nadi.controller.state.records import GroupConfig, GroupRetention
from nadi.errors import NotFoundError, UnavailableError
from nadi.naming import READER_GROUP_PREFIX, TABLE_SUFFIX, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, WireTableEntry, WireTableKey

from ..judging.history import GuaranteeError, History
from ..machine.network import LostError
from ..machine.process import Process
from ..world import World
from .base import Client

_CONFIG = GroupConfig(1_000, 1_000, 3, GroupRetention.NONE, {"home/scaled": {}})


class Regrouper(Client):
    """group: a name for this client only. Entries put into a group's state must stay until the group is deleted."""

    def __init__(self, world: World, history: History, name: str, group: str, process: Process | None = None) -> None:
        super().__init__(world, history, name, process)
        self.patience_s = 2.0
        self._group = GroupName("home", group)
        self._table = segment_name("home", READER_GROUP_PREFIX + group + TABLE_SUFFIX, 0)

    async def run(self, mean_s: float) -> None:
        while True:
            group_id = await self._made()
            await self.sure(wire.CreateTableSegment(self.id(), self._table, ""))
            entries = self.history.retained[self._group.stream.key] = []
            for _ in range(self.chance.randrange(1, 4)):
                await self._put(entries, f"{self.name}-{self.id()}".encode())
                await self.pause(mean_s)
                await self._check(entries)
            await self._delete(group_id)

    async def _made(self) -> str:
        """Create a new group and return its id. A group left by an earlier process is deleted first."""
        while True:
            group_id = f"{self.chance.getrandbits(128):032x}"
            group = await self.control(
                "make group",
                lambda server: server.create_reader_group(self._group, _CONFIG, group_id),  # noqa: B023
            )
            if group.group_id == group_id:
                return group_id
            await self._delete(group.group_id)

    async def _delete(self, group_id: str) -> None:
        self.history.retained[self._group.stream.key] = []
        try:
            await self.control("delete group", lambda server: server.delete_reader_group(self._group, group_id))
        except NotFoundError:
            pass  # an earlier reply was lost

    async def _put(self, entries: list[bytes], key: bytes) -> None:
        entry = WireTableEntry(key, NOT_EXISTS, key)
        try:
            reply = await self.once(wire.UpdateTableEntries(self.id(), self._table, "", (entry,)))
        except (LostError, UnavailableError):
            return
        if isinstance(reply, wire.TableEntriesUpdated):
            entries.append(key)
        elif not isinstance(reply, wire.ErrorMessage):
            raise GuaranteeError(f"{self._table} was created, but now the reply is {reply}")

    async def _check(self, entries: list[bytes]) -> None:
        asked = tuple(WireTableKey(key, NO_VERSION) for key in entries)
        if not asked:
            return
        reply = await self.sure(wire.ReadTable(self.id(), self._table, "", asked))
        if not isinstance(reply, wire.TableRead) or [bytes(entry.value) for entry in reply.entries] != entries:
            raise GuaranteeError(f"{entries} were put into {self._table}, but now the reply is {reply}")
