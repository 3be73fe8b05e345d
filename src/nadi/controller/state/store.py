"""Typed access to the controller's tables: records by key, each with the version it was stored under.

Every change names the version it expects, and ConditionFailedError tells that somebody else was first.
A change may concern several keys of one table and is then all or nothing. Reads go through a bounded
cache; what comes out of it may be old if another controller writes too, which the next conditional
change finds out (and drops from the cache).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from nadi.controller.state.segments import Segments, failure
from nadi.errors import ConditionFailedError, SegmentNotFoundError
from nadi.limits import CONTROLLER_CACHE_RECORDS, TABLE_PAGE_MAX_ENTRIES
from nadi.wire import commands as wire
from nadi.wire.commands import Command
from nadi.wire.fields import NO_VERSION, NOT_EXISTS, TableEntry, TableKey

_frees_room: ContextVar[bool] = ContextVar("frees_room", default=False)


@contextmanager
def freeing_room() -> Iterator[None]:
    """What is put within, by this task and those it starts, is taken on a full disk too: it makes room there."""
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
    """The tables, and the cache they share."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self._cache: OrderedDict[tuple[str, str], Versioned[Any]] = OrderedDict()
        self._cached_keys: dict[str, set[str]] = {}  # by table
        self._changes = 0  # counts changes, so that a read begun before one doesn't fill the cache after it

    def table(self, name: str, kind: Any, *, made_late: bool = False) -> Table[Any]:
        return Table(self, name, kind, made_late=made_late)

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
            self._drop(*oldest)

    def forget(self, table: str, keys: Iterable[str]) -> None:
        self._changes += 1
        for key in keys:
            self._drop(table, key)

    def forget_table(self, table: str) -> None:
        self.forget(table, list(self._cached_keys.get(table, ())))

    def _drop(self, table: str, key: str) -> None:
        if self._cache.pop((table, key), None) is not None:
            keys = self._cached_keys[table]
            keys.discard(key)
            if not keys:
                del self._cached_keys[table]

    @property
    def changes(self) -> int:
        return self._changes


class Table(Generic[T]):
    """One table segment whose values are all of one kind (a struct, or a union of tagged ones).

    made_late: it is made when the first record is put; until then it reads as empty. Else all calls but
    `create`, `drop` and `remove` raise SegmentNotFoundError where the table doesn't exist.
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
        reply, _ = await self._segments.call(command)
        if not isinstance(reply, wire.SegmentCreated | wire.SegmentAlreadyExists | wire.TableEntriesUpdated):
            raise failure(command, reply)

    def _update(self, entries: tuple[TableEntry, ...]) -> Command:
        request_id = self._segments.request_id()
        if _frees_room.get():
            return wire.UpdateTableToFreeRoom(request_id, self.name, "", entries, self._made_late)
        return wire.UpdateTableEntries(request_id, self.name, "", entries)

    async def drop(self, *, must_be_empty: bool = False) -> bool:
        """Delete the table, True also if it is gone already; False if it holds something and must not."""
        command = wire.DeleteTableSegment(self._segments.request_id(), self.name, must_be_empty, "")
        reply, _ = await self._segments.call(command)
        self._store.forget_table(self.name)
        if isinstance(reply, wire.TableSegmentNotEmpty):
            return False
        if not isinstance(reply, wire.SegmentDeleted | wire.NoSuchSegment):
            raise failure(command, reply)
        return True

    async def get(self, key: str, *, fresh: bool = False) -> Versioned[T] | None:
        """The record at `key`, None if there is none."""
        found = None if fresh else self._store.recall(self.name, key)
        return found if found is not None else (await self.get_all([key]))[0]

    async def get_all(self, keys: Sequence[str]) -> list[Versioned[T] | None]:
        changes = self._store.changes
        wanted = tuple(TableKey(key.encode()) for key in keys)
        command = wire.ReadTable(self._segments.request_id(), self.name, "", wanted)
        reply, _ = await self._segments.call(command)
        if self._made_late and isinstance(reply, wire.NoSuchSegment):
            return [None] * len(keys)
        if not isinstance(reply, wire.TableRead):
            raise failure(command, reply)
        assert len(reply.entries) == len(keys), "one entry for each key"
        records: list[Versioned[T] | None] = []
        for key, entry in zip(keys, reply.entries, strict=True):
            if entry.version < 0:
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

    async def put_all(self, changes: Sequence[tuple[str, T, int]]) -> list[Versioned[T]]:
        """Store several records of this table, all or none."""
        entries = tuple(TableEntry(k.encode(), version, self._encode(v)) for k, v, version in changes)
        keys = [key for key, _, _ in changes]
        self._store.forget(self.name, keys)
        command = self._update(entries)
        reply, retried = await self._segments.call(command)
        if self._made_late and isinstance(reply, wire.NoSuchSegment):
            if any(version >= 0 for _, _, version in changes):
                raise ConditionFailedError(f"{self.name} is gone, and {', '.join(keys)} with it")
            await self.create()
            reply, retried = await self._segments.call(command)
        self._store.forget(self.name, keys)
        if isinstance(reply, wire.TableEntriesUpdated):
            stored = [Versioned(v, n) for (_, v, _), n in zip(changes, reply.versions, strict=True)]
        elif isinstance(reply, wire.TableKeyBadVersion | wire.TableKeyDoesNotExist):
            mine = await self._stored_before(entries) if retried else None
            if mine is None:
                raise ConditionFailedError(f"{self.name}: {', '.join(keys)} changed meanwhile")
            stored = [Versioned(v, n) for (_, v, _), n in zip(changes, mine, strict=True)]
        else:
            raise failure(command, reply)
        for key, record in zip(keys, stored, strict=True):
            self._store.remember(self.name, key, record)
        return stored

    async def _stored_before(self, entries: Sequence[TableEntry]) -> list[int] | None:
        """Versions of the entries if an earlier, unanswered try stored exactly them."""
        wanted = tuple(TableKey(entry.key) for entry in entries)
        reply, _ = await self._segments.call(wire.ReadTable(self._segments.request_id(), self.name, "", wanted))
        if not isinstance(reply, wire.TableRead):
            return None
        for mine, theirs in zip(entries, reply.entries, strict=True):
            if theirs.version < 0 or bytes(theirs.value) != mine.value:
                return None
        return [entry.version for entry in reply.entries]

    async def remove(self, keys: Iterable[str]) -> None:
        """Remove records whatever their version; absent ones are fine, so is an absent table."""
        gone = list(keys)
        if not gone:
            return
        self._store.forget(self.name, gone)
        wanted = tuple(TableKey(key.encode(), ANY_VERSION) for key in gone)
        command = wire.RemoveTableKeys(self._segments.request_id(), self.name, "", wanted)
        reply, _ = await self._segments.call(command)
        self._store.forget(self.name, gone)
        if not isinstance(reply, wire.TableKeysRemoved | wire.TableKeyDoesNotExist | wire.NoSuchSegment):
            raise failure(command, reply)

    async def remove_if(self, key: str, version: int) -> bool:
        """Remove a record unless it was changed since it was read; False if it was."""
        self._store.forget(self.name, [key])
        wanted = (TableKey(key.encode(), version),)
        command = wire.RemoveTableKeys(self._segments.request_id(), self.name, "", wanted)
        reply, _ = await self._segments.call(command)
        self._store.forget(self.name, [key])
        if isinstance(reply, wire.TableKeyBadVersion):
            return False
        if not isinstance(reply, wire.TableKeysRemoved | wire.TableKeyDoesNotExist | wire.NoSuchSegment):
            raise failure(command, reply)
        return True

    async def page(
        self, token: bytes = b"", count: int = TABLE_PAGE_MAX_ENTRIES, *, prefix: str = ""
    ) -> tuple[list[tuple[str, Versioned[T]]], bytes]:
        """Up to `count` records after `token` whose keys begin with `prefix`, and the token to go on from; an
        empty page is the end. The order is none in particular, but the same each time."""
        low = prefix.encode()
        high = low[:-1] + bytes([low[-1] + 1]) if low else b""  # included in the range
        command = wire.ReadTableEntries(self._segments.request_id(), self.name, "", count, (token, low, high))
        reply, _ = await self._segments.call(command)
        if self._made_late and isinstance(reply, wire.NoSuchSegment):
            return [], token
        if not isinstance(reply, wire.TableEntriesRead):
            raise failure(command, reply)
        decode = self._decoder.decode
        mine = (entry for entry in reply.entries if bytes(entry.key).startswith(low))
        found = [(e.key.decode(), Versioned(decode(e.value), e.version)) for e in mine]
        return found, reply.continuation_token

    async def scan(self, prefix: str = "") -> AsyncIterator[tuple[str, Versioned[T]]]:
        """All records whose keys begin with `prefix`; none if the table doesn't exist."""
        token = b""
        while True:
            try:
                found, token = await self.page(token, prefix=prefix)
            except SegmentNotFoundError:
                return
            if not found:
                return
            for item in found:
                yield item
