"""Named slices: two stream cuts that are kept in the store under a name, from which to which a slice goes."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from nadi.client.control.arguments import checked
from nadi.client.places.cuts import StreamCuts
from nadi.client.places.shelf import Shelf, Stored, tagging, time_of
from nadi.client.reading.reader import check_cut
from nadi.client.segments.stores import SegmentStores
from nadi.errors import (
    InvalidStreamCutError,
    SliceNotFoundError,
)
from nadi.model.streamcut import StreamCut


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


@checked()
class NamedSlices:
    """The named slices of a scope: `manager.slices(scope)`."""

    def __init__(self, stores: SegmentStores, scope: str) -> None:
        self._stores, self._scope = stores, scope
        self._shelf = Shelf(stores, scope, "slice", SliceNotFoundError)

    async def create(
        self, name: str, start: StreamCut, end: StreamCut, *, note: str = "", tags: Iterable[str] = ()
    ) -> NamedSlice:
        """AlreadyExistsError if the scope has a slice of that name; InvalidStreamCutError unless `end` lies at or
        after `start` everywhere."""
        check_cut(end, start.scope, start.stream)
        order = await StreamCuts(self._stores, start.scope, start.stream).compare(start, end)
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
        return self._of(name, await self._shelf.change(name, tagging(add, remove)))

    async def rename(self, name: str, new_name: str) -> NamedSlice:
        """AlreadyExistsError if the new name is taken. Not one step: for a moment it has both names."""
        return self._of(new_name, await self._shelf.rename(name, new_name))

    async def delete(self, name: str) -> bool:
        """False if there was none; the events stay."""
        return await self._shelf.remove(name)

    def _of(self, name: str, stored: Stored) -> NamedSlice:
        start, end = map(StreamCut.from_text, stored.cuts)
        return NamedSlice(name, start, end, time_of(stored.made_ms), stored.note, tuple(stored.tags))
