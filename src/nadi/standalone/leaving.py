"""What the server of a data folder does so that `nadi migrate` can move its data elsewhere: the logic behind
`/v1/migration`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from nadi.observe.migration import HoldReport
from nadi.runtime import REAL
from nadi.segmentstore import moved
from nadi.segmentstore.holding import Hold
from nadi.segmentstore.moved import Moved
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.whereabouts import check_within


class Leaving:
    """Of one server, which has started."""

    def __init__(self, folder: Path, store: SegmentStore) -> None:
        self._folder = folder
        self._chunks = store.chunks
        self._hold = Hold(store)

    async def refresh(self) -> None:
        await self._hold.refresh()

    async def hold(self, limit_s: float) -> HoldReport:
        check_within(self._folder, "moved")
        mark = await self._chunks.mark()
        held = await self._hold.begin(limit_s)
        return HoldReport(self._hold.id, mark, self._hold.left_s, held)

    async def go_on(self) -> None:
        await self._hold.end()

    async def leave(self, hold: str, to: str, migration: str) -> None:
        mark = Moved(to, migration, REAL.now_ms())
        is_left = partial(moved.may_be_moved, self._folder)
        await self._hold.keep(hold, partial(moved.note_moved, self._folder, mark), is_left)

    async def stop(self) -> None:
        """Before the server stops: what waits is answered, or refused if the data is elsewhere."""
        await self._hold.end()
        if self._hold.is_kept:
            self._hold.refuse()
