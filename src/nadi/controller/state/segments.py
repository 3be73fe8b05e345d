"""Typed calls to segments and tables: the controller's only access to the segment stores.

`exchange` takes a wire command and returns the store's reply, which may be an error command; it raises UnavailableError
if the store is unreachable. Each call here is idempotent: work that is already done counts as done. Only unavailability
is retried, a few times; workflows handle longer outages. Each store has its own lane of calls, so an unresponsive store
doesn't delay calls to others.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec

from nadi import errors
from nadi.backoff import Backoff, Tries
from nadi.controller.state.records import StreamConfigRecord
from nadi.limits import CONTROLLER_CACHE_RECORDS, SEGMENT_CALL_ATTEMPTS, SEGMENT_CALLS_AT_ONCE, TABLE_PAGE_MAX_ENTRIES
from nadi.model.load import SegmentLoad
from nadi.naming import LOAD_SEGMENT
from nadi.runtime import Runtime
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from nadi.wire.errors import error_of, is_whole
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, WireTableEntry, WireTableKey
from nadi.wire.load_reports import unpacked_loads
from nadi.wire.time_index import ARRIVAL

Exchange = Callable[[Command], Awaitable[Command]]
PlaceOf = Callable[[Command], str]
Leased = Callable[[], bool]

Answer = TypeVar("Answer", bound=Command)
A = TypeVar("A")
_FIRST_PAUSE_S = 0.05
_POSSIBLE = (
    errors.SegmentNotFoundError,
    errors.StreamSealedError,
    errors.DamagedDataError,
    errors.UnavailableError,
)  # in reply to a correct command


class Segments:
    """Typed calls to the segment stores. place_of: returns the store that a command goes to, in any form. is_leased:
    whether no other controller can have started since this one did; otherwise no commands are sent."""

    def __init__(
        self, exchange: Exchange, clock: Runtime, place_of: PlaceOf = lambda _: "", is_leased: Leased = lambda: True
    ) -> None:
        self._exchange, self._place_of, self._is_leased = exchange, place_of, is_leased
        self.clock = clock
        self._request_ids = itertools.count(1)
        self._lanes: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # in use, by store

    def request_id(self) -> int:
        return next(self._request_ids)

    async def call(self, command: Command) -> tuple[Command, bool]:
        """Return the reply, and whether an earlier attempt without a reply may have executed the command."""
        backoff = Backoff(first_s=_FIRST_PAUSE_S, growth=4, sleep=self.clock.sleep)
        for attempt in itertools.count(1):
            location = self._place_of(command)  # again for each attempt, since segments move
            try:
                async with self._lanes.setdefault(location, asyncio.Semaphore(SEGMENT_CALLS_AT_ONCE)):
                    self._check_lease()  # right before sending: the command may have waited behind thousands
                    reply = await self._exchange(command)
                if isinstance(reply, wire.WrongHost):
                    raise failure(command, reply)
                return reply, attempt > 1
            except errors.UnavailableError:
                if attempt == SEGMENT_CALL_ATTEMPTS:
                    raise
            await backoff.pause()
        raise AssertionError("unreachable")

    def _check_lease(self) -> None:
        if not self._is_leased():
            raise errors.UnavailableError("another server may have taken over the controller: try again")

    def place_of(self, segment: str) -> str:
        """Return the store that has a segment, in any form, as far as known."""
        return self._place_of(wire.GetStreamSegmentInfo(0, segment, ""))

    async def ask(self, command: Command, *answers: type[Answer]) -> Answer:
        """Return the reply if it is of one of these types; otherwise raise the corresponding error."""
        reply, _ = await self.call(command)
        if not (isinstance(reply, answers) and is_whole(command, reply)):
            raise failure(command, reply)
        return reply

    async def create_segment(self, name: str, config: StreamConfigRecord, *, fixed: bool = False) -> None:
        """Create a stream segment. `fixed`: it never requests scaling (transactions, duplicates)."""
        rate, scale_type = (0, 0) if fixed else (config.target_rate, int(config.scale_type))
        command = wire.CreateSegment(self.request_id(), name, rate, scale_type, "", config.rollover_size_bytes)
        await self.ask(command, wire.SegmentCreated, wire.SegmentAlreadyExists)

    async def update_policy(self, name: str, config: StreamConfigRecord) -> None:
        rate, scale_type = config.target_rate, int(config.scale_type)
        command = wire.UpdateSegmentPolicy(self.request_id(), name, rate, scale_type, "")
        await self.ask(command, wire.SegmentPolicyUpdated)

    async def seal(self, name: str) -> None:
        await self.ask(wire.SealSegment(self.request_id(), name, ""), wire.SegmentSealed, wire.SegmentIsSealed)

    async def truncate(self, name: str, offset: int) -> None:
        command = wire.TruncateSegment(self.request_id(), name, offset, "")
        # NoSuchSegment: deleted by a later truncation
        await self.ask(command, wire.SegmentTruncated, wire.SegmentIsTruncated, wire.NoSuchSegment)

    async def delete(self, name: str) -> None:
        await self.ask(wire.DeleteSegment(self.request_id(), name, ""), wire.SegmentDeleted, wire.NoSuchSegment)

    async def create_table(self, name: str, key_bytes: int, rollover_size_bytes: int) -> None:
        command = wire.CreateTableSegment(self.request_id(), name, "", False, key_bytes, rollover_size_bytes)
        await self.ask(command, wire.SegmentCreated, wire.SegmentAlreadyExists)

    async def delete_table(self, name: str) -> None:
        command = wire.DeleteTableSegment(self.request_id(), name, False, "")
        await self.ask(command, wire.SegmentDeleted, wire.NoSuchSegment)

    async def table_entries(self, name: str) -> AsyncIterator[WireTableEntry]:
        """Yield all entries of a table that clients write; none if the table doesn't exist."""
        token = b""
        while True:
            command = wire.ReadTableEntries(self.request_id(), name, "", TABLE_PAGE_MAX_ENTRIES, (token, b"", b""))
            try:
                page = await self.ask(command, wire.TableEntriesRead)
            except errors.SegmentNotFoundError:
                return
            if not page.entries:
                return
            for entry in page.entries:
                yield entry
            token = page.continuation_token

    async def length(self, name: str) -> int:
        """Return the offset at which the next byte will be written to the segment."""
        reply = await self.ask(wire.GetStreamSegmentInfo(self.request_id(), name, ""), wire.StreamSegmentInfo)
        if not reply.exists:
            raise errors.SegmentNotFoundError(name)
        return reply.write_offset

    async def length_or_zero(self, name: str) -> int:
        """Return the length as `length` does; 0 if the segment is deleted."""
        try:
            return await self.length(name)
        except errors.SegmentNotFoundError:
            return 0

    async def locate_moment(self, name: str, at: int, clock: int = ARRIVAL) -> tuple[int, bool]:
        """Return the segment's offset at that time of a clock, and whether it was sealed before."""
        reply = await self.ask(wire.LocateMoment(self.request_id(), name, at, clock, ""), wire.MomentLocated)
        return reply.offset, reply.is_sealed

    async def loads(self, of: str = "") -> list[SegmentLoad]:
        """Return the loads of all stream segments measured in the last 20 minutes, by name, except those first measured
        in the last half second. Some may have been sealed or deleted meanwhile; a segment without load is absent. of: a
        name prefix to filter by, such as `home/meters/`."""
        return (await self._loads(of, elastic=False))[0]

    async def elastic_loads(self) -> tuple[list[SegmentLoad], bool]:
        """Return `loads` without segments that are known not to scale, and whether all active segments are measured."""
        return await self._loads("", elastic=True)

    async def _loads(self, of: str, *, elastic: bool) -> tuple[list[SegmentLoad], bool]:
        loads: list[SegmentLoad] = []
        is_last, is_complete = False, True
        while not is_last:
            after = loads[-1].segment if loads else of
            command = wire.GetSegmentLoads(self.request_id(), LOAD_SEGMENT, "", after, elastic)
            reply = await self.ask(command, wire.SegmentLoads)
            page = unpacked_loads(reply.loads)
            matching = [load for load in page if load.segment.startswith(of)]
            loads += matching
            is_last = reply.is_last or not page or len(matching) < len(page)
            is_complete = is_complete and reply.is_complete
        return loads, is_complete

    async def locate(self, name: str, offset: int) -> int:
        """Return the segment's first event boundary at or after an offset, among its retained bytes."""
        command = wire.LocateOffset(self.request_id(), name, offset, "")
        located: tuple[type[Command], ...] = (wire.OffsetLocated, wire.SegmentIsTruncated)
        reply = await self.ask(command, *located)
        if isinstance(reply, wire.SegmentIsTruncated):
            return reply.start_offset
        assert isinstance(reply, wire.OffsetLocated)
        return reply.offset

    async def merge(self, target: str, sources: Sequence[str], *, sealed_is_done: bool = False) -> list[int]:
        """Append the sources to the target in order; absent ones were merged before. Return the target's length after
        each. `sealed_is_done`: a sealed target means that all were merged before."""
        command = wire.MergeSegmentsBatch(self.request_id(), target, tuple(sources), "")
        sealed = (wire.SegmentIsSealed,) if sealed_is_done else ()
        reply: Command = await self.ask(command, wire.SegmentsBatchMerged, *sealed)
        return [offset for _, offset in reply.merged] if isinstance(reply, wire.SegmentsBatchMerged) else []


async def together(calls: Iterable[Awaitable[A]]) -> list[A]:
    """Await all at once and return their results; the first error cancels the others and is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def failure(command: Command, reply: Command) -> errors.NadiError:
    """Return the error for a reply; ProtocolError if the reply makes no sense for the command."""
    error = error_of(reply)
    if isinstance(error, _POSSIBLE):
        return error
    return errors.ProtocolError(f"the segment store answered {str(command)[:200]} with {str(reply)[:200]}")


_frees_space: ContextVar[bool] = ContextVar("frees_space", default=False)


@contextmanager
def freeing_space() -> Iterator[None]:
    """Let records put by this task, and by tasks it starts, be accepted on a full disk, since they lead to free
    space."""
    token = _frees_space.set(True)
    try:
        yield
    finally:
        _frees_space.reset(token)


T = TypeVar("T")
V = TypeVar("V")

Make = Callable[[T | None], Awaitable[T]]  # returns the new record for the current one
ANY_VERSION = NO_VERSION
ABSENT = NOT_EXISTS


class Versioned(NamedTuple, Generic[V]):
    value: V
    version: int


class Store:
    """The controller's tables. A change is conditional on versions, and is all or nothing within a table. Reads go
    through a bounded cache; a record whose change got no reply may be stale there until the next conditional change."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self._cache: OrderedDict[tuple[str, str], Versioned[Any]] = OrderedDict()
        self._cached_keys: dict[str, set[str]] = {}  # by table
        self.changes = 0  # so that a read that started before a change doesn't fill the cache after it

    def table(self, name: str, kind: Any, *, lazy: bool = False) -> RecordTable[Any]:
        return RecordTable(self, name, kind, lazy=lazy)

    def recall(self, table: str, key: str) -> Versioned[Any] | None:
        record = self._cache.get((table, key))
        if record is not None:
            self._cache.move_to_end((table, key))
        return record

    def remember(self, table: str, key: str, record: Versioned[Any]) -> None:
        self._cache[table, key] = record
        self._cache.move_to_end((table, key))
        self._cached_keys.setdefault(table, set()).add(key)
        if len(self._cache) > CONTROLLER_CACHE_RECORDS:
            self.drop(*next(iter(self._cache)))

    def forget(self, table: str, keys: Iterable[str] | None = None) -> None:
        """Drop these keys, or the whole table, from the cache."""
        self.changes += 1
        for key in list(self._cached_keys.get(table, ())) if keys is None else keys:
            self.drop(table, key)

    def drop(self, table: str, key: str) -> None:
        if self._cache.pop((table, key), None) is not None:
            keys = self._cached_keys[table]
            keys.discard(key)
            if not keys:
                del self._cached_keys[table]


class RecordTable(Generic[T]):
    """A table segment with values of one type (a struct, or a union of tagged structs). lazy: it is created with
    the first record, and is empty until then. Otherwise all calls except `create`, `delete` and `remove` raise
    SegmentNotFoundError if the table doesn't exist."""

    def __init__(self, store: Store, name: str, kind: Any, *, lazy: bool = False) -> None:
        self.name = name
        self._lazy = lazy
        self._store = store
        self._segments = store.segments
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._encode = msgspec.msgpack.Encoder().encode

    async def create(self) -> None:
        request_id = self._segments.request_id()
        command: Command = wire.CreateTableSegment(request_id, self.name, "")
        if _frees_space.get():
            command = wire.UpdateTableToFreeSpace(request_id, self.name, "", (), True)
        await self._segments.ask(command, wire.SegmentCreated, wire.SegmentAlreadyExists, wire.TableEntriesUpdated)

    async def delete(self, *, must_be_empty: bool = False) -> bool:
        """Delete the table; return True also if it doesn't exist, False if it must be empty but isn't."""
        command = wire.DeleteTableSegment(self._segments.request_id(), self.name, must_be_empty, "")
        reply = await self._segments.ask(command, wire.SegmentDeleted, wire.NoSuchSegment, wire.TableSegmentNotEmpty)
        self._store.forget(self.name)
        return not isinstance(reply, wire.TableSegmentNotEmpty)

    async def get(self, key: str, *, fresh: bool = False) -> Versioned[T] | None:
        record = None if fresh else self._store.recall(self.name, key)
        return record if record is not None else (await self.get_all([key]))[0]

    async def get_all(self, keys: Sequence[str]) -> list[Versioned[T] | None]:
        changes = self._store.changes
        table_keys = tuple(WireTableKey(key.encode()) for key in keys)
        command = wire.ReadTable(self._segments.request_id(), self.name, "", table_keys)
        try:
            reply = await self._segments.ask(command, wire.TableRead)
        except errors.SegmentNotFoundError:
            if not self._lazy:
                raise
            return [None] * len(keys)
        records: list[Versioned[T] | None] = []
        for key, entry in zip(keys, reply.entries, strict=True):
            record = None if entry.version < 0 else Versioned(self._decoder.decode(entry.value), entry.version)
            if record is None:
                self._store.drop(self.name, key)
            elif changes == self._store.changes:
                self._store.remember(self.name, key, record)
            records.append(record)
        return records

    async def put(self, key: str, value: T, version: int) -> Versioned[T]:
        """Store one record if `key` still has `version` (ABSENT: no record; ANY_VERSION: unconditionally)."""
        return (await self.put_all([(key, value, version)]))[0]

    async def put_all(self, changes: Sequence[tuple[str, T, int]], *, cached: bool = True) -> list[Versioned[T]]:
        """Store several records of this table, all or none. cached: they are likely to be read individually."""
        entries = tuple(WireTableEntry(k.encode(), version, self._encode(v)) for k, v, version in changes)
        keys = [key for key, _, _ in changes]
        self._store.forget(self.name, keys)
        request_id = self._segments.request_id()
        command: Command = wire.UpdateTableEntries(request_id, self.name, "", entries)
        if _frees_space.get():
            command = wire.UpdateTableToFreeSpace(request_id, self.name, "", entries, self._lazy)
        try:
            reply, retried = await self._segments.call(command)
            if self._lazy and isinstance(reply, wire.NoSuchSegment):
                if any(version >= 0 for _, _, version in changes):
                    raise errors.ConditionFailedError(f"the table {self.name} was deleted, with {', '.join(keys)}")
                await self.create()
                reply, retried = await self._segments.call(command)
        finally:
            self._store.forget(self.name, keys)
        if isinstance(reply, wire.TableEntriesUpdated) and is_whole(command, reply):
            stored = [Versioned(v, n) for (_, v, _), n in zip(changes, reply.versions, strict=True)]
        elif isinstance(reply, wire.TableKeyBadVersion | wire.TableKeyDoesNotExist):
            versions = await self._stored_before(entries) if retried else None
            if versions is None:
                raise errors.ConditionFailedError(f"{self.name}: {', '.join(keys)} changed meanwhile")
            stored = [Versioned(v, n) for (_, v, _), n in zip(changes, versions, strict=True)]
        else:
            raise failure(command, reply)
        if cached:
            for key, record in zip(keys, stored, strict=True):
                self._store.remember(self.name, key, record)
        return stored

    async def change(
        self, key: str, subject: str, make: Make[T], *, known: Versioned[T] | None = None, fresh: bool = False
    ) -> Versioned[T]:
        """Store what `make` returns for the record (None if absent), retrying with the newest record after concurrent
        changes; ContentionError, naming `subject`, if all attempts fail. A record returned unchanged isn't stored.
        known: the record as the caller read it."""
        clock = self._segments.clock
        tries = Tries(subject, sleep=clock.sleep, chance=clock.chance)
        current = known if known is not None else await self.get(key, fresh=fresh)
        while True:
            changed = await make(None if current is None else current.value)
            if current is not None and changed is current.value:
                return current
            try:
                return await self.put(key, changed, ABSENT if current is None else current.version)
            except errors.ConditionFailedError:
                await tries.lost()
            current = await self.get(key, fresh=True)

    async def _stored_before(self, entries: Sequence[WireTableEntry]) -> list[int] | None:
        """Return the versions of the entries if an earlier attempt without a reply stored exactly these."""
        table_keys = tuple(WireTableKey(entry.key) for entry in entries)
        command = wire.ReadTable(self._segments.request_id(), self.name, "", table_keys)
        reply, _ = await self._segments.call(command)
        if not (isinstance(reply, wire.TableRead) and is_whole(command, reply)):
            return None
        for entry, stored in zip(entries, reply.entries, strict=True):
            if stored.version < 0 or bytes(stored.value) != entry.value:
                return None
        return [entry.version for entry in reply.entries]

    async def remove(self, keys: Iterable[str]) -> None:
        """Remove records regardless of their versions; absent records or an absent table are fine."""
        names = list(keys)
        if not names:
            return
        self._store.forget(self.name, names)
        table_keys = tuple(WireTableKey(key.encode(), ANY_VERSION) for key in names)
        command = wire.RemoveTableKeys(self._segments.request_id(), self.name, "", table_keys)
        await self._segments.ask(command, wire.TableKeysRemoved, wire.TableKeyDoesNotExist, wire.NoSuchSegment)
        self._store.forget(self.name, names)

    async def remove_if(self, *records: tuple[str, int]) -> bool:
        """Remove records by key and version, or none if one has changed; return whether they are gone."""
        keys = [key for key, _ in records]
        self._store.forget(self.name, keys)
        table_keys = tuple(WireTableKey(key.encode(), version) for key, version in records)
        command = wire.RemoveTableKeys(self._segments.request_id(), self.name, "", table_keys)
        reply = await self._segments.ask(
            command, wire.TableKeysRemoved, wire.TableKeyDoesNotExist, wire.NoSuchSegment, wire.TableKeyBadVersion
        )
        self._store.forget(self.name, keys)
        return not isinstance(reply, wire.TableKeyBadVersion)

    async def page(
        self, token: bytes = b"", count: int = TABLE_PAGE_MAX_ENTRIES, *, prefix: str = ""
    ) -> tuple[list[tuple[str, Versioned[T]]], bytes]:
        """Return up to `count` records after `token` whose keys start with `prefix`, and the continuation token; an
        empty page is the end. The order is arbitrary but stable."""
        low = prefix.encode()
        high = low[:-1] + bytes([low[-1] + 1]) if low else b""  # an inclusive bound
        command = wire.ReadTableEntries(self._segments.request_id(), self.name, "", count, (token, low, high))
        try:
            reply = await self._segments.ask(command, wire.TableEntriesRead)
        except errors.SegmentNotFoundError:
            if not self._lazy:
                raise
            return [], token
        decode = self._decoder.decode
        matching = (entry for entry in reply.entries if bytes(entry.key).startswith(low))
        records = [(e.key.decode(), Versioned(decode(e.value), e.version)) for e in matching]
        return records, reply.continuation_token

    async def scan(
        self, prefix: str = "", *, page: int = TABLE_PAGE_MAX_ENTRIES
    ) -> AsyncIterator[tuple[str, Versioned[T]]]:
        """Yield all records whose keys start with `prefix`, read in pages of `page`; none if the table doesn't
        exist."""
        token, records = b"", None
        while records is None or records:
            try:
                records, token = await self.page(token, page, prefix=prefix)
            except errors.SegmentNotFoundError:
                return
            for item in records:
                yield item
