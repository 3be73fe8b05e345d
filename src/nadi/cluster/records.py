"""The containers' records: one small object each, changed by compare-and-set. A record says whose the container is,
and where one who takes it over begins: which snapshot, and which place in the log.

An owner changes it only while it has its own epoch; so one that was overtaken can't release anything of the log, nor
let a snapshot count. Each change carries a nonce of its own, which tells whether one without an answer was made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from nadi.backoff import Backoff
from nadi.engines.registry import Registry
from nadi.errors import FencedError, StoreError, UnavailableError
from nadi.limits import CLUSTER_CALL_S, CLUSTER_RECORD_TRIES, CLUSTER_RECORDS_AT_ONCE
from nadi.runtime import Runtime
from nadi.segmentstore.chain.layout import Place
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery.snapshots import Manifest

log = logging.getLogger(__name__)
FOLDER = "containers"


class LogStart(msgspec.Struct, frozen=True):
    """`ChainStart`, as it is stored."""

    epoch: int = 0
    number: int = 1
    sequence: int = 0
    begun: tuple[tuple[int, int], ...] = ((0, 1),)
    held_from: int = 1
    held_bytes: int = 0

    @classmethod
    def of(cls, start: ChainStart) -> LogStart:
        return cls(*start.place, start.sequence, start.begun, start.held_from, start.held_bytes)

    @property
    def chain(self) -> ChainStart:
        return ChainStart(Place(self.epoch, self.number), self.sequence, self.begun, self.held_from, self.held_bytes)


class ContainerRecord(msgspec.Struct, frozen=True):
    """epoch: of the newest claim, 0 if there was none. owner: the server's id. released: the id of the server that the
    owner has given the container to; it is nobody's then. snapshot: of the state; None: the log has everything."""

    epoch: int = 0
    owner: str = ""
    released: str = ""
    start: LogStart = LogStart()
    snapshot: Manifest | None = None
    nonce: str = ""


class Stored(NamedTuple):
    """A record and its version; None: there is none yet."""

    record: ContainerRecord
    version: str | None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ContainerRecord).decode
Change = Callable[[ContainerRecord], ContainerRecord]


class Records:
    """Those of all containers of a cluster."""

    def __init__(self, registry: Registry, runtime: Runtime) -> None:
        self._registry, self._runtime = registry, runtime

    async def read(self, container: int) -> Stored:
        """The newest record; raise UnavailableError if the store can't answer."""
        async with asyncio.timeout(CLUSTER_CALL_S):
            entry = await self._registry.get(name_of(container))
        return Stored(_record(container, entry.value), entry.version) if entry is not None else _NONE

    async def claim(self, container: int, server: str, epoch: int) -> ContainerRecord:
        """Claim a container that was last claimed in that epoch, and return the record with the new one. No former
        owner can change the record from now on.

        Raises:
            FencedError: another was faster.
            UnavailableError: it isn't known whether it is claimed.
        """

        def claimed(record: ContainerRecord) -> ContainerRecord:
            if record.epoch != epoch:
                raise FencedError(container, record.epoch)
            return msgspec.structs.replace(record, epoch=epoch + 1, owner=server, released="")

        return await self._change(container, claimed)

    async def still_claimed(self, container: int, epoch: int) -> None:
        """Raise FencedError if there is a later claim than that one, UnavailableError if the store can't answer."""
        backoff = Backoff(sleep=self._runtime.sleep)
        for _ in range(CLUSTER_RECORD_TRIES):
            try:
                record, _ = await self.read(container)
            except (UnavailableError, TimeoutError) as error:
                failure = error
                await backoff.pause()
                continue
            if record.epoch != epoch:
                raise FencedError(container, record.epoch)
            return
        raise UnavailableError(f"the record of container {container} can't be read: {failure}")

    async def set_snapshot(self, container: int, epoch: int, snapshot: Manifest | None, start: ChainStart) -> None:
        """Let that snapshot count, and the log begin there, durably; raise FencedError if the container is another's,
        UnavailableError if it isn't known whether it counts."""

        def changed(record: ContainerRecord) -> ContainerRecord:
            if record.epoch != epoch:
                raise FencedError(container, record.epoch)
            return msgspec.structs.replace(record, snapshot=snapshot, start=LogStart.of(start))

        await self._change(container, changed)

    async def release(self, container: int, epoch: int, target: str) -> None:
        """Give the container to that server; raise FencedError if it is another's by now."""

        def released(record: ContainerRecord) -> ContainerRecord:
            if record.epoch != epoch:
                raise FencedError(container, record.epoch)
            return msgspec.structs.replace(record, owner="", released=target)

        await self._change(container, released)

    async def _change(self, container: int, change: Change) -> ContainerRecord:
        """Make a change once, whatever gets no answer: it is known by its nonce."""
        nonce, backoff = self._runtime.unique(), Backoff(sleep=self._runtime.sleep)
        failure: Exception = UnavailableError("others were faster each time")
        for _ in range(CLUSTER_RECORD_TRIES):
            try:
                record, version = await self.read(container)
                if record.nonce == nonce:  # made by an earlier try
                    return record
                changed = msgspec.structs.replace(change(record), nonce=nonce)
                async with asyncio.timeout(CLUSTER_CALL_S):
                    done = await self._registry.compare_and_set(name_of(container), _encode(changed), version)
                if done is not None:
                    return changed
            except FencedError:
                raise
            except (UnavailableError, TimeoutError) as error:
                failure = error
            await backoff.pause()
        raise UnavailableError(f"the record of container {container} can't be changed: {failure}")


class RecordWatch:
    """What the records of all containers last said, read again when their versions change."""

    def __init__(self, registry: Registry, records: Records, count: int) -> None:
        self.records: dict[int, ContainerRecord] = {}  # of those that there are
        self._versions: dict[int, str | None] = {}
        self._registry, self._source, self._count = registry, records, count

    async def look(self) -> set[int]:
        """Read what has changed; return which. Raise UnavailableError or TimeoutError if the store can't answer."""
        async with asyncio.timeout(CLUSTER_CALL_S):
            listed = await self._registry.list(FOLDER)
        versions = {number: version for name, version in listed.items() if (number := _number_of(name)) is not None}
        changed = [number for number, version in versions.items() if self._versions.get(number) != version]
        limit = asyncio.Semaphore(CLUSTER_RECORDS_AT_ONCE)

        async def look_at(number: int) -> None:
            async with limit:
                self.note(number, await self._source.read(number))

        await asyncio.gather(*(look_at(number) for number in changed if number < self._count))
        return set(changed)

    def note(self, number: int, stored: Stored) -> None:
        """Take in what a record was found to say; an older one than is known is left."""
        known = self.records.get(number)
        if known is None or stored.record.epoch >= known.epoch:
            self.records[number], self._versions[number] = stored.record, stored.version

    def owners(self) -> Mapping[int, str]:
        """The ids of the servers that have containers."""
        return {number: record.owner for number, record in self.records.items() if record.owner}


_NONE = Stored(ContainerRecord(), None)


def name_of(container: int) -> str:
    """The name of a container's record."""
    return f"{FOLDER}/{container}"


def _number_of(name: str) -> int | None:
    folder, _, number = name.rpartition("/")
    return int(number) if folder == FOLDER and number.isdecimal() else None


def _record(container: int, value: bytes) -> ContainerRecord:
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise StoreError(f"{name_of(container)} in the store is no record of a container ({error})") from error
