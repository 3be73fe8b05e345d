"""The containers' records: one small object each, changed by compare-and-set. A record says whose the container is,
and where one who takes it over begins: which snapshot, and which place in the log.

An owner changes it only while it has its own epoch; so one that was overtaken can't release anything of the log, nor
let a snapshot count. Each change carries a nonce of its own, which tells whether one without an answer was made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from nadi.backoff import Backoff
from nadi.engines import outcomes
from nadi.engines.engine import Registry
from nadi.engines.lines import line_of, value_of
from nadi.errors import FencedError, StoreError, UnavailableError
from nadi.limits import CLUSTER_CALL_S, CLUSTER_RECORD_TRIES, CLUSTER_RECORDS_AT_ONCE
from nadi.runtime import Runtime
from nadi.segmentstore.chain.layout import Place
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery.snapshots import Manifest
from nadi.throttled_log import Complaints

log = logging.getLogger(__name__)
T = TypeVar("T")
FOLDER = "containers/"


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


class MovedAway(msgspec.Struct, frozen=True):
    """to: the URL of the data folder that has the data now. migration: the id of what moved it there."""

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
    start: LogStart = LogStart()
    snapshot: Manifest | None = None
    nonce: str = ""
    moved: MovedAway | None = None


class Stored(NamedTuple):
    """A record and its version; None: there is none yet."""

    record: ContainerRecord
    version: str | None


_decode = msgspec.json.Decoder(ContainerRecord).decode


def _encode(record: ContainerRecord) -> bytes:
    return line_of(msgspec.json.encode(record))


class Records:
    """Those of all containers of a cluster."""

    def __init__(self, registry: Registry, runtime: Runtime) -> None:
        self._registry, self._runtime = registry, runtime

    async def read(self, container: int) -> Stored:
        """The newest record; raise UnavailableError if the store can't answer."""
        async with _answer_within(CLUSTER_CALL_S):
            entry = await self._registry.get(name_of(container))
        return Stored(_record(container, entry.value), entry.version) if entry is not None else _NONE

    async def claim(self, container: int, server: str, seen: Stored) -> Stored:
        """Claim a container whose record is still the one that was seen, and return the one with the next epoch. No
        former owner can change the record from now on.

        Raises:
            FencedError: it is another by now.
            StoreError: its data was moved elsewhere.
            UnavailableError: it isn't known whether it is claimed.
        """
        record = seen.record
        check_stays(record)
        claimed = replace(
            record, epoch=record.epoch + 1, owner=server, target="", released=False, nonce=self._runtime.unique()
        )
        value = _encode(claimed)

        async def attempt() -> Stored:
            entry = await outcomes.was_set(self._registry, name_of(container), value, seen.version)
            if entry is None:
                raise FencedError(container, (await self.read(container)).record.epoch)
            return Stored(claimed, entry.version)

        return await self._within_tries(f"container {container} can't be claimed", attempt)

    async def still_claimed(self, container: int, epoch: int) -> None:
        """Raise FencedError if there is a later claim than that one, UnavailableError if the store can't answer."""

        async def attempt() -> None:
            record, _ = await self.read(container)
            if record.epoch != epoch:
                raise FencedError(container, record.epoch)

        await self._within_tries(f"the record of container {container} can't be read", attempt)

    async def set_snapshot(self, container: int, epoch: int, snapshot: Manifest | None, start: ChainStart) -> None:
        """Let that snapshot count, and the log begin there, durably; raise FencedError if the container is another's,
        UnavailableError if it isn't known whether it counts."""
        await self._change(container, epoch, snapshot=snapshot, start=LogStart.of(start))

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
            record, version = await self.read(container)
            if record.nonce == nonce:  # made by an earlier try
                return
            if record.epoch != epoch:
                raise FencedError(container, record.epoch)
            value = _encode(replace(record, nonce=nonce, **changes))
            if await outcomes.was_set(self._registry, name_of(container), value, version) is None:
                raise UnavailableError("others were faster each time")

        await self._within_tries(f"the record of container {container} can't be changed", attempt)

    async def _within_tries(self, failed: str, attempt: Callable[[], Awaitable[T]]) -> T:
        backoff, failure = Backoff(sleep=self._runtime.sleep), ""
        for _ in range(CLUSTER_RECORD_TRIES):
            try:
                async with _answer_within(2 * CLUSTER_CALL_S):  # two calls at most
                    return await attempt()
            except FencedError:
                raise
            except UnavailableError as error:
                failure = str(error)
            await backoff.pause()
        raise UnavailableError(f"{failed}: {failure}")


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
        async with _answer_within(CLUSTER_CALL_S):
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
                self.seen[number] = Seen(_NONE, now)
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


_NONE = Stored(ContainerRecord(), None)


@asynccontextmanager
async def _answer_within(seconds: float) -> AsyncIterator[None]:
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
            f"the data of this cluster was moved to {record.moved.to}: start its server there. If it is to be served "
            "from this store again, see `nadi migrate --undo --from URL`"
        )


def first_record(epoch: int, snapshot: Manifest) -> bytes:
    """The stored record of a container that begins with a snapshot and a log of which nothing is there; epochs of
    claims follow that one."""
    sequence = snapshot.sequence
    start = LogStart(epoch, 1, sequence, ((epoch, sequence + 1),), sequence + 1, 0)
    return _encode(ContainerRecord(epoch, start=start, snapshot=snapshot))


def name_of(container: int) -> str:
    """The name of a container's record."""
    return f"{FOLDER}{container}"


def _number_of(name: str) -> int | None:
    number = name.removeprefix(FOLDER)
    return int(number) if number.isdecimal() else None


def _record(container: int, value: bytes) -> ContainerRecord:
    """StoreError if it is damaged: a wrong place in the log, or a wrong snapshot, would lose what was acknowledged."""
    found = value_of(value)
    if found is None:
        raise StoreError(f"{name_of(container)} in the store is damaged: its checksum doesn't fit")
    try:
        return _decode(found)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{name_of(container)} in the store is no record of a container ({error})") from error
