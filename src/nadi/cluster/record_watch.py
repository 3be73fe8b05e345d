"""What the records of all containers last said, as a server of a cluster sees them."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from nadi.engines.engine import Registry
from nadi.errors import StoreError
from nadi.limits import CLUSTER_CALL_S, CLUSTER_RECORDS_AT_ONCE
from nadi.runtime import Runtime
from nadi.segmentstore.tier2.records import FOLDER, NONE, ContainerRecord, Records, Stored, answer_within
from nadi.throttled_log import Complaints

log = logging.getLogger(__name__)


class Seen(NamedTuple):
    """A record, and when its version was seen first, by this server's monotonic clock."""

    stored: Stored
    since: float


class RecordWatch:
    """What the records of all containers last said. A change is noticed with the next `look`, or soon where a
    container is announced to change hands."""

    def __init__(self, registry: Registry, records: Records, count: int, runtime: Runtime) -> None:
        self.seen: dict[int, Seen] = {}
        self._registry, self._records, self._count, self._runtime = registry, records, count, runtime
        self._complaints = Complaints(log, "the record of %s is damaged, and nobody can claim it until it is restored")

    async def look(self) -> None:
        """Read what has changed; raise UnavailableError if the store can't answer."""
        async with answer_within(CLUSTER_CALL_S):
            listed = await self._registry.list(FOLDER)
        now = self._runtime.monotonic()
        versions: dict[int, str | None] = dict.fromkeys(range(self._count))
        for name, found in listed.items():
            if (number := _number_of(name)) is not None and number in versions:
                versions[number] = found
        limit = asyncio.Semaphore(CLUSTER_RECORDS_AT_ONCE)

        async def look_at(number: int) -> None:
            async with limit:
                try:
                    await self.look_at(number)
                except StoreError as error:  # the others are none the worse for it
                    self._complaints.tell(f"container {number}", error)
                else:
                    self._complaints.settled(f"container {number}")

        changed = []
        for number, version in versions.items():
            if (seen := self.seen.get(number)) is None and version is None:
                self.seen[number] = Seen(NONE, now)
            elif seen is None or seen.stored.version != version:
                changed.append(number)
        await asyncio.gather(*map(look_at, changed))

    async def look_at(self, number: int) -> Stored:
        """Read one record; raises as `look`."""
        stored = await self._records.read(number)
        self.note(number, stored)
        return stored

    def note(self, number: int, stored: Stored) -> None:
        """Take in what a record was found to say; an older one than is known is left."""
        known = self.seen.get(number)
        if known is None or (
            stored.version != known.stored.version and stored.record.epoch >= known.stored.record.epoch
        ):
            self.seen[number] = Seen(stored, self._runtime.monotonic())

    def record(self, number: int) -> ContainerRecord:
        """The last one known."""
        seen = self.seen.get(number)
        return seen.stored.record if seen is not None else ContainerRecord()

    def owner(self, number: int) -> str:
        """The id of the server that has the container, as far as is known; "" if nobody has it."""
        record = self.record(number)
        return "" if record.released else record.owner


def _number_of(name: str) -> int | None:
    number = name.removeprefix(FOLDER)
    return int(number) if number.isdecimal() else None
