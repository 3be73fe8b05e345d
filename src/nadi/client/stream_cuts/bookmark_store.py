"""Bookmarks, and what they have in common with named slices: one table of their scope keeps both.

The names of bookmarks are apart from those of slices. Each change is conditional on what was read, so of two who make
the same name one is refused, and tags given by two at once are both kept.
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

from nadi.client.control.arguments import checked, several_texts
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

One = TypeVar("One")


@checked()
class NamedRecords(Generic[One]):
    """What a scope's bookmarks and slices have in common. `_cuts`: how many each has."""

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

    def _of(self, name: str, stored: StoredCuts) -> One:
        raise NotImplementedError

    async def get(self, name: str) -> One:
        """Return what has that name; BookmarkNotFoundError or SliceNotFoundError if nothing has."""
        return self._of(name, await self._records.get(name))

    async def list(self, *, stream: str | None = None, tag: str | None = None) -> builtins.list[One]:
        """Return all of the scope in order of names; only those of the stream, or with the tag, if given. Without those
        that `unreadable` tells."""
        return (await self.list_with_unreadable(stream=stream, tag=tag))[0]

    async def unreadable(self) -> builtins.list[Unreadable]:
        """Return those of the scope that are damaged, or of a newer nadi; they can be deleted."""
        return (await self._records.all())[1]

    async def list_with_unreadable(
        self, *, stream: str | None = None, tag: str | None = None
    ) -> tuple[builtins.list[One], builtins.list[Unreadable]]:
        """Return both, what `list` returns and what `unreadable` does, by one walk through the table."""
        found, unreadable = await self._records.all()
        listed = [
            self._of(name, stored)
            for name, stored in found.items()
            if stream in (None, stored.stream) and (tag is None or tag in stored.tags)
        ]
        return listed, unreadable

    async def tag(self, name: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> One:
        """Add some tags and remove others."""
        more, less = _tags(add), _tags(remove)

        def change(stored: StoredCuts) -> StoredCuts:
            kept = [tag for tag in stored.tags if tag not in less]
            return msgspec.structs.replace(stored, tags=_tags([*kept, *more]))

        return self._of(name, await self._records.change(name, change))

    async def rename(self, name: str, new_name: str) -> One:
        """Rename it; AlreadyExistsError if the name is taken. Not atomic: for a short time it has both names."""
        self._check_new_name(new_name)
        former = self._records.record(name)
        stored = await former.get()
        await self._records.create(new_name, stored)
        if not await former.delete_read():
            raise ConflictError(
                f"{self._noun} {self._scope}/{name} was changed meanwhile: it has both names now; delete one"
            )
        return self._of(new_name, stored)

    async def delete(self, name: str) -> bool:
        """Delete what has that name; return False if nothing has. The events stay."""
        return await self._records.delete(name)

    async def _add(self, name: str, cuts: Sequence[StreamCut], note: str, tags: Iterable[str]) -> One:
        self._check_new_name(name)
        stream = cuts[0].stream
        for cut in cuts:
            check_cut(cut, self._scope, stream)
            await segment_ranges(self._stores, self._scope, stream, cut)
        stored = StoredCuts(stream, [cut.as_text() for cut in cuts], time.time_ns() // 1_000_000, note, _tags(tags))
        if len(note) > BOOKMARK_NOTE_MAX_CHARS:
            raise InvalidArgumentError(f"a note has at most {BOOKMARK_NOTE_MAX_CHARS:,} characters, not {len(note):,}")
        await self._records.create(name, stored)
        return self._of(name, stored)

    def _decode(self, name: str, value: bytes) -> StoredCuts:
        stored = msgspec.json.decode(value, type=StoredCuts)
        if len(stored.cuts) != self._cuts:
            raise InvalidStreamCutError(f"it has {len(stored.cuts):,} cuts, not {self._cuts}")
        for text in stored.cuts:
            check_cut(StreamCut.from_text(text), self._scope, stored.stream)
        time_of(stored.made_ms)
        return stored

    def _check_new_name(self, name: str) -> None:
        """Refuse a name that would mean another position wherever a position is written as text."""
        check_name(self._noun, name)
        if name.lower() in RESERVED:
            meaning = f"means a stream's own {name.lower()}"
        elif name.startswith("-"):
            meaning = "means an age, as -5min does, or an option of a command"
        else:
            try:
                StreamCut.from_text(name)
            except InvalidStreamCutError:
                return
            meaning = "is the text of a stream cut"
        raise InvalidArgumentError(f"{name!r} {meaning}: give the {self._noun} another name")


def _tags(tags: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(several_texts(tags, "tags")))
    if len(found) > BOOKMARK_MAX_TAGS:
        raise InvalidArgumentError(f"{len(found)} tags are too many: at most {BOOKMARK_MAX_TAGS}")
    for tag in found:
        if not 0 < len(tag) <= TAG_MAX_CHARS:
            raise InvalidArgumentError(f"a tag has 1 to {TAG_MAX_CHARS} characters: {tag[:40]!r} has {len(tag)}")
    return found


def time_of(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class Bookmark(Displayed):
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


@checked()
class Bookmarks(NamedRecords[Bookmark]):
    """The bookmarks of a scope: `manager.bookmarks(scope)`."""

    _noun, _cuts, _missing = "bookmark", 1, BookmarkNotFoundError

    async def create(self, name: str, cut: StreamCut, *, note: str = "", tags: Iterable[str] = ()) -> Bookmark:
        """Store a cut under a name; AlreadyExistsError if the scope has a bookmark of that name."""
        return await self._add(name, [cut], note, tags)

    def _of(self, name: str, stored: StoredCuts) -> Bookmark:
        (cut,) = map(StreamCut.from_text, stored.cuts)
        return Bookmark(name, cut, time_of(stored.made_ms), stored.note, tuple(stored.tags))
