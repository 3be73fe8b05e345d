"""The doors of a scope: each is a broker to Kafka clients, and every one serves every topic.

Doors report to the scope's table. Which one leads a partition or coordinates a group follows from the live ones alone;
it only spreads the load, since any door may take over at any time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import NamedTuple

from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.catalog import entries_of
from nadi.client.tables.table import Table
from nadi.errors import NadiError
from nadi.limits import PROCESS_BEAT_S
from nadi.naming import KAFKA_TABLE
from nadi.process.members import Members

log = logging.getLogger(__name__)
_DOORS = "door/"
_ADDRESSES = b"address/"


class Door(NamedTuple):
    """A door's id as a broker, and its address for clients."""

    node_id: int
    host: str
    port: int


class Doors:
    """This door and the other live ones of its scope. on_beat: called each time that the live doors are known."""

    def __init__(self, stores: SegmentStores, scope: str, host: str, port: int, on_beat: Callable[[], object]) -> None:
        self._on_beat = on_beat
        self._stores, self._scope, self._table = stores, scope, Table(stores, scope, KAFKA_TABLE)
        self._members = Members(stores, scope, KAFKA_TABLE, _DOORS)
        self.own = _door(host, port)
        self._live = [self.own]
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Report this door; return once the others list it as well."""
        await self._table.put(self._address_key(self._members.name), f"{self.own.host}\0{self.own.port}".encode())
        await self._beat()
        self._beating = asyncio.create_task(self._beat_on(), name="report a Kafka door")
        if len(self._live) > 1:  # librdkafka waits forever for a broker that another one's list lacks
            await asyncio.sleep(2 * PROCESS_BEAT_S)

    @property
    def live(self) -> list[Door]:
        """All live doors, in the order of their ids."""
        return self._live

    def leader(self, kind: str, name: str) -> Door:
        """Return the door that leads a partition or coordinates a group."""
        return max(self._live, key=lambda door: hashlib.blake2b(f"{door.node_id}/{kind}/{name}".encode()).digest())

    def is_own(self, kind: str, name: str) -> bool:
        return self.leader(kind, name) == self.own

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(PROCESS_BEAT_S)
            try:
                await self._beat()
            except NadiError as error:
                log.warning("a Kafka door could not report: %s", error)

    async def _beat(self) -> None:
        await self._members.report(0, 0.0, 0, "")
        await self._members.refresh()
        addresses = {}
        async for entry in entries_of(self._stores, self._scope, self._table, _ADDRESSES):
            name = entry.key.decode()
            if name in self._members.live:
                host, _, port = entry.value.decode().partition("\0")
                addresses[name] = _door(host, int(port))
            elif name not in self._members.known:
                await self._table.remove(self._address_key(name))
        self._live = sorted(set(addresses.values())) or [self.own]
        self._on_beat()

    def _address_key(self, name: str) -> bytes:
        return _ADDRESSES + name.encode()

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        await self._members.leave()


def _door(host: str, port: int) -> Door:
    """Return a door with its id: an int32 that is not negative, and the same after a restart. Java's admin client goes
    on asking the leader that it knows, whatever the metadata says."""
    digest = hashlib.blake2b(f"{host}:{port}".encode(), digest_size=4).digest()
    return Door(int.from_bytes(digest) >> 1, host, port)
