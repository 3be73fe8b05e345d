"""Key-value tables as in Pravega's Java client: fixed-length keys, versions, conditional changes, ranges.

A key is a primary and a secondary key, each with the table's fixed length. The primary key's hash determines the
partition, so all entries of one primary key are adjacent, ordered by secondary key, and can be changed atomically. A
version consists of the partition and the server's number of the change.

A conditional change whose reply was lost isn't repeated because it may have taken effect; it raises an error.

For a range, the partitions are read concurrently and merged. Each returns its keys in order. Partitions with an empty
buffer are read together; entries up to the smallest of the buffers' last keys are complete, and are returned.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from nadi.client.control.arguments import checked
from nadi.client.control.policy import KeyValueTableConfiguration
from nadi.client.segments.stores import SegmentRequest, SegmentStores
from nadi.client.tables.table import table_bytes
from nadi.errors import (
    ConditionFailedError,
    InvalidArgumentError,
    KeyValueTableRecreatedError,
    NadiError,
    SegmentNotFoundError,
)
from nadi.limits import (
    LIST_MAX_ENTRIES,
    TABLE_BATCH_MAX_BYTES,
    TABLE_ITERATOR_PAGE,
    TABLE_PAGE_MAX_ENTRIES,
    TABLE_READ_KEYS,
    TABLE_VALUE_MAX_BYTES,
)
from nadi.model.keyspace import primary_key_position
from nadi.model.segments import SegmentRange
from nadi.naming import TABLE_SUFFIX, segment_name
from nadi.wire import commands as wire
from nadi.wire import fields
from nadi.wire.fields import NO_VERSION, NOT_EXISTS

Page = list[tuple[int, fields.WireTableEntry]]  # with the id of each entry's segment


@dataclass(slots=True)
class _Partition:
    """A cursor over one partition's keys from `low` on, with a page buffered."""

    table: KeyValueTable
    segment_id: int
    low: bytes
    high: bytes
    page_size: int
    timeout_s: float | None
    keys_only: bool
    buffered: list[fields.WireTableEntry] = field(default_factory=list)
    is_read: bool = False  # to the range's end

    async def fill(self) -> None:
        request = (0, self.table._names[self.segment_id], "", self.page_size, (b"", self.low, self.high))
        if self.keys_only:
            keys = (await self.table._ask(wire.ReadTableKeys(*request), wire.TableKeysRead, self.timeout_s)).keys
            self.buffered = [fields.WireTableEntry(key, version, b"") for key, version in keys]
        else:
            page = await self.table._ask(wire.ReadTableEntries(*request), wire.TableEntriesRead, self.timeout_s)
            self.buffered = list(page.entries)
        following = _next_key(self.buffered[-1].key) if self.buffered else None
        self.is_read = following is None or following > self.high
        self.low = following or self.low

    def take(self, bound: bytes) -> list[fields.WireTableEntry]:
        """Remove and return the buffered entries up to the key `bound`."""
        count = bisect_right(self.buffered, bound, key=lambda entry: entry.key)
        taken, self.buffered = self.buffered[:count], self.buffered[count:]
        return taken


def _next_key(key: bytes) -> bytes | None:
    """Return the next key of the same length, or None."""
    number = int.from_bytes(key, "big") + 1
    return number.to_bytes(len(key), "big") if number < 1 << (8 * len(key)) else None


_Answer = TypeVar("_Answer", bound=wire.Command)
_UPDATE_MAX_BYTES = min(TABLE_BATCH_MAX_BYTES, 15 << 20)  # fits one frame, including lengths


@dataclass(frozen=True, slots=True, order=True)
class TableKey:
    """A key; `secondary` is empty in tables without secondary keys."""

    primary: bytes
    secondary: bytes = b""


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an entry, which differs after each change. Its text format is Pravega's.

    >>> Version.from_text(str(Version(3, 17))) == Version(3, 17)
    True
    """

    segment_id: int
    number: int

    def __str__(self) -> str:
        return f"{self.segment_id}:{self.number}"

    @classmethod
    def from_text(cls, text: str) -> Version:
        """Parse the output of `str`; InvalidArgumentError."""
        segment_id, _, number = text.partition(":")
        try:
            return cls(int(segment_id), int(number))
        except ValueError:
            raise InvalidArgumentError(f"{text!r} is not a version: use str() of a Version") from None


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The stored value of a key, with its version."""

    key: TableKey
    value: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class Insert:
    """A change that stores the value if the key has none."""

    key: TableKey | bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """A change that stores the value; with `version`, only if the key still has that version."""

    key: TableKey | bytes
    value: bytes
    version: Version | None = None


@dataclass(frozen=True, slots=True)
class Remove:
    """A change that removes the key; with `version`, only if it still has that version."""

    key: TableKey | bytes
    version: Version | None = None


Modification = Insert | Put | Remove


@checked()
class KeyValueTable:
    """A key-value table, opened by `StreamManager.key_value_table`; keys may be bytes without secondary keys.

    timeout: seconds for each call, and for each page of a range; None means the client's. Failed conditions raise
    ConditionFailedError.
    """

    def __init__(
        self,
        stores: SegmentStores,
        scope: str,
        name: str,
        config: KeyValueTableConfiguration,
        partitions: Sequence[SegmentRange],
    ) -> None:
        self.scope, self.name, self._configuration = scope, name, config
        self._stores = stores
        self._partitions = list(partitions)
        self._highs = [piece.high for piece in partitions]
        self._names = {p.segment_id: segment_name(scope, name + TABLE_SUFFIX, p.segment_id) for p in partitions}

    @property
    def configuration(self) -> KeyValueTableConfiguration:
        """The configuration with which the table was created."""
        return self._configuration

    # --- one key ----------------------------------------------------------------------------

    async def get(self, key: TableKey | bytes, timeout: float | None = None) -> TableEntry | None:
        """Return the key's entry, or None."""
        return (await self.get_all([key], timeout))[0]

    async def insert(self, key: TableKey | bytes, value: bytes, timeout: float | None = None) -> Version:
        """Store the value if the key has none."""
        return (await self._put([Insert(key, value)], timeout))[0]

    async def put(
        self, key: TableKey | bytes, value: bytes, version: Version | None = None, timeout: float | None = None
    ) -> Version:
        """Store the value; with `version`, only if the key still has that version."""
        return (await self._put([Put(key, value, version)], timeout))[0]

    async def remove(self, key: TableKey | bytes, version: Version | None = None, timeout: float | None = None) -> None:
        """Remove the key; with `version`, only if it still has that version."""
        await self._remove([Remove(key, version)], timeout)

    async def exists(self, key: TableKey | bytes, timeout: float | None = None) -> bool:
        """Return whether the key has a value, without reading it."""
        table_key = self._key(key)
        raw, segment_id = table_key.primary + table_key.secondary, self._partition(table_key.primary)
        request = wire.ReadTableKeys(0, self._names[segment_id], "", 1, (b"", raw, raw))
        return bool((await self._ask(request, wire.TableKeysRead, timeout)).keys)

    # --- several keys -----------------------------------------------------------------------

    async def get_all(self, keys: Iterable[TableKey | bytes], timeout: float | None = None) -> list[TableEntry | None]:
        """Return the entry or None for each key, in order; not a snapshot if several partitions, or more than a
        thousand keys, are involved."""
        table_keys = [self._key(key) for key in keys]
        indexes_by_segment: defaultdict[int, list[int]] = defaultdict(list)
        for index, key in enumerate(table_keys):
            indexes_by_segment[self._partition(key.primary)].append(index)
        entries: list[TableEntry | None] = [None] * len(table_keys)

        async def read(segment_id: int, indexes: list[int]) -> None:
            keys = tuple(fields.WireTableKey(table_keys[i].primary + table_keys[i].secondary) for i in indexes)
            reply = await self._ask(wire.ReadTable(0, self._names[segment_id], "", keys), wire.TableRead, timeout)
            for index, entry in zip(indexes, reply.entries, strict=True):
                if entry.version != NOT_EXISTS:
                    entries[index] = TableEntry(table_keys[index], entry.value, Version(segment_id, entry.version))

        requests = [
            read(segment_id, indexes[begin : begin + TABLE_READ_KEYS])
            for segment_id, indexes in indexes_by_segment.items()
            for begin in range(0, len(indexes), TABLE_READ_KEYS)
        ]
        await asyncio.gather(*requests)
        return entries

    async def update(self, modifications: Iterable[Modification], timeout: float | None = None) -> list[Version | None]:
        """Apply these changes atomically; return the new versions, None for removals.

        All must have the same primary key, and either all or none must be removals: Pravega's tables change entries and
        remove keys by different requests.
        """
        every = list(modifications)
        removals = [each for each in every if isinstance(each, Remove)]
        puts = [each for each in every if not isinstance(each, Remove)]
        if removals and puts:
            raise InvalidArgumentError(
                "an update can't combine removals with other changes: make two calls, or put a value that means removed"
            )
        if removals:
            await self._remove(removals, timeout)
            return [None] * len(removals)
        return list(await self._put(puts, timeout)) if puts else []

    # --- ranges -----------------------------------------------------------------------------

    async def pages(
        self,
        *,
        primary: bytes | None = None,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes = b"",
        page_size: int = TABLE_ITERATOR_PAGE,
        timeout: float | None = None,
    ) -> AsyncGenerator[list[TableEntry], None]:
        """Iterate over entries in key order, in lists of at most `page_size`.

        Without `primary`, `prefix`, `start` and `end` refer to primary keys; with it, to that key's secondary keys.
        Both ends are inclusive, and a shorter one means all keys that start with it. Pages show entries as they are
        when the page is read.
        """
        low, high = self._range(primary, prefix, start, end)
        async with aclosing(self._pages(low, high, page_size, timeout, keys_only=False)) as pages:
            async for page in pages:
                yield [TableEntry(self._split(e.key), e.value, Version(s, e.version)) for s, e in page]

    async def key_pages(
        self,
        *,
        primary: bytes | None = None,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes = b"",
        page_size: int = TABLE_ITERATOR_PAGE,
        timeout: float | None = None,
    ) -> AsyncGenerator[list[TableKey], None]:
        """Iterate like `pages`, but over keys only."""
        low, high = self._range(primary, prefix, start, end)
        async with aclosing(self._pages(low, high, page_size, timeout, keys_only=True)) as pages:
            async for page in pages:
                yield [self._split(entry.key) for _, entry in page]

    async def entries(
        self,
        *,
        primary: bytes | None = None,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes = b"",
        timeout: float | None = None,
    ) -> AsyncGenerator[TableEntry, None]:
        """Iterate like `pages`, but one by one."""
        async for page in self.pages(primary=primary, prefix=prefix, start=start, end=end, timeout=timeout):
            for entry in page:
                yield entry

    async def keys(
        self,
        *,
        primary: bytes | None = None,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes = b"",
        timeout: float | None = None,
    ) -> AsyncGenerator[TableKey, None]:
        """Iterate like `key_pages`, but one by one."""
        async for page in self.key_pages(primary=primary, prefix=prefix, start=start, end=end, timeout=timeout):
            for key in page:
                yield key

    async def entry_count(self, timeout: float | None = None) -> int:
        """Return the number of entries in all partitions."""

        async def count(segment: str) -> int:
            request = wire.GetTableSegmentInfo(0, segment, "")
            return (await self._ask(request, wire.TableSegmentInfo, timeout)).entry_count

        return sum(await asyncio.gather(*map(count, self._names.values())))

    # --- inside -----------------------------------------------------------------------------

    async def _ask(
        self, request: SegmentRequest, answer: type[_Answer], timeout: float | None, *, repeat: bool = True
    ) -> _Answer:
        try:
            return await self._stores.ask(request, answer, timeout, repeat=repeat)
        except SegmentNotFoundError:
            raise await self._missing_partition() from None

    async def _missing_partition(self) -> NadiError:
        """Return the error for a missing partition: partitions are deleted only with their table."""
        try:
            await self._stores.controller.key_value_table_configuration(self.scope, self.name)
        except NadiError as error:
            return error
        return KeyValueTableRecreatedError(self.scope, self.name)

    def _key(self, key: TableKey | bytes) -> TableKey:
        table_key = key if isinstance(key, TableKey) else TableKey(table_bytes(key, "key"))
        table_key = TableKey(table_bytes(table_key.primary, "key"), table_bytes(table_key.secondary, "key"))
        config = self.configuration
        if (len(table_key.primary), len(table_key.secondary)) != (config.primary_key_bytes, config.secondary_key_bytes):
            expected, given = f"{config.primary_key_bytes}", f"{len(table_key.primary)}"
            if config.secondary_key_bytes or table_key.secondary:
                expected += f" + {config.secondary_key_bytes}"
                given += f" + {len(table_key.secondary)}"
            raise InvalidArgumentError(f"keys of {self.scope}/{self.name} have {expected} bytes, not {given}")
        return table_key

    def _split(self, raw: bytes) -> TableKey:
        return TableKey(raw[: self.configuration.primary_key_bytes], raw[self.configuration.primary_key_bytes :])

    def _partition(self, primary: bytes) -> int:
        return self._partitions[bisect_left(self._highs, primary_key_position(primary))].segment_id

    def _locate(self, modifications: Sequence[Modification]) -> tuple[int, list[bytes]]:
        """Return the common partition of these changes, and their keys as stored."""
        keys = [self._key(each.key) for each in modifications]
        if len(keys) > LIST_MAX_ENTRIES:
            raise InvalidArgumentError(f"an update can change at most {LIST_MAX_ENTRIES:,} entries: make several")
        if len({key.primary for key in keys}) > 1:
            raise InvalidArgumentError("an update can change entries of one primary key only: make a call for each")
        return self._partition(keys[0].primary), [key.primary + key.secondary for key in keys]

    async def _put(self, puts: Sequence[Insert | Put], timeout: float | None) -> list[Version]:
        segment_id, keys = self._locate(puts)
        entries = []
        for key, each in zip(keys, puts, strict=True):
            value = table_bytes(each.value, "value")
            if len(value) > TABLE_VALUE_MAX_BYTES:
                raise InvalidArgumentError(
                    f"a table value can have at most {TABLE_VALUE_MAX_BYTES:,} bytes, not {len(value):,}"
                )
            expected = NOT_EXISTS if isinstance(each, Insert) else self._expected(segment_id, each.version)
            entries.append(fields.WireTableEntry(key, expected, value))
        if sum(len(key) + len(value) for key, _, value in entries) > _UPDATE_MAX_BYTES:
            raise InvalidArgumentError(f"an update can have at most {_UPDATE_MAX_BYTES:,} bytes of keys and values")
        repeat = all(entry.version == NO_VERSION for entry in entries)
        update = wire.UpdateTableEntries(0, self._names[segment_id], "", tuple(entries))
        reply = await self._ask(update, wire.TableEntriesUpdated, timeout, repeat=repeat)
        return [Version(segment_id, number) for number in reply.versions]

    async def _remove(self, removals: Sequence[Remove], timeout: float | None) -> None:
        segment_id, raw = self._locate(removals)
        keys = tuple(
            fields.WireTableKey(key, self._expected(segment_id, each.version))
            for key, each in zip(raw, removals, strict=True)
        )
        repeat = all(key.version == NO_VERSION for key in keys)
        removal = wire.RemoveTableKeys(0, self._names[segment_id], "", keys)
        await self._ask(removal, wire.TableKeysRemoved, timeout, repeat=repeat)

    def _expected(self, segment_id: int, version: Version | None) -> int:
        if version is None:
            return NO_VERSION
        if version.segment_id != segment_id:
            raise ConditionFailedError(f"version {version} belongs to another partition than the key")
        return version.number

    def _range(self, primary: bytes | None, prefix: bytes, start: bytes, end: bytes) -> tuple[bytes, bytes]:
        config = self.configuration
        length = config.primary_key_bytes
        head = b""
        if primary is not None:
            self._key(TableKey(primary, bytes(config.secondary_key_bytes)))
            head, length = primary, config.secondary_key_bytes
        prefix, start, end = (table_bytes(bound, "key") for bound in (prefix, start, end))
        for bound in (prefix, start, end):
            if len(bound) > length:
                raise InvalidArgumentError(f"{bound!r} is longer than the table's keys, which have {length} bytes")
        key_bytes = config.primary_key_bytes + config.secondary_key_bytes
        low = max((head + prefix).ljust(key_bytes, b"\x00"), (head + start).ljust(key_bytes, b"\x00"))
        high = (head + prefix).ljust(key_bytes, b"\xff")
        if end:
            high = min(high, (head + end).ljust(key_bytes, b"\xff"))
        return low, high

    async def _pages(
        self, low: bytes, high: bytes, page_size: int, timeout: float | None, *, keys_only: bool
    ) -> AsyncGenerator[Page, None]:
        """Yield the entries between two keys in lists of `page_size`, the last shorter; values are empty if
        `keys_only`."""
        if not 1 <= page_size <= TABLE_PAGE_MAX_ENTRIES:
            raise InvalidArgumentError(f"page_size must be 1 to {TABLE_PAGE_MAX_ENTRIES:,}, not {page_size}")
        if low > high:
            return
        primary = self.configuration.primary_key_bytes
        segments = [self._partition(low[:primary])] if low[:primary] == high[:primary] else [*self._names]
        inputs = [_Partition(self, number, low, high, page_size, timeout, keys_only) for number in segments]
        ready: Page = []
        while True:
            await asyncio.gather(*(source.fill() for source in inputs if not source.buffered and not source.is_read))
            inputs = [source for source in inputs if source.buffered]
            if not inputs:
                break
            bound = min((source.buffered[-1].key for source in inputs if not source.is_read), default=high)
            fresh = [(source.segment_id, entry) for source in inputs for entry in source.take(bound)]
            ready += sorted(fresh, key=lambda pair: pair[1].key)
            while len(ready) >= page_size:
                yield ready[:page_size]
                ready = ready[page_size:]
        if ready:
            yield ready
