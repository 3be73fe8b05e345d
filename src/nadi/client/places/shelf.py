"""The records of bookmarks and named slices: one table of their scope keeps both.

The names of bookmarks are apart from those of slices. Each change is conditional on what was read, so of two who make
the same name one is refused, and tags given by two at once are both kept.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime

import msgspec

from nadi.client.control.policy import checked_tags
from nadi.client.places.moments import HEAD, TAIL
from nadi.client.reading.reader import check_cut, segment_ranges
from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.table import ABSENT, Table, TableValue
from nadi.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    ScopeNotFoundError,
    SegmentNotFoundError,
)
from nadi.limits import BOOKMARK_MAX_TAGS, BOOKMARK_NOTE_MAX_CHARS, TABLE_PAGE_MAX_ENTRIES, TAG_MAX_CHARS
from nadi.model.streamcut import StreamCut
from nadi.naming import BOOKMARKS_TABLE, check_name
from nadi.wire import commands as wire

_TRIES = 20  # of a change that meets another one of the same record
RESERVED = (HEAD, TAIL)


class Stored(msgspec.Struct, frozen=True):
    """The JSON of a bookmark (one cut) or a slice (two)."""

    stream: str
    cuts: list[str]
    made_ms: int
    note: str = ""
    tags: list[str] = []


class Shelf:
    """The records of one kind in a scope's table."""

    def __init__(self, stores: SegmentStores, scope: str, kind: str, missing: Callable[[str, str], NotFoundError]):
        self._stores, self._scope, self._kind, self._missing = stores, scope, kind, missing
        self._table: Table = Table(stores, scope, BOOKMARKS_TABLE)

    async def add(self, name: str, cuts: Iterable[StreamCut], note: str, tags: Iterable[str]) -> Stored:
        check_name(self._kind, name)
        if name in RESERVED:
            raise InvalidArgumentError(f"{name!r} means the stream's own {name}: give the {self._kind} another name")
        given = list(cuts)
        stream = given[0].stream
        for cut in given:
            check_cut(cut, self._scope, stream)
            await segment_ranges(self._stores, self._scope, stream, cut)
        stored = Stored(stream, [cut.as_text() for cut in given], time.time_ns() // 1_000_000, note, _tags(tags))
        _check_note(note)
        await self._put_new(name, stored)
        return stored

    async def _put_new(self, name: str, stored: Stored) -> None:
        try:
            await self._put(name, stored, ABSENT)
        except SegmentNotFoundError:
            if not await self._stores.controller.scope_exists(self._scope):
                raise ScopeNotFoundError(self._scope) from None
            await self._table.create()
            await self._put_new(name, stored)
        except ConditionFailedError:
            raise AlreadyExistsError(self._kind, f"{self._scope}/{name}") from None

    async def get(self, name: str) -> Stored:
        return msgspec.json.decode((await self._held(name)).value, type=Stored)

    async def change(self, name: str, change: Callable[[Stored], Stored]) -> Stored:
        """Store what `change` makes of the record, with nothing in between."""
        for _ in range(_TRIES):
            held = await self._held(name)
            changed = change(msgspec.json.decode(held.value, type=Stored))
            try:
                await self._put(name, changed, held.version)
            except ConditionFailedError:
                continue
            return changed
        raise self._contended(name)

    def _contended(self, name: str) -> ConflictError:
        return ConflictError(f"{self._kind} {self._scope}/{name} was changed by others {_TRIES} times: try again later")

    async def rename(self, name: str, new_name: str) -> Stored:
        """Two steps: for a moment, and after a crash between them, it has both names."""
        check_name(self._kind, new_name)
        if new_name in RESERVED:
            raise InvalidArgumentError(f"{new_name!r} means the stream's own {new_name}: choose another name")
        held = await self._held(name)
        stored = msgspec.json.decode(held.value, type=Stored)
        await self._put_new(new_name, stored)
        try:
            await self._table.remove(self._key(name), held.version)
        except ConditionFailedError:
            raise ConflictError(
                f"{self._kind} {self._scope}/{name} was changed meanwhile: it has both names now; delete one"
            ) from None
        return stored

    async def remove(self, name: str) -> bool:
        """False if there was none."""
        for _ in range(_TRIES):
            try:
                held = await self._held(name)
                await self._table.remove(self._key(name), held.version)
            except ConditionFailedError:
                continue  # changed meanwhile, or gone
            except NotFoundError:
                return False
            return True
        raise self._contended(name)

    async def all(self, stream: str | None, tag: str | None) -> list[tuple[str, Stored]]:
        """(name, record) in order of names."""
        found = []
        async for name, raw in self._entries():
            stored = msgspec.json.decode(raw, type=Stored)
            if stream in (None, stored.stream) and (tag is None or tag in stored.tags):
                found.append((name, stored))
        return found

    async def _entries(self) -> AsyncIterator[tuple[str, bytes]]:
        low = self._key("")
        high, token = low + b"\xff", b""
        while True:
            try:
                page = await self._stores.call(
                    self._table.segment,
                    wire.ReadTableEntries,
                    segment=self._table.segment,
                    suggested_count=TABLE_PAGE_MAX_ENTRIES,
                    range=(token, low, high),
                )
            except SegmentNotFoundError:
                if not await self._stores.controller.scope_exists(self._scope):
                    raise ScopeNotFoundError(self._scope) from None
                return  # none was ever made
            assert isinstance(page, wire.TableEntriesRead)
            if not page.entries:
                return
            for entry in page.entries:
                yield bytes(entry.key[len(low) :]).decode(), bytes(entry.value)
            token = page.continuation_token

    def _key(self, name: str) -> bytes:
        return f"{self._kind}/{name}".encode()

    async def _put(self, name: str, stored: Stored, version: int) -> None:
        await self._table.put(self._key(name), msgspec.json.encode(stored), version)

    async def _held(self, name: str) -> TableValue:
        try:
            held = await self._table.get(self._key(name))
        except SegmentNotFoundError:
            held = None
        if held is None:
            raise self._missing(self._scope, name)
        return held


def tagging(add: Iterable[str], remove: Iterable[str]) -> Callable[[Stored], Stored]:
    more, less = _tags(add), set(_tags(remove))

    def change(stored: Stored) -> Stored:
        kept = [tag for tag in stored.tags if tag not in less]
        return msgspec.structs.replace(stored, tags=_tags([*kept, *more]))

    return change


def _tags(tags: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(checked_tags(tags)))
    if len(found) > BOOKMARK_MAX_TAGS:
        raise InvalidArgumentError(f"{len(found)} tags are too many: at most {BOOKMARK_MAX_TAGS}")
    for tag in found:
        if not 0 < len(tag) <= TAG_MAX_CHARS:
            raise InvalidArgumentError(f"a tag has 1 to {TAG_MAX_CHARS} characters: {tag[:40]!r} has {len(tag)}")
    return found


def _check_note(note: str) -> None:
    if len(note) > BOOKMARK_NOTE_MAX_CHARS:
        raise InvalidArgumentError(f"a note has at most {BOOKMARK_NOTE_MAX_CHARS:,} characters, not {len(note):,}")


def time_of(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
