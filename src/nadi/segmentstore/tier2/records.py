"""Stores the containers' records: one small object each, changed by compare-and-set. A record names the container's
owner, and the start of its next owner: a snapshot, and a position in the log.

An owner changes it only with its own epoch; so an owner that was overtaken can neither release the log nor publish a
snapshot. Each change carries a unique nonce, which shows whether a change without an answer was made.

In a data folder the lock determines the owner. There a record is stored twice; the copy is written second, and is used
if the first is damaged or missing. As nothing that a record names is deleted before its copy is written, a start from
either works.
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
COPY = "-copy"  # suffix of the name of an object's copy


class DamagedRecordError(StoreError):
    """A container's record is damaged. version: of the stored value; None if there is none."""

    def __init__(self, container: int, problem: str, version: str | None) -> None:
        super().__init__(f"{name_of(container)} in the store {problem}")
        self.name, self.version = name_of(container), version


class SnapshotPart(msgspec.Struct, array_like=True, frozen=True):
    """A part of a snapshot, which is stored twice. crc: of its bytes as stored."""

    name: str
    size_bytes: int
    crc: int

    @property
    def names(self) -> tuple[str, str]:
        """The names of the two objects."""
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
        """The names of all its objects."""
        return {name for part in self.parts for name in part.names}


class NewLocation(msgspec.Struct, frozen=True):
    """The new location of moved data. to: its URL. migration: the id of the migration."""

    to: str
    migration: str


class ContainerRecord(msgspec.Struct, frozen=True):
    """A container's record. epoch: of the newest claim, 0 without one. owner: the id of the server that claimed it.
    target: the server that claims it next, once the owner has `released` it; "" if the owner keeps it. snapshot: of the
    state; None: the log has everything. moved: set once the data is elsewhere, and prevents further claims."""

    epoch: int = 0
    owner: str = ""
    target: str = ""
    released: bool = False
    start: ChainStart = ChainStart()
    snapshot: SnapshotManifest | None = None
    nonce: str = ""
    moved: NewLocation | None = None


class VersionedRecord(NamedTuple):
    """A record and its version; None if it doesn't exist yet."""

    record: ContainerRecord
    version: str | None


_decode = msgspec.json.Decoder(ContainerRecord).decode


def _encode(record: ContainerRecord) -> bytes:
    return line_of(msgspec.json.encode(record))


def _sequence_of(record: ContainerRecord) -> int:
    return record.snapshot.sequence if record.snapshot is not None else 0


class ContainerRecords:
    """The records of all containers of a store. is_alone: the store is in a data folder, whose lock excludes other
    servers."""

    def __init__(self, registry: Registry, runtime: Runtime, *, is_alone: bool = False) -> None:
        self.is_alone = is_alone
        self._registry, self._runtime = registry, runtime

    async def read(self, container: int) -> VersionedRecord:
        """Return the newest record; of a folder's two, the one with the newer snapshot. DamagedRecordError: it is
        damaged: a wrong position in the log, or a wrong snapshot, would lose acknowledged data. UnavailableError: the
        store doesn't answer."""
        records, damages, version = list[ContainerRecord](), list[DamagedRecordError](), None
        for which in ("", COPY) if self.is_alone else ("",):
            try:
                record, version_read = await self._read(container, which)
            except DamagedRecordError as error:
                damages.append(error)
                version_read = error.version
            else:
                records += [record] if version_read is not None else []
            version = version_read if not which else version  # of the first record, which is set first
        if damages and not records:
            raise damages[0]
        return VersionedRecord(max(records, key=_sequence_of, default=ContainerRecord()), version)

    async def unequal(self, container: int) -> str:
        """Describe why a folder's two records differ or are damaged, or return ""; an external store has one record."""
        records = []
        for which in ("", COPY) if self.is_alone else ():
            try:
                records.append(await self._read(container, which))
            except DamagedRecordError as error:
                return str(error)
        if len({(stored.version is None, stored.record) for stored in records}) > 1:
            return f"{name_of(container)} and its copy in the store differ"
        return ""

    async def was_interrupted(self, container: int) -> bool:
        """Return whether a kill explains why a folder's two records differ: the copy, which is set last, is older."""
        try:
            first, copy = await self._read(container), await self._read(container, COPY)
        except DamagedRecordError:
            return False
        return copy.version is not None and _sequence_of(first.record) > _sequence_of(copy.record)

    async def _read(self, container: int, which: str = "") -> VersionedRecord:
        async with answer_within(CLUSTER_CALL_S):
            entry = await self._registry.get(name_of(container) + which)
        return VersionedRecord(_record(container, entry), entry.version) if entry is not None else NONE

    async def read_to_change(self, container: int) -> VersionedRecord:
        """`read`; return an empty record in place of a damaged one that may be rewritten."""
        try:
            return await self.read(container)
        except DamagedRecordError as error:
            if not self.is_alone:
                raise
            return VersionedRecord(ContainerRecord(), error.version)

    async def put(self, number: int, record: ContainerRecord) -> None:
        """Set a record that no other server changes now; raise UnavailableError if the outcome is unknown."""
        for which in ("", COPY) if self.is_alone else ("",):
            await self._registry.put(name_of(number) + which, _encode(record))

    async def claim(self, container: int, server: str, seen: VersionedRecord, nonce: str = "") -> VersionedRecord:
        """Claim a container whose record is unchanged since `seen`, and return the record with the next epoch. No
        earlier owner can change the record from now on. nonce: identifies this claim later. FencedError: the record has
        changed. StoreError: its data was moved elsewhere. UnavailableError: the outcome is unknown."""
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
        """Raise FencedError if there is a later claim than `epoch`, otherwise as `read`."""

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
        """Publish a snapshot and the log's start, durably; raise FencedError if another server owns the container,
        UnavailableError if the outcome is unknown."""
        await self._change(container, epoch, snapshot=snapshot, start=start)

    async def renew(self, container: int, epoch: int) -> None:
        """Rewrite the unchanged record, so that claims of its earlier version fail. Raises as `set_snapshot`."""
        await self._change(container, epoch)

    async def announce(self, container: int, epoch: int, target: str) -> None:
        """Announce that the container will be released to that server soon. Raises as `set_snapshot`."""
        await self._change(container, epoch, target=target)

    async def release(self, container: int, epoch: int, target: str) -> None:
        """Release the container to that server. Raises as `set_snapshot`."""
        await self._change(container, epoch, target=target, released=True)

    async def move_away(self, container: int, epoch: int, moved: NewLocation) -> None:
        """Prevent further claims of the container, as its data is elsewhere. Raises as `set_snapshot`."""
        await self._change(container, epoch, moved=moved)

    async def take_back(self, container: int, epoch: int) -> None:
        """Allow claims of the container again after `move_away`; the migration can't change its record any more. Raises
        as `set_snapshot`."""
        await self._change(container, epoch, epoch=epoch + 1, owner="", target="", released=False, moved=None)

    async def _change(self, container: int, epoch: int, /, **changes: object) -> None:
        """Make an owner's change exactly once, identified by its nonce, even if answers are lost."""
        nonce = self._runtime.unique()

        async def attempt() -> None:
            record, version = await self.read_to_change(container)
            if record.nonce == nonce and version is not None:  # made by an earlier attempt
                value = _encode(record)
            elif record.epoch != epoch and not self.is_alone:
                raise FencedError(container, record.epoch)
            else:
                value = _encode(replace(record, **{"epoch": epoch, "nonce": nonce, **changes}))
                if await outcomes.was_set(self._registry, name_of(container), value, version) is None:
                    raise UnavailableError("other servers were faster each time")
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
    """Raise UnavailableError without an answer by then: this process may have stood still, too."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise UnavailableError(f"the registry didn't answer within {seconds:g} s: try again") from error


def check_stays(record: ContainerRecord) -> None:
    """Raise StoreError if the container's data was moved elsewhere."""
    if record.moved is not None:
        raise StoreError(
            f"the data of this store was moved to {record.moved.to}: start its servers there. To serve it from here "
            "again, see `nadi migrate --undo`"
        )


def first_record(epoch: int, snapshot: SnapshotManifest) -> ContainerRecord:
    """Return the record of a container that starts with a snapshot and an empty log; claims get epochs after
    `epoch`."""
    sequence = snapshot.sequence
    start = ChainStart(epoch, 1, sequence, ((epoch, sequence + 1),), sequence + 1, 0)
    return ContainerRecord(epoch, start=start, snapshot=snapshot)


def name_of(container: int) -> str:
    return f"{FOLDER}{container}"


def _record(container: int, entry: VersionedValue) -> ContainerRecord:
    value = value_of(entry.value)
    if value is None:
        raise DamagedRecordError(container, "is damaged: its checksum is wrong", entry.version)
    try:
        record = _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedRecordError(container, f"isn't a container's record ({error})", entry.version) from error
    if record.snapshot is not None and record.snapshot.container != container:
        raise DamagedRecordError(container, "is another container's", entry.version)
    return record
