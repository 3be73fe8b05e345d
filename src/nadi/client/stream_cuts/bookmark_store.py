"""Store bookmarks, and provide the common part of bookmarks and named slices; one table per scope holds both.

Bookmarks and slices have separate names. Each change is conditional on the value read before, so of two clients that
create the same name one fails, and tags added concurrently are both kept.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Generic, TypeVar

import msgspec

from nadi.client.control.arguments import check_strings, checked
from nadi.client.reading.boundary import check_cut, segment_ranges
from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts.timestamps import RESERVED
from nadi.client.tables.catalog import Catalog, RecordKind, Unreadable
from nadi.display import Displayed
from nadi.errors import (
    BookmarkNotFoundError,
    ConflictError,
    InvalidArgumentError,
    InvalidStreamCutError,
    SliceNotFoundError,
)
from nadi.limits import BOOKMARK_MAX_TAGS, BOOKMARK_NOTE_MAX_CHARS, TAG_MAX_CHARS
from nadi.model.named_records import StoredCuts
from nadi.model.streamcut import StreamCut
from nadi.naming import BOOKMARKS_TABLE, check_name

Record = TypeVar("Record")


@checked()
class NamedRecords(Generic[Record]):
    """Methods shared by a scope's bookmarks and slices. `_cuts`: the number of cuts in each record."""

    _noun: ClassVar[str]
    _cuts: ClassVar[int]
    _missing: ClassVar[type[BookmarkNotFoundError | SliceNotFoundError]]

    def __init__(self, stores: SegmentStores, scope: str) -> None:
        self._stores, self._scope = stores, scope
        remedy = f"delete it: `nadi {self._noun} delete {scope} {{}}`".format
        kind = RecordKind(
            self._noun, scope, remedy, partial(self._missing, scope), self._decode, prefix=f"{self._noun}/"
        )
        self._records: Catalog[StoredCuts] = Catalog(stores, scope, BOOKMARKS_TABLE, kind)

    def _record_of(self, name: str, stored: StoredCuts) -> Record:
        raise NotImplementedError

    async def get(self, name: str) -> Record:
        """Return the record with this name; raise BookmarkNotFoundError or SliceNotFoundError if it doesn't exist."""
        return self._record_of(name, await self._records.get(name))

    async def list(self, *, stream: str | None = None, tag: str | None = None) -> builtins.list[Record]:
        """Return the scope's records, sorted by name, optionally only those of one stream or with one tag. Records that
        `unreadable` returns are left out."""
        return (await self.list_with_unreadable(stream=stream, tag=tag))[0]

    async def unreadable(self) -> builtins.list[Unreadable]:
        """Return the scope's records that are damaged, or written by a newer version; they can be deleted."""
        return (await self._records.all())[1]

    async def list_with_unreadable(
        self, *, stream: str | None = None, tag: str | None = None
    ) -> tuple[builtins.list[Record], builtins.list[Unreadable]]:
        """Return the results of `list` and of `unreadable` in one pass over the table."""
        records, unreadable = await self._records.all()
        listed = [
            self._record_of(name, stored)
            for name, stored in records.items()
            if stream in (None, stored.stream) and (tag is None or tag in stored.tags)
        ]
        return listed, unreadable

    async def tag(self, name: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> Record:
        """Add and remove tags."""
        added, removed = _tags(add), _tags(remove)

        def change(stored: StoredCuts) -> StoredCuts:
            tags = [tag for tag in stored.tags if tag not in removed]
            return msgspec.structs.replace(stored, tags=_tags([*tags, *added]))

        return self._record_of(name, await self._records.change(name, change))

    async def rename(self, name: str, new_name: str) -> Record:
        """Rename a record; raise AlreadyExistsError if the new name exists. Not atomic: for a short time both names
        exist."""
        self._check_new_name(new_name)
        old = self._records.record(name)
        stored = await old.get()
        await self._records.create(new_name, stored)
        if not await old.delete_read():
            raise ConflictError(
                f"{self._noun} {self._scope}/{name} was changed during the rename: both names exist now; delete one"
            )
        return self._record_of(new_name, stored)

    async def delete(self, name: str) -> bool:
        """Delete the record with this name, but not the events; return False if it doesn't exist."""
        return await self._records.delete(name)

    async def _add(self, name: str, cuts: Sequence[StreamCut], note: str, tags: Iterable[str]) -> Record:
        self._check_new_name(name)
        stream = cuts[0].stream
        for cut in cuts:
            check_cut(cut, self._scope, stream)
            await segment_ranges(self._stores, self._scope, stream, cut)
        stored = StoredCuts(stream, [cut.as_text() for cut in cuts], time.time_ns() // 1_000_000, note, _tags(tags))
        if len(note) > BOOKMARK_NOTE_MAX_CHARS:
            raise InvalidArgumentError(
                f"a note can have at most {BOOKMARK_NOTE_MAX_CHARS:,} characters, not {len(note):,}"
            )
        await self._records.create(name, stored)
        return self._record_of(name, stored)

    def _decode(self, name: str, value: bytes) -> StoredCuts:
        stored = msgspec.json.decode(value, type=StoredCuts)
        if len(stored.cuts) != self._cuts:
            raise InvalidStreamCutError(f"it has {len(stored.cuts):,} cuts, not {self._cuts}")
        for text in stored.cuts:
            check_cut(StreamCut.from_text(text), self._scope, stored.stream)
        time_of(stored.made_ms)
        return stored

    def _check_new_name(self, name: str) -> None:
        """Reject a name that denotes another position where positions are written as text."""
        check_name(self._noun, name)
        if name.lower() in RESERVED:
            meaning = f"denotes the {name.lower()} of a stream"
        elif name.startswith("-"):
            meaning = "denotes an age, such as -5min, or a command option"
        else:
            try:
                StreamCut.from_text(name)
            except InvalidStreamCutError:
                return
            meaning = "is the text of a stream cut"
        raise InvalidArgumentError(f"{name!r} {meaning}: choose another name for the {self._noun}")


def _tags(tags: Iterable[str]) -> list[str]:
    distinct = list(dict.fromkeys(check_strings(tags, "tags")))
    if len(distinct) > BOOKMARK_MAX_TAGS:
        raise InvalidArgumentError(f"there are {len(distinct)} tags: at most {BOOKMARK_MAX_TAGS} are allowed")
    for tag in distinct:
        if not 0 < len(tag) <= TAG_MAX_CHARS:
            raise InvalidArgumentError(f"a tag must have 1 to {TAG_MAX_CHARS} characters: {tag[:40]!r} has {len(tag)}")
    return distinct


def time_of(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Bookmark(Displayed):
    """A named stream cut. `created_at`: creation time by the creating client's clock."""

    name: str
    cut: StreamCut
    created_at: datetime
    note: str = ""
    tags: tuple[str, ...] = ()

    @property
    def scope(self) -> str:
        return self.cut.scope

    @property
    def stream(self) -> str:
        return self.cut.stream


@checked()
class Bookmarks(NamedRecords[Bookmark]):
    """The bookmarks of a scope: `manager.bookmarks(scope)`."""

    _noun, _cuts, _missing = "bookmark", 1, BookmarkNotFoundError

    async def create(self, name: str, cut: StreamCut, *, note: str = "", tags: Iterable[str] = ()) -> Bookmark:
        """Store a cut under a name; raise AlreadyExistsError if the scope has a bookmark with this name."""
        return await self._add(name, [cut], note, tags)

    def _record_of(self, name: str, stored: StoredCuts) -> Bookmark:
        (cut,) = map(StreamCut.from_text, stored.cuts)
        return Bookmark(name, cut, time_of(stored.made_ms), stored.note, tuple(stored.tags))
