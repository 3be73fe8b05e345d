"""Named records that clients store in tables and change by compare-and-set.

A `CatalogRecord` is one record; a `Catalog` is a scope's table of records of one kind, such as bookmarks, stream tables
and search indexes. A `RecordKind` defines their encoding and their names in messages. A record that is damaged or
written by a newer version raises an error when it is read, but doesn't hide others in a list, and can be deleted.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

import msgspec

from nadi.backoff import Backoff, Tries
from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.table import ABSENT, ANY_VERSION, Table, value_or_none
from nadi.display import Displayed
from nadi.errors import (
    AlreadyExistsError,
    ClosedError,
    ConditionFailedError,
    NotFoundError,
    ProtocolError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StorageFullError,
    UnavailableError,
)
from nadi.limits import TABLE_PAGE_MAX_ENTRIES
from nadi.wire import commands as wire
from nadi.wire.fields import WireTableEntry, WireTableKey

T = TypeVar("T")
_WRONG = (msgspec.MsgspecError, ValueError, OverflowError, OSError, RecursionError)  # the last three: invalid times


@dataclass(frozen=True, slots=True)
class Unreadable(Displayed):
    """A stored record that can't be read. problem: the reason and the remedy."""

    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[T]):
    """A kind of records.

    noun, within: for messages, as in "bookmark home/start", which is within home. remedy: returns advice for an
    unreadable record, given its name. missing: returns the error for an unknown name. decode: parses a value, given the
    name; its errors describe the problem. prefix: of keys, in a table with several kinds; key: the only key, in a table
    with one record.
    """

    noun: str
    within: str
    remedy: Callable[[str], str]
    missing: Callable[[str], NotFoundError]
    decode: Callable[[str, bytes], T]
    encode: Callable[[Any], bytes] = msgspec.json.encode
    prefix: str = ""
    key: bytes = b""

    def what(self, name: str) -> str:
        return f"{self.noun} {self.within}/{name}"

    def key_of(self, name: str) -> bytes:
        return self.key or (self.prefix + name).encode()

    def read(self, name: str, value: bytes) -> T:
        """Decode a value; ProtocolError."""
        try:
            return self.decode(name, value)
        except _WRONG as error:
            raise ProtocolError(
                f"{self.what(name)} can't be read ({error!s:.300}): it is damaged, or written by a newer nadi. Use "
                f"that version, or {self.remedy(shlex.quote(name))}"
            ) from error


class CatalogRecord(Generic[T]):
    """A record with a name.

    Changes are serialized in this object, and compare-and-set against other clients; a change whose reply was lost is
    repeated. waits: changes wait for an unreachable server; otherwise they raise UnavailableError.
    """

    def __init__(self, table: Table, kind: RecordKind[T], name: str, *, waits: bool = False) -> None:
        self._newest: T | None = None
        self._table, self._kind, self._name, self._waits = table, kind, name, waits
        self._key, self._what = kind.key_of(name), kind.what(name)
        self._version: int | None = None  # of `_newest`; None if unknown
        self._lock = asyncio.Lock()

    @property
    def newest(self) -> T:
        """The record as this object last read or changed it."""
        assert self._newest is not None, "it was read"
        return self._newest

    async def find(self) -> T | None:
        """Return the stored record, or None; ProtocolError if it can't be read."""
        async with self._lock:
            return await self._find()

    async def _find(self) -> T | None:
        stored = await value_or_none(self._table, self._key)
        self._version = None  # in case the record can't be read
        self._newest = None if stored is None else self._kind.read(self._name, stored.value)
        self._version = ABSENT if stored is None else stored.version
        return self._newest

    async def get(self) -> T:
        """Return the stored record; the kind's `missing` error if it doesn't exist."""
        return self._there(await self.find())

    def _there(self, record: T | None) -> T:
        if record is None:
            raise self._kind.missing(self._name)
        return record

    async def create(self, record: T) -> None:
        """Store a new record; AlreadyExistsError, or SegmentNotFoundError if the table doesn't exist."""
        try:
            self._version = await self._table.put(self._key, self._kind.encode(record), ABSENT)
        except ConditionFailedError:
            raise AlreadyExistsError(self._kind.noun, f"{self._kind.within}/{self._name}") from None
        self._newest = record

    async def change(self, make: Callable[[T], T | None], is_done: Callable[[T], bool] = lambda record: False) -> T:
        """Replace the record by `make`'s result, unless that is None; return the record stored in the end.

        Raises errors of `make`, the kind's `missing`, and ContentionError if each attempt lost to another change.
        is_done: returns whether a record contains the change, for an attempt whose reply was lost; without it, `make`
        must reject a repeated change.
        """
        changed = await self.put(
            lambda record: make(self._there(record)), lambda record: record is not None and is_done(record)
        )
        return self._there(changed)

    async def put(
        self,
        make: Callable[[T | None], T | Awaitable[T | None] | None],
        is_done: Callable[[T | None], bool] = lambda record: False,
    ) -> T | None:
        """Call `change` for a record or table that may not exist: `make`, which may be a coroutine function, then gets
        None."""
        tries, backoff, is_unsure = Tries(self._what), Backoff(), False
        async with self._lock:
            while True:
                try:
                    if self._version is None or is_unsure:
                        await self._find()
                except UnavailableError as error:
                    self._version = None
                    if not self._waits or isinstance(error, ClosedError):
                        raise
                    await backoff.pause()
                    continue
                if is_unsure and is_done(self._newest):
                    return self._newest
                changed = make(self._newest)
                if isawaitable(changed):
                    changed = await changed
                if changed is None:
                    return self._newest
                assert self._version is not None, "call find first"
                try:
                    self._version = await self._table.put(self._key, self._kind.encode(changed), self._version)
                    self._newest = cast("T", changed)
                    return self._newest
                except SegmentNotFoundError:
                    await self._table.create()
                    await tries.lost()
                except ConditionFailedError:
                    await tries.lost()
                except UnavailableError as error:  # the change may be stored, except on a full disk
                    if isinstance(error, ClosedError) or (isinstance(error, StorageFullError) and not self._waits):
                        self._version = None
                        raise
                    await (backoff.pause() if self._waits else tries.lost())
                is_unsure = True

    async def replace(self, record: T) -> bool:
        """Store it if the record hasn't changed since it was read; return False otherwise."""
        assert self._version is not None, "call find first"
        try:
            self._version = await self._table.put(self._key, self._kind.encode(record), self._version)
        except ConditionFailedError:
            return False
        self._newest = record
        return True

    async def delete_read(self) -> bool:
        """Delete the record if it hasn't changed since it was read; return False otherwise."""
        assert self._version is not None, "call find first"
        try:
            await self._table.remove(self._key, self._version)
        except ConditionFailedError:
            return False
        return True

    async def delete(self) -> bool:
        """Delete the record, even if it is unreadable or changes meanwhile; return False if it doesn't exist."""
        tries, self._version = Tries(self._what), None
        while (stored := await value_or_none(self._table, self._key)) is not None:
            try:
                await self._table.remove(self._key, stored.version)
                return True
            except ConditionFailedError:  # changed or deleted meanwhile
                await tries.lost()
        return False


class Catalog(Generic[T]):
    """The records of one kind in a scope's table, by name; errors as in `CatalogRecord`."""

    def __init__(self, stores: SegmentStores, scope: str, table: str, kind: RecordKind[T]) -> None:
        self._stores, self._scope, self.kind = stores, scope, kind
        self._table: Table = Table(stores, scope, table)

    def record(self, name: str, *, waits: bool = False) -> CatalogRecord[T]:
        return CatalogRecord(self._table, self.kind, name, waits=waits)

    async def find(self, name: str) -> T | None:
        return await self.record(name).find()

    async def get(self, name: str) -> T:
        return await self.record(name).get()

    async def create(self, name: str, record: T) -> None:
        """Store a new record, creating the table if necessary; AlreadyExistsError, ScopeNotFoundError."""
        try:
            await self.record(name).create(record)
        except SegmentNotFoundError:
            await self.prepare()
            await self.record(name).create(record)

    async def prepare(self) -> None:
        """Create the table if necessary; ScopeNotFoundError."""
        if not await self._stores.controller.scope_exists(self._scope):
            raise ScopeNotFoundError(self._scope)
        await self._table.create()

    async def put_all(self, records: Mapping[str, T]) -> None:
        """Store these records atomically, replacing those of the same names; they must fit one request."""
        encoded = {self.kind.key_of(name): self.kind.encode(record) for name, record in records.items()}
        entries = tuple(WireTableEntry(key, ANY_VERSION, value) for key, value in encoded.items())
        request = wire.UpdateTableEntries(0, self._table.segment, "", entries)
        await self._stores.ask(request, wire.TableEntriesUpdated)

    async def change(self, name: str, make: Callable[[T], T | None]) -> T:
        return await self.record(name).change(make)

    async def delete(self, name: str) -> bool:
        return await self.record(name).delete()

    async def delete_all(self, names: Iterable[str]) -> None:
        """Delete the records with these names, if they exist."""
        await remove_keys(self._stores, self._table, [self.kind.key_of(name) for name in names])

    async def all(self) -> tuple[dict[str, T], list[Unreadable]]:
        """Return all records by name, sorted by name, and the unreadable ones."""
        records: dict[str, T] = {}
        unreadable = []
        async for entry in entries_of(self._stores, self._scope, self._table, self.kind.prefix.encode()):
            name = entry.key.decode(errors="replace")
            try:
                records[name] = self.kind.read(name, entry.value)
            except ProtocolError as error:
                unreadable.append(Unreadable(name, str(error)))
        return records, unreadable


async def readable(records: Mapping[str, CatalogRecord[T]]) -> tuple[dict[str, T], list[Unreadable]]:
    """Return the existing records by name, and the unreadable ones."""
    stored: dict[str, T] = {}
    unreadable = []
    for name, record in records.items():
        try:
            if (newest := await record.find()) is not None:
                stored[name] = newest
        except ProtocolError as error:
            unreadable.append(Unreadable(name, str(error)))
    return stored, unreadable


def named(record: T, field: str, name: str) -> T:
    """Return the record if its field matches the name it is stored under; ValueError otherwise."""
    if (stored := getattr(record, field)) != name:
        raise ValueError(f"its {field} is {stored!r:.60}")
    return record


async def entries_of(stores: SegmentStores, scope: str, table: Table, prefix: bytes) -> AsyncIterator[WireTableEntry]:
    """Yield the entries of a table whose keys start with `prefix`, in order, with the prefix removed.

    Yields nothing if the table doesn't exist; ScopeNotFoundError.
    """
    token = b""
    while True:
        request = wire.ReadTableEntries(0, table.segment, "", TABLE_PAGE_MAX_ENTRIES, (token, prefix, prefix + b"\xff"))
        try:
            page = await stores.ask(request, wire.TableEntriesRead)
        except SegmentNotFoundError:
            if not await stores.controller.scope_exists(scope):
                raise ScopeNotFoundError(scope) from None
            return
        if not page.entries:
            return
        for entry in page.entries:
            yield WireTableEntry(bytes(entry.key[len(prefix) :]), entry.version, bytes(entry.value))
        token = page.continuation_token


async def remove_all(stores: SegmentStores, scope: str, table: Table, prefix: bytes) -> None:
    """Delete the entries whose keys start with `prefix`."""
    await remove_keys(stores, table, [prefix + entry.key async for entry in entries_of(stores, scope, table, prefix)])


async def remove_keys(stores: SegmentStores, table: Table, keys: Sequence[bytes]) -> None:
    for first in range(0, len(keys), TABLE_PAGE_MAX_ENTRIES):
        batch = tuple(WireTableKey(key, ANY_VERSION) for key in keys[first : first + TABLE_PAGE_MAX_ENTRIES])
        await stores.ask(wire.RemoveTableKeys(0, table.segment, "", batch), wire.TableKeysRemoved)
