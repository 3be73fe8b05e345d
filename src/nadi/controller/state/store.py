"""Typed access to the controller's tables: records by key, each with the version it was stored under.

Every change names the version it expects; ConditionFailedError means that another change was first.
A change to several keys of one table is all or nothing. Reads go through a bounded cache; a record
whose change got no answer may be stale there, until the next conditional change discovers that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from nadi.backoff import Tries
from nadi.controller.state.segments import Segments, failure
from nadi.errors import ConditionFailedError, SegmentNotFoundError
from nadi.limits import CONTROLLER_CACHE_RECORDS, TABLE_PAGE_MAX_ENTRIES
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from nadi.wire.errors import is_whole
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

_frees_room: ContextVar[bool] = ContextVar("frees_room", default=False)


@contextmanager
def freeing_room() -> Iterator[None]:
    """Records put inside this context, by this task and tasks it starts, are accepted on a full disk: they free it."""
    token = _frees_room.set(True)
    try:
        yield
    finally:
        _frees_room.reset(token)


T = TypeVar("T")
V = TypeVar("V")

ANY_VERSION = NO_VERSION
ABSENT = NOT_EXISTS


class Versioned(NamedTuple, Generic[V]):
    value: V
    version: int


class Store:
    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self._cache: OrderedDict[tuple[str, str], Versioned[Any]] = OrderedDict()
        self._cached_keys: dict[str, set[str]] = {}  # by table
        self.changes = 0  # counts changes, so a read started before one doesn't fill the cache after it

    def table(self, name: str, kind: Any, *, made_late: bool = False) -> RecordTable[Any]:
        return RecordTable(self, name, kind, made_late=made_late)

    def recall(self, table: str, key: str) -> Versioned[Any] | None:
        found = self._cache.get((table, key))
        if found is not None:
            self._cache.move_to_end((table, key))
        return found

    def remember(self, table: str, key: str, found: Versioned[Any]) -> None:
        self._cache[table, key] = found
        self._cache.move_to_end((table, key))
        self._cached_keys.setdefault(table, set()).add(key)
        if len(self._cache) > CONTROLLER_CACHE_RECORDS:
            oldest = next(iter(self._cache))
            self.drop(*oldest)

    def forget(self, table: str, keys: Iterable[str]) -> None:
        self.changes += 1
        for key in keys:
            self.drop(table, key)

    def forget_table(self, table: str) -> None:
        self.forget(table, list(self._cached_keys.get(table, ())))

    def drop(self, table: str, key: str) -> None:
        if self._cache.pop((table, key), None) is not None:
            keys = self._cached_keys[table]
            keys.discard(key)
            if not keys:
                del self._cached_keys[table]


class RecordTable(Generic[T]):
    """One table segment whose values are all of one kind (a struct, or a union of tagged ones).

    made_late: it is created when the first record is put, and reads as empty until then. Otherwise all calls but
    `create`, `drop` and `remove` raise SegmentNotFoundError if the table doesn't exist.
    """

    def __init__(self, store: Store, name: str, kind: Any, *, made_late: bool = False) -> None:
        self.name = name
        self._made_late = made_late
        self._store = store
        self._segments = store.segments
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._encode = msgspec.msgpack.Encoder().encode

    async def create(self) -> None:
        request_id = self._segments.request_id()
        command: Command = wire.CreateTableSegment(request_id, self.name, "")
        if _frees_room.get():
            command = wire.UpdateTableToFreeRoom(request_id, self.name, "", (), True)
        await self._segments.ask(command, wire.SegmentCreated, wire.SegmentAlreadyExists, wire.TableEntriesUpdated)

    def _update(self, entries: tuple[TableEntry, ...]) -> Command:
        request_id = self._segments.request_id()
        if _frees_room.get():
            return wire.UpdateTableToFreeRoom(request_id, self.name, "", entries, self._made_late)
        return wire.UpdateTableEntries(request_id, self.name, "", entries)

    async def drop(self, *, must_be_empty: bool = False) -> bool:
        """Delete the table; return True also if it is already gone, False if it must be empty and isn't."""
        command = wire.DeleteTableSegment(self._segments.request_id(), self.name, must_be_empty, "")
        reply = await self._segments.ask(command, wire.SegmentDeleted, wire.NoSuchSegment, wire.TableSegmentNotEmpty)
        self._store.forget_table(self.name)
        return not isinstance(reply, wire.TableSegmentNotEmpty)

    async def get(self, key: str, *, fresh: bool = False) -> Versioned[T] | None:
        found = None if fresh else self._store.recall(self.name, key)
        return found if found is not None else (await self.get_all([key]))[0]

    async def get_all(self, keys: Sequence[str]) -> list[Versioned[T] | None]:
        changes = self._store.changes
        wanted = tuple(TableKey(key.encode()) for key in keys)
        command = wire.ReadTable(self._segments.request_id(), self.name, "", wanted)
        try:
            reply = await self._segments.ask(command, wire.TableRead)
        except SegmentNotFoundError:
            if not self._made_late:
                raise
            return [None] * len(keys)
        records: list[Versioned[T] | None] = []
        for key, entry in zip(keys, reply.entries, strict=True):
            if entry.version < 0:
                self._store.drop(self.name, key)
                records.append(None)
                continue
            record = Versioned(self._decoder.decode(entry.value), entry.version)
            if changes == self._store.changes:
                self._store.remember(self.name, key, record)
            records.append(record)
        return records

    async def put(self, key: str, value: T, version: int) -> Versioned[T]:
        """Store one record if `key` still has `version` (ABSENT: nothing there; ANY_VERSION: in any case)."""
        return (await self.put_all([(key, value, version)]))[0]

    async def put_all(self, changes: Sequence[tuple[str, T, int]], *, cached: bool = True) -> list[Versioned[T]]:
        """Store several records of this table, all or none. cached: they are likely to be read one by one."""
        entries = tuple(TableEntry(k.encode(), version, self._encode(v)) for k, v, version in changes)
        keys = [key for key, _, _ in changes]
        self._store.forget(self.name, keys)
        command = self._update(entries)
        try:
            reply, retried = await self._segments.call(command)
            if self._made_late and isinstance(reply, wire.NoSuchSegment):
                if any(version >= 0 for _, _, version in changes):
                    raise ConditionFailedError(f"{self.name} is gone, and {', '.join(keys)} with it")
                await self.create()
                reply, retried = await self._segments.call(command)
        finally:
            self._store.forget(self.name, keys)
        if isinstance(reply, wire.TableEntriesUpdated) and is_whole(command, reply):
            stored = [Versioned(v, n) for (_, v, _), n in zip(changes, reply.versions, strict=True)]
        elif isinstance(reply, wire.TableKeyBadVersion | wire.TableKeyDoesNotExist):
            mine = await self._stored_before(entries) if retried else None
            if mine is None:
                raise ConditionFailedError(f"{self.name}: {', '.join(keys)} changed meanwhile")
            stored = [Versioned(v, n) for (_, v, _), n in zip(changes, mine, strict=True)]
        else:
            raise failure(command, reply)
        if cached:
            for key, record in zip(keys, stored, strict=True):
                self._store.remember(self.name, key, record)
        return stored

    async def change(
        self,
        key: str,
        what: str,
        make: Callable[[T | None], Awaitable[T]],
        *,
        known: Versioned[T] | None = None,
        fresh: bool = False,
    ) -> Versioned[T]:
        """Store what `make` returns for the record (None if there is none), retrying with the newest record while
        others are faster; ContentionError, naming `what`, if they always are. A record returned as is isn't stored.

        known: the record as the caller read it.
        """
        clock = self._segments.clock
        tries = Tries(what, sleep=clock.sleep, chance=clock.chance)
        found = known if known is not None else await self.get(key, fresh=fresh)
        while True:
            changed = await make(None if found is None else found.value)
            if found is not None and changed is found.value:
                return found
            try:
                return await self.put(key, changed, ABSENT if found is None else found.version)
            except ConditionFailedError:
                await tries.lost()
            found = await self.get(key, fresh=True)

    async def _stored_before(self, entries: Sequence[TableEntry]) -> list[int] | None:
        """Versions of the entries if an earlier, unanswered try stored exactly them."""
        wanted = tuple(TableKey(entry.key) for entry in entries)
        command = wire.ReadTable(self._segments.request_id(), self.name, "", wanted)
        reply, _ = await self._segments.call(command)
        if not (isinstance(reply, wire.TableRead) and is_whole(command, reply)):
            return None
        for mine, theirs in zip(entries, reply.entries, strict=True):
            if theirs.version < 0 or bytes(theirs.value) != mine.value:
                return None
        return [entry.version for entry in reply.entries]

    async def remove(self, keys: Iterable[str]) -> None:
        """Remove records whatever their version; absent records are fine, and so is an absent table."""
        gone = list(keys)
        if not gone:
            return
        self._store.forget(self.name, gone)
        wanted = tuple(TableKey(key.encode(), ANY_VERSION) for key in gone)
        command = wire.RemoveTableKeys(self._segments.request_id(), self.name, "", wanted)
        await self._segments.ask(command, wire.TableKeysRemoved, wire.TableKeyDoesNotExist, wire.NoSuchSegment)
        self._store.forget(self.name, gone)

    async def remove_if(self, *records: tuple[str, int]) -> bool:
        """Remove records, each by its key and version, or none if one has changed since; return whether they are
        gone."""
        keys = [key for key, _ in records]
        self._store.forget(self.name, keys)
        wanted = tuple(TableKey(key.encode(), version) for key, version in records)
        command = wire.RemoveTableKeys(self._segments.request_id(), self.name, "", wanted)
        reply = await self._segments.ask(
            command, wire.TableKeysRemoved, wire.TableKeyDoesNotExist, wire.NoSuchSegment, wire.TableKeyBadVersion
        )
        self._store.forget(self.name, keys)
        return not isinstance(reply, wire.TableKeyBadVersion)

    async def page(
        self, token: bytes = b"", count: int = TABLE_PAGE_MAX_ENTRIES, *, prefix: str = ""
    ) -> tuple[list[tuple[str, Versioned[T]]], bytes]:
        """Up to `count` records after `token` whose keys begin with `prefix`, and the token to continue from; an
        empty page is the end. The order is arbitrary but always the same."""
        low = prefix.encode()
        high = low[:-1] + bytes([low[-1] + 1]) if low else b""  # included in the range
        command = wire.ReadTableEntries(self._segments.request_id(), self.name, "", count, (token, low, high))
        try:
            reply = await self._segments.ask(command, wire.TableEntriesRead)
        except SegmentNotFoundError:
            if not self._made_late:
                raise
            return [], token
        decode = self._decoder.decode
        mine = (entry for entry in reply.entries if bytes(entry.key).startswith(low))
        found = [(e.key.decode(), Versioned(decode(e.value), e.version)) for e in mine]
        return found, reply.continuation_token

    async def scan(
        self, prefix: str = "", *, page: int = TABLE_PAGE_MAX_ENTRIES
    ) -> AsyncIterator[tuple[str, Versioned[T]]]:
        """All records whose keys begin with `prefix`, read and decoded `page` at a time; none if the table doesn't
        exist."""
        token, found = b"", None
        while found is None or found:
            try:
                found, token = await self.page(token, page, prefix=prefix)
            except SegmentNotFoundError:
                return
            for item in found:
                yield item
