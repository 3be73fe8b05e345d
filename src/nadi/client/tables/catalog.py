"""Records that clients keep in tables: each under a key, changed by compare-and-set among all who have it open.

A `CatalogRecord` is one of them; a `Catalog` has those of one kind in a scope's table, by name: bookmarks, stream
tables, search indexes. A `RecordKind` says how they are encoded, and how messages name them. A record that can't be
read, for it is damaged or of a newer nadi, is an error for whoever asks for it, and hides no other in a list; it can be
deleted.
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
_WRONG = (msgspec.MsgspecError, ValueError, OverflowError, OSError, RecursionError)  # the latter three: of odd times


@dataclass(frozen=True, slots=True)
class Unreadable(Displayed):
    """What is kept under a name, but can't be read. problem: what is wrong with it, and what to do."""

    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[T]):
    """Records of one kind. noun, within: of messages, as in "bookmark home/start", which is within home. remedy: how to
    do without one that can't be read, by its name. missing: the error where there is none. decode: of a name and a
    value; whatever it raises says what is wrong. prefix: of keys, in a table that keeps several kinds; key: of the
    record, where each has a table of its own."""

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
        """ProtocolError if the value isn't such a record."""
        try:
            return self.decode(name, value)
        except _WRONG as error:
            raise ProtocolError(
                f"{self.what(name)} can't be read ({error!s:.300}): it is damaged, or of a newer nadi. Use that one, "
                f"or {self.remedy(shlex.quote(name))}"
            ) from error


class CatalogRecord(Generic[T]):
    """The record of that name. Changes are made one at a time here, and by compare-and-set among all; one that may have
    been made, for its answer was lost, is made again. waits: a change waits for a server that can't be reached; else
    that is an UnavailableError."""

    def __init__(self, table: Table, kind: RecordKind[T], name: str, *, waits: bool = False) -> None:
        self._newest: T | None = None
        self._table, self._kind, self._name, self._waits = table, kind, name, waits
        self._key, self._what = kind.key_of(name), kind.what(name)
        self._version: int | None = None  # of `_newest`; None: not known
        self._lock = asyncio.Lock()

    @property
    def newest(self) -> T:
        """What it was when it was read or changed here last."""
        assert self._newest is not None, "it was read"
        return self._newest

    async def find(self) -> T | None:
        """Return the newest record, None if there is none. ProtocolError: it can't be read."""
        async with self._lock:
            return await self._find()

    async def _find(self) -> T | None:
        held = await value_or_none(self._table, self._key)
        self._version = None  # as long as it can't be read
        self._newest = None if held is None else self._kind.read(self._name, held.value)
        self._version = ABSENT if held is None else held.version
        return self._newest

    async def get(self) -> T:
        """As `find`; the kind's `missing` if there is none."""
        return self._there(await self.find())

    def _there(self, record: T | None) -> T:
        if record is None:
            raise self._kind.missing(self._name)
        return record

    async def create(self, record: T) -> None:
        """Store the first one; AlreadyExistsError if there is one, SegmentNotFoundError if there is no table."""
        try:
            self._version = await self._table.put(self._key, self._kind.encode(record), ABSENT)
        except ConditionFailedError:
            raise AlreadyExistsError(self._kind.noun, f"{self._kind.within}/{self._name}") from None
        self._newest = record

    async def change(self, make: Callable[[T], T | None], is_done: Callable[[T], bool] = lambda record: False) -> T:
        """Store what `make` makes of the newest record, unless that is None; return what is stored then. What `make`
        raises passes, and the kind's `missing`. ContentionError: others were always faster.

        is_done: whether a record has the change, for one that was sent and not answered; without it, what it would do
        again is to be refused by `make`.
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
        """As `change`, for a record that may not be there yet, nor its table: then `make`, which may be a coroutine
        function, gets None."""
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
                made = make(self._newest)
                if isawaitable(made):
                    made = await made
                if made is None:
                    return self._newest
                assert self._version is not None, "it was looked up"
                try:
                    self._version = await self._table.put(self._key, self._kind.encode(made), self._version)
                    self._newest = cast("T", made)
                    return self._newest
                except SegmentNotFoundError:
                    await self._table.create()
                    await tries.lost()
                except ConditionFailedError:
                    await tries.lost()
                except UnavailableError as error:  # it may be stored, but on a full disk
                    if isinstance(error, ClosedError) or (isinstance(error, StorageFullError) and not self._waits):
                        self._version = None
                        raise
                    await (backoff.pause() if self._waits else tries.lost())
                is_unsure = True

    async def replace(self, record: T) -> bool:
        """Store it in place of what was read here last; return False if that was changed meanwhile."""
        assert self._version is not None, "it was read"
        try:
            self._version = await self._table.put(self._key, self._kind.encode(record), self._version)
        except ConditionFailedError:
            return False
        self._newest = record
        return True

    async def delete_read(self) -> bool:
        """Remove it as it was read; return False if it isn't that any more."""
        assert self._version is not None, "it was read"
        try:
            await self._table.remove(self._key, self._version)
        except ConditionFailedError:
            return False
        return True

    async def delete(self) -> bool:
        """Remove it, also one that can't be read, whoever changes it meanwhile; return False if there is none."""
        tries, self._version = Tries(self._what), None
        while (held := await value_or_none(self._table, self._key)) is not None:
            try:
                await self._table.remove(self._key, held.version)
                return True
            except ConditionFailedError:  # changed meanwhile, or gone
                await tries.lost()
        return False


class Catalog(Generic[T]):
    """The records of one kind in a scope's table, by their names. All calls raise as those of `CatalogRecord`."""

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
        """Store the first one of that name, and make the table if it isn't there. ScopeNotFoundError: no such scope."""
        try:
            await self.record(name).create(record)
        except SegmentNotFoundError:
            await self.prepare()
            await self.record(name).create(record)

    async def prepare(self) -> None:
        """Make the table if it isn't there; ScopeNotFoundError if there is no such scope."""
        if not await self._stores.controller.scope_exists(self._scope):
            raise ScopeNotFoundError(self._scope)
        await self._table.create()

    async def put_all(self, records: Mapping[str, T]) -> None:
        """Store these in place of what has their names, all or none; so many as fit a request."""
        encoded = {self.kind.key_of(name): self.kind.encode(record) for name, record in records.items()}
        entries = tuple(WireTableEntry(key, ANY_VERSION, value) for key, value in encoded.items())
        asked = wire.UpdateTableEntries(0, self._table.segment, "", entries)
        await self._stores.ask(asked, wire.TableEntriesUpdated)

    async def change(self, name: str, make: Callable[[T], T | None]) -> T:
        return await self.record(name).change(make)

    async def delete(self, name: str) -> bool:
        return await self.record(name).delete()

    async def delete_all(self, names: Iterable[str]) -> None:
        """Remove these, as far as they are there."""
        await _remove(self._stores, self._table, [self.kind.key_of(name) for name in names])

    async def all(self) -> tuple[dict[str, T], list[Unreadable]]:
        """All records, by name and in order of names; and those that can't be read."""
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
    """Those of the records that are there, by name; and those that can't be read."""
    there: dict[str, T] = {}
    unreadable = []
    for name, record in records.items():
        try:
            if (newest := await record.find()) is not None:
                there[name] = newest
        except ProtocolError as error:
            unreadable.append(Unreadable(name, str(error)))
    return there, unreadable


def named(record: T, field: str, name: str) -> T:
    """The record, if its field has the name that it is kept under; ValueError if not."""
    if (says := getattr(record, field)) != name:
        raise ValueError(f"its {field} is {says!r:.60}: who wrote that?")
    return record


async def entries_of(stores: SegmentStores, scope: str, table: Table, prefix: bytes) -> AsyncIterator[WireTableEntry]:
    """The table's entries whose keys begin so, in order and page by page, their keys without that; none of a table that
    was never made. ScopeNotFoundError: there is no such scope."""
    token = b""
    while True:
        asked = wire.ReadTableEntries(0, table.segment, "", TABLE_PAGE_MAX_ENTRIES, (token, prefix, prefix + b"\xff"))
        try:
            page = await stores.ask(asked, wire.TableEntriesRead)
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
    """Remove the entries whose keys begin so."""
    await _remove(stores, table, [prefix + entry.key async for entry in entries_of(stores, scope, table, prefix)])


async def _remove(stores: SegmentStores, table: Table, keys: Sequence[bytes]) -> None:
    for first in range(0, len(keys), TABLE_PAGE_MAX_ENTRIES):
        some = tuple(WireTableKey(key, ANY_VERSION) for key in keys[first : first + TABLE_PAGE_MAX_ENTRIES])
        await stores.ask(wire.RemoveTableKeys(0, table.segment, "", some), wire.TableKeysRemoved)
