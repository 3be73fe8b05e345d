"""Bookmarks: stream cuts that are kept in the store under a name, where every client of the scope finds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from nadi.client.control.arguments import checked
from nadi.client.places.shelf import Named, Shelf, time_of
from nadi.client.segments.stores import SegmentStores
from nadi.display import Displayed
from nadi.errors import BookmarkNotFoundError
from nadi.model.place import Stored
from nadi.model.streamcut import StreamCut


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
class Bookmarks(Named[Bookmark]):
    """The bookmarks of a scope: `manager.bookmarks(scope)`."""

    def __init__(self, stores: SegmentStores, scope: str) -> None:
        self._shelf = Shelf(stores, scope, "bookmark", 1, BookmarkNotFoundError)

    async def create(self, name: str, cut: StreamCut, *, note: str = "", tags: Iterable[str] = ()) -> Bookmark:
        """Store a cut under a name; AlreadyExistsError if the scope has a bookmark of that name."""
        return self._of(name, await self._shelf.add(name, [cut], note, tags))

    def _of(self, name: str, stored: Stored) -> Bookmark:
        (cut,) = map(StreamCut.from_text, stored.cuts)
        return Bookmark(name, cut, time_of(stored.made_ms), stored.note, tuple(stored.tags))
