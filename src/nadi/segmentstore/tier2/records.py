"""The containers' records: one small object each in a store, changed by compare-and-set. A record says whose the
container is, and where one who takes it over begins: which snapshot, and which place in the log.

An owner changes it only while it has its own epoch; so one that was overtaken can't release anything of the log, nor
let a snapshot count. Each change carries a nonce of its own, which tells whether one without an answer was made.

In a data folder its lock says who the owner is. So a record there is stored twice; the copy is written after it, and
counts if it is damaged or gone. As nothing that a record names is deleted before its copy is written, each of the two
is a place to begin at.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from nadi.backoff import Backoff
from nadi.errors import FencedError, StorageFullError, StoreError, UnavailableError
from nadi.limits import CLUSTER_CALL_S, CLUSTER_RECORD_TRIES
from nadi.object_log import outcomes
from nadi.object_log.checksummed_lines import line_of, value_of
from nadi.object_log.engine import Registry, VersionedValue
from nadi.runtime import Runtime
from nadi.segmentstore.chain.log import ChainStart

T = TypeVar("T")
FOLDER = "containers/"
COPY = "-copy"  # at the end of the name of an object's copy


class DamagedRecordError(StoreError):
    """A container's record isn't what was stored. version: of what is there; None: nothing is."""

    def __init__(self, container: int, what: str, version: str | None) -> None:
        super().__init__(f"{name_of(container)} in the store {what}")
        self.name, self.version = name_of(container), version


class SnapshotPart(msgspec.Struct, array_like=True, frozen=True):
    """A piece of a snapshot, which is stored twice. crc: of its bytes as stored."""

    name: str
    size_bytes: int
    crc: int

    @property
    def names(self) -> tuple[str, str]:
        """Of the two objects."""
        return self.name, self.name + COPY


class SnapshotManifest(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot. The state restored from it reflects the log up to `sequence`."""

    container: int
    sequence: int
    base: tuple[SnapshotPart, ...]
    deltas: tuple[SnapshotPart, ...]

    @property
    def parts(self) -> tuple[SnapshotPart, ...]:
        return self.base + self.deltas

    @property
    def names(self) -> set[str]:
        """Of all its objects."""
        return {name for part in self.parts for name in part.names}


class MovedAway(msgspec.Struct, frozen=True):
    """to: the URL of what has the data now. migration: the id of what moved it there."""

    to: str
    migration: str


class ContainerRecord(msgspec.Struct, frozen=True):
    """epoch: of the newest claim, 0 if there was none. owner: the id of the server that made it. target: the server
    that gets the container next, once the owner has `released` it; "" if the owner keeps it. snapshot: of the state;
    None: the log has everything. moved: nobody can claim it any more, for its data is elsewhere."""

    epoch: int = 0
    owner: str = ""
    target: str = ""
    released: bool = False
    start: ChainStart = ChainStart()
    snapshot: SnapshotManifest | None = None
    nonce: str = ""
    moved: MovedAway | None = None


class VersionedRecord(NamedTuple):
    """A record and its version; None: there is none yet."""

    record: ContainerRecord
    version: str | None


_decode = msgspec.json.Decoder(ContainerRecord).decode


def _encode(record: ContainerRecord) -> bytes:
    return line_of(msgspec.json.encode(record))


class ContainerRecords:
    """Those of all containers of a store. is_alone: it is in a data folder, whose lock keeps others from it."""

    def __init__(self, registry: Registry, runtime: Runtime, *, is_alone: bool = False) -> None:
        self.is_alone = is_alone
        self._registry, self._runtime = registry, runtime

    async def read(self, container: int) -> VersionedRecord:
        """The newest record; of a folder's two, that with the newer snapshot. DamagedRecordError: it is damaged: a
        wrong place in the log, or a wrong snapshot, would lose what was acknowledged. UnavailableError: the store can't
        answer."""
        records, damages, version = list[ContainerRecord](), list[DamagedRecordError](), None
        for which in ("", COPY) if self.is_alone else ("",):
            try:
                record, there = await self._read(container, which)
            except DamagedRecordError as error:
                damages.append(error)
                there = error.version
            else:
                records += [record] if there is not None else []
            version = there if not which else version  # of the first one, which is set first
        if damages and not records:
            raise damages[0]
        newest = max(records, key=lambda one: one.snapshot.sequence if one.snapshot else 0, default=ContainerRecord())
        return VersionedRecord(newest, version)

    async def unequal(self, container: int) -> str:
        """Why a folder's two records aren't both the newest one, or ""; of a store elsewhere there is one."""
        found = []
        for which in ("", COPY) if self.is_alone else ():
            try:
                found.append(await self._read(container, which))
            except DamagedRecordError as error:
                return str(error)
        if len({(stored.version is None, stored.record) for stored in found}) > 1:
            return f"{name_of(container)} and its copy in the store don't say the same"
        return ""

    async def _read(self, container: int, which: str = "") -> VersionedRecord:
        async with answer_within(CLUSTER_CALL_S):
            entry = await self._registry.get(name_of(container) + which)
        return VersionedRecord(_record(container, entry), entry.version) if entry is not None else NONE

    async def read_to_change(self, container: int) -> VersionedRecord:
        """`read`; an empty record in place of a damaged one that may be written anew."""
        try:
            return await self.read(container)
        except DamagedRecordError as error:
            if not self.is_alone:
                raise
            return VersionedRecord(ContainerRecord(), error.version)

    async def put(self, number: int, record: ContainerRecord) -> None:
        """Set a record that nobody else changes now; raise UnavailableError if it isn't known whether it is set."""
        for which in ("", COPY) if self.is_alone else ("",):
            await self._registry.put(name_of(number) + which, _encode(record))

    async def claim(self, container: int, server: str, seen: VersionedRecord, nonce: str = "") -> VersionedRecord:
        """Claim a container whose record is still the one that was seen, and return the one with the next epoch. No
        former owner can change the record from now on. nonce: of this claim alone, by which it is known later.
        FencedError: it is another by now. StoreError: its data was moved elsewhere. UnavailableError: it isn't known
        whether it is claimed."""
        record = seen.record
        check_stays(record)
        claimed = replace(
            record,
            epoch=record.epoch + 1,
            owner=server,
            target="",
            released=False,
            nonce=nonce or self._runtime.unique(),
        )
        value = _encode(claimed)

        async def attempt() -> VersionedRecord:
            entry = await outcomes.was_set(self._registry, name_of(container), value, seen.version)
            if entry is None:
                raise FencedError(container, (await self.read(container)).record.epoch)
            return VersionedRecord(claimed, entry.version)

        return await self._within_tries(f"container {container} can't be claimed", attempt)

    async def still_claimed(self, container: int, epoch: int) -> None:
        """Raise FencedError if there is a later claim than that one, otherwise as `read`."""

        async def attempt() -> None:
            record, version = await self.read(container)
            if record.epoch != epoch and self.is_alone:
                raise DamagedRecordError(container, "isn't what this server has stored", version)
            if record.epoch != epoch:
                raise FencedError(container, record.epoch)

        await self._within_tries(f"the record of container {container} can't be read", attempt)

    async def set_snapshot(
        self, container: int, epoch: int, snapshot: SnapshotManifest | None, start: ChainStart
    ) -> None:
        """Let that snapshot count, and the log begin there, durably; raise FencedError if the container is another's,
        UnavailableError if it isn't known whether it counts."""
        await self._change(container, epoch, snapshot=snapshot, start=start)

    async def renew(self, container: int, epoch: int) -> None:
        """Set the record anew as it is: a claim of what it was before fails from now on. Raises as `set_snapshot`."""
        await self._change(container, epoch)

    async def announce(self, container: int, epoch: int, target: str) -> None:
        """Say that the container will be released to that server soon. Raises as `set_snapshot`."""
        await self._change(container, epoch, target=target)

    async def release(self, container: int, epoch: int, target: str) -> None:
        """Give the container to that server. Raises as `set_snapshot`."""
        await self._change(container, epoch, target=target, released=True)

    async def move_away(self, container: int, epoch: int, moved: MovedAway) -> None:
        """Let nobody claim the container any more, as its data is elsewhere. Raises as `set_snapshot`."""
        await self._change(container, epoch, moved=moved)

    async def take_back(self, container: int, epoch: int) -> None:
        """Let the container be claimed again though its data was moved away; who moved it can't change its record any
        more. Raises as `set_snapshot`."""
        await self._change(container, epoch, epoch=epoch + 1, owner="", target="", released=False, moved=None)

    async def _change(self, container: int, epoch: int, /, **changes: object) -> None:
        """Make an owner's change once, whatever gets no answer: it is known by its nonce."""
        nonce = self._runtime.unique()

        async def attempt() -> None:
            record, version = await self.read_to_change(container)
            if record.nonce == nonce and version is not None:  # made by an earlier try
                value = _encode(record)
            elif record.epoch != epoch and not self.is_alone:
                raise FencedError(container, record.epoch)
            else:
                value = _encode(replace(record, **{"epoch": epoch, "nonce": nonce, **changes}))
                if await outcomes.was_set(self._registry, name_of(container), value, version) is None:
                    raise UnavailableError("others were faster each time")
            if self.is_alone:
                await self._registry.put(name_of(container) + COPY, value)

        await self._within_tries(f"the record of container {container} can't be changed", attempt)

    async def _within_tries(self, failed: str, attempt: Callable[[], Awaitable[T]]) -> T:
        backoff, failure = Backoff(sleep=self._runtime.sleep), ""
        for _ in range(CLUSTER_RECORD_TRIES):
            try:
                async with answer_within(2 * CLUSTER_CALL_S):  # two calls at most
                    return await attempt()
            except (FencedError, StorageFullError):
                raise
            except UnavailableError as error:
                failure = str(error)
            await backoff.pause()
        raise UnavailableError(f"{failed}: {failure}")


NONE = VersionedRecord(ContainerRecord(), None)


@asynccontextmanager
async def answer_within(seconds: float) -> AsyncIterator[None]:
    """UnavailableError if there is none by then: whoever asked may have stood still, too."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise UnavailableError(f"the registry hasn't answered within {seconds:g} s") from error


def check_stays(record: ContainerRecord) -> None:
    """Raise StoreError if the container's data was moved elsewhere."""
    if record.moved is not None:
        raise StoreError(
            f"the data of this store was moved to {record.moved.to}: start its servers there. If it is to be served "
            "from here again, see `nadi migrate --undo`"
        )


def first_record(epoch: int, snapshot: SnapshotManifest) -> ContainerRecord:
    """The record of a container that begins with a snapshot and a log of which nothing is there; epochs of
    claims follow that one."""
    sequence = snapshot.sequence
    start = ChainStart(epoch, 1, sequence, ((epoch, sequence + 1),), sequence + 1, 0)
    return ContainerRecord(epoch, start=start, snapshot=snapshot)


def name_of(container: int) -> str:
    return f"{FOLDER}{container}"


def _record(container: int, entry: VersionedValue) -> ContainerRecord:
    found = value_of(entry.value)
    if found is None:
        raise DamagedRecordError(container, "is damaged: its checksum doesn't fit", entry.version)
    try:
        record = _decode(found)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedRecordError(container, f"is no record of a container ({error})", entry.version) from error
    if record.snapshot is not None and record.snapshot.container != container:
        raise DamagedRecordError(container, "is another container's", entry.version)
    return record
