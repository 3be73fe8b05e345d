"""Store named slices: pairs of stream cuts under a name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from nadi.client.control.arguments import checked
from nadi.client.reading.boundary import check_cut
from nadi.client.stream_cuts.bookmark_store import NamedRecords, time_of
from nadi.client.stream_cuts.cuts import StreamCuts
from nadi.display import Displayed
from nadi.errors import InvalidStreamCutError, SliceNotFoundError
from nadi.model.named_records import StoredCuts
from nadi.model.streamcut import StreamCut


@dataclass(frozen=True, slots=True)
class NamedSlice(Displayed):
    """A named slice of a stream, between two cuts."""

    name: str
    start: StreamCut
    end: StreamCut
    created_at: datetime
    note: str = ""
    tags: tuple[str, ...] = ()

    @property
    def scope(self) -> str:
        return self.start.scope

    @property
    def stream(self) -> str:
        return self.start.stream


@checked()
class NamedSlices(NamedRecords[NamedSlice]):
    """The named slices of a scope: `manager.slices(scope)`."""

    _noun, _cuts, _missing = "slice", 2, SliceNotFoundError

    async def create(
        self, name: str, start: StreamCut, end: StreamCut, *, note: str = "", tags: Iterable[str] = ()
    ) -> NamedSlice:
        """Store two cuts under a name; raise AlreadyExistsError if the scope has a slice with this name, and
        InvalidStreamCutError unless `end` is at or after `start` in every segment."""
        check_cut(end, start.scope, start.stream)
        order = await StreamCuts(self._stores, start.scope, start.stream).compare(start, end)
        if not order.is_at_or_before:
            raise InvalidStreamCutError(
                f"the start of slice {name} is {order.value} its end: pass the earlier cut first"
            )
        return await self._add(name, [start, end], note, tags)

    def _record_of(self, name: str, stored: StoredCuts) -> NamedSlice:
        start, end = map(StreamCut.from_text, stored.cuts)
        return NamedSlice(name, start, end, time_of(stored.made_ms), stored.note, tuple(stored.tags))
