"""Bookmarks and slices: stream cuts that are kept in the store under a name.

A bookmark is a name for one stream cut, a slice for two of the same stream, from which to which it goes.
Both lie in one table of their scope, so that every client of the scope finds them; the names of bookmarks are
apart from those of slices. Each change is conditional on what was read, so of two who make the same name one
is refused, and tags given by two at once are both kept.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from nadi.client.arguments import checked
from nadi.client.cuts import HEAD, TAIL
from nadi.client.policy import checked_tags
from nadi.client.reader import check_cut, segment_ranges
from nadi.client.tables import ABSENT, Table, TableValue
from nadi.errors import (
    AlreadyExistsError,
    BookmarkNotFoundError,
    ConditionFailedError,
    ConflictError,
    InvalidArgumentError,
    InvalidStreamCutError,
    NotFoundError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    SliceNotFoundError,
)
from nadi.limits import BOOKMARK_MAX_TAGS, BOOKMARK_NOTE_MAX_CHARS, TABLE_PAGE_MAX_ENTRIES, TAG_MAX_CHARS
from nadi.model.streamcut import StreamCut
from nadi.naming import BOOKMARKS_TABLE, check_name
from nadi.wire import commands as wire

if TYPE_CHECKING:
    from nadi.client.streams import StreamManager

_TRIES = 20  # of a change that meets another one of the same record
RESERVED = (HEAD, TAIL)


@dataclass(frozen=True, slots=True)
class Bookmark:
    """A name for a stream cut. `made_at` is when it was made, by the maker's clock."""

    name: str
    cut: StreamCut
    made_at: datetime
    note: str = ""
    tags: tuple[str, ...] = ()

    @property
    def scope(self) -> str:
        return self.cut.scope

    @property
    def stream(self) -> str:
        return self.cut.stream


@dataclass(frozen=True, slots=True)
class NamedSlice:
    """A name for what lies between two cuts of one stream."""

    name: str
    start: StreamCut
    end: StreamCut
    made_at: datetime
    note: str = ""
    tags: tuple[str, ...] = ()

    @property
    def scope(self) -> str:
        return self.start.scope

    @property
    def stream(self) -> str:
        return self.start.stream


class _Stored(msgspec.Struct, frozen=True):
    """The JSON of a bookmark (one cut) or a slice (two)."""

    stream: str
    cuts: list[str]
    made_ms: int
    note: str = ""
    tags: list[str] = []


class _Shelf:
    """The records of one kind in a scope's table."""

    def __init__(self, manager: StreamManager, scope: str, kind: str, missing: Callable[[str, str], NotFoundError]):
        self._manager, self._scope, self._kind, self._missing = manager, scope, kind, missing
        self._table: Table = manager.table(scope, BOOKMARKS_TABLE)

    async def add(self, name: str, cuts: Iterable[StreamCut], note: str, tags: Iterable[str]) -> _Stored:
        check_name(self._kind, name)
        if name in RESERVED:
            raise InvalidArgumentError(f"{name!r} means the stream's own {name}: give the {self._kind} another name")
        given = list(cuts)
        stream = given[0].stream
        for cut in given:
            check_cut(cut, self._scope, stream)
            await segment_ranges(self._manager.stores, self._scope, stream, cut)
        stored = _Stored(stream, [cut.as_text() for cut in given], time.time_ns() // 1_000_000, note, _tags(tags))
        _check_note(note)
        await self._put_new(name, stored)
        return stored

    async def _put_new(self, name: str, stored: _Stored) -> None:
        try:
            await self._put(name, stored, ABSENT)
        except SegmentNotFoundError:
            if not await self._manager.controller.scope_exists(self._scope):
                raise ScopeNotFoundError(self._scope) from None
            await self._table.create()
            await self._put_new(name, stored)
        except ConditionFailedError:
            raise AlreadyExistsError(self._kind, f"{self._scope}/{name}") from None

    async def get(self, name: str) -> _Stored:
        return msgspec.json.decode((await self._held(name)).value, type=_Stored)

    async def change(self, name: str, change: Callable[[_Stored], _Stored]) -> _Stored:
        """Store what `change` makes of the record, with nothing in between."""
        for _ in range(_TRIES):
            held = await self._held(name)
            changed = change(msgspec.json.decode(held.value, type=_Stored))
            try:
                await self._put(name, changed, held.version)
            except ConditionFailedError:
                continue
            return changed
        raise self._contended(name)

    def _contended(self, name: str) -> ConflictError:
        return ConflictError(f"{self._kind} {self._scope}/{name} was changed by others {_TRIES} times: try again later")

    async def rename(self, name: str, new_name: str) -> _Stored:
        """Two steps: for a moment, and after a crash between them, it has both names."""
        check_name(self._kind, new_name)
        if new_name in RESERVED:
            raise InvalidArgumentError(f"{new_name!r} means the stream's own {new_name}: choose another name")
        held = await self._held(name)
        stored = msgspec.json.decode(held.value, type=_Stored)
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

    async def all(self, stream: str | None, tag: str | None) -> list[tuple[str, _Stored]]:
        """(name, record) in order of names."""
        found = []
        async for name, raw in self._entries():
            stored = msgspec.json.decode(raw, type=_Stored)
            if stream in (None, stored.stream) and (tag is None or tag in stored.tags):
                found.append((name, stored))
        return found

    async def _entries(self) -> AsyncIterator[tuple[str, bytes]]:
        low = self._key("")
        high, token = low + b"\xff", b""
        while True:
            try:
                page = await self._manager.stores.call(
                    self._table.segment,
                    wire.ReadTableEntries,
                    segment=self._table.segment,
                    suggested_count=TABLE_PAGE_MAX_ENTRIES,
                    range=(token, low, high),
                )
            except SegmentNotFoundError:
                if not await self._manager.controller.scope_exists(self._scope):
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

    async def _put(self, name: str, stored: _Stored, version: int) -> None:
        await self._table.put(self._key(name), msgspec.json.encode(stored), version)

    async def _held(self, name: str) -> TableValue:
        try:
            held = await self._table.get(self._key(name))
        except SegmentNotFoundError:
            held = None
        if held is None:
            raise self._missing(self._scope, name)
        return held


@checked()
class Bookmarks:
    """The bookmarks of a scope: `manager.bookmarks(scope)`."""

    def __init__(self, manager: StreamManager, scope: str) -> None:
        self._scope = scope
        self._shelf = _Shelf(manager, scope, "bookmark", BookmarkNotFoundError)

    async def create(self, name: str, cut: StreamCut, *, note: str = "", tags: Iterable[str] = ()) -> Bookmark:
        """AlreadyExistsError if the scope has a bookmark of that name."""
        return self._of(name, await self._shelf.add(name, [cut], note, tags))

    async def get(self, name: str) -> Bookmark:
        """BookmarkNotFoundError if there is none."""
        return self._of(name, await self._shelf.get(name))

    async def list(self, *, stream: str | None = None, tag: str | None = None) -> builtins.list[Bookmark]:
        """In order of names; only those of the stream, or with the tag, if given."""
        return [self._of(name, stored) for name, stored in await self._shelf.all(stream, tag)]

    async def tag(self, name: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Bookmark:
        """Give it tags and take others away."""
        return self._of(name, await self._shelf.change(name, _tagging(add, remove)))

    async def rename(self, name: str, new_name: str) -> Bookmark:
        """AlreadyExistsError if the new name is taken. Not one step: for a moment it has both names."""
        return self._of(new_name, await self._shelf.rename(name, new_name))

    async def delete(self, name: str) -> bool:
        """False if there was none; the events stay."""
        return await self._shelf.remove(name)

    def _of(self, name: str, stored: _Stored) -> Bookmark:
        (cut,) = map(StreamCut.from_text, stored.cuts)
        return Bookmark(name, cut, _time(stored.made_ms), stored.note, tuple(stored.tags))


@checked()
class NamedSlices:
    """The named slices of a scope: `manager.slices(scope)`."""

    def __init__(self, manager: StreamManager, scope: str) -> None:
        self._manager, self._scope = manager, scope
        self._shelf = _Shelf(manager, scope, "slice", SliceNotFoundError)

    async def create(
        self, name: str, start: StreamCut, end: StreamCut, *, note: str = "", tags: Iterable[str] = ()
    ) -> NamedSlice:
        """AlreadyExistsError if the scope has a slice of that name; InvalidStreamCutError unless `end` lies at or
        after `start` everywhere."""
        check_cut(end, start.scope, start.stream)
        order = await self._manager.cuts(start.scope, start.stream).compare(start, end)
        if not order.is_at_or_before:
            raise InvalidStreamCutError(f"the start of slice {name} lies {order.value} its end: no slice lies between")
        return self._of(name, await self._shelf.add(name, [start, end], note, tags))

    async def get(self, name: str) -> NamedSlice:
        """SliceNotFoundError if there is none."""
        return self._of(name, await self._shelf.get(name))

    async def list(self, *, stream: str | None = None, tag: str | None = None) -> builtins.list[NamedSlice]:
        """In order of names; only those of the stream, or with the tag, if given."""
        return [self._of(name, stored) for name, stored in await self._shelf.all(stream, tag)]

    async def tag(self, name: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> NamedSlice:
        """Give it tags and take others away."""
        return self._of(name, await self._shelf.change(name, _tagging(add, remove)))

    async def rename(self, name: str, new_name: str) -> NamedSlice:
        """AlreadyExistsError if the new name is taken. Not one step: for a moment it has both names."""
        return self._of(new_name, await self._shelf.rename(name, new_name))

    async def delete(self, name: str) -> bool:
        """False if there was none; the events stay."""
        return await self._shelf.remove(name)

    def _of(self, name: str, stored: _Stored) -> NamedSlice:
        start, end = map(StreamCut.from_text, stored.cuts)
        return NamedSlice(name, start, end, _time(stored.made_ms), stored.note, tuple(stored.tags))


def _tagging(add: Iterable[str], remove: Iterable[str]) -> Callable[[_Stored], _Stored]:
    more, less = _tags(add), set(_tags(remove))

    def change(stored: _Stored) -> _Stored:
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


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
