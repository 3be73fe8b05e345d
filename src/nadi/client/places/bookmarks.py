"""Bookmarks: stream cuts that are kept in the store under a name, where every client of the scope finds them."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from nadi.client.control.arguments import checked
from nadi.client.places.shelf import Shelf, Stored, tagging, time_of
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    BookmarkNotFoundError,
)
from nadi.model.streamcut import StreamCut


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


@checked()
class Bookmarks:
    """The bookmarks of a scope: `manager.bookmarks(scope)`."""

    def __init__(self, stores: SegmentStores, scope: str) -> None:
        self._scope = scope
        self._shelf = Shelf(stores, scope, "bookmark", BookmarkNotFoundError)

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
        return self._of(name, await self._shelf.change(name, tagging(add, remove)))

    async def rename(self, name: str, new_name: str) -> Bookmark:
        """AlreadyExistsError if the new name is taken. Not one step: for a moment it has both names."""
        return self._of(new_name, await self._shelf.rename(name, new_name))

    async def delete(self, name: str) -> bool:
        """False if there was none; the events stay."""
        return await self._shelf.remove(name)

    def _of(self, name: str, stored: Stored) -> Bookmark:
        (cut,) = map(StreamCut.from_text, stored.cuts)
        return Bookmark(name, cut, time_of(stored.made_ms), stored.note, tuple(stored.tags))
