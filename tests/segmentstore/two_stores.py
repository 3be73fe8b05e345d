"""Two stores of one set of containers, as two servers would be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nadi.segmentstore.recovery.parts import LocalParts
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore

CONTAINERS = 2
OWNER = "other:12345"


class Stores:
    """At first `one` has them all; their parts are the same, wherever they are opened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.chunks = ChunkStore.in_folder(folder / "tier2")
        self.one = self._store("one", [self.parts(n) for n in range(CONTAINERS)])
        self.two = self._store("two", [])

    def parts(self, number: int) -> LocalParts:
        return LocalParts(number, self._folder / f"container-{number}", self.chunks)

    def _store(self, name: str, parts: list[LocalParts]) -> SegmentStore:
        folder = self._folder / name
        return SegmentStore(folder, CONTAINERS, chunks=self.chunks, parts=parts, owner_of=lambda number: OWNER)

    async def move(self, number: int, origin: SegmentStore, target: SegmentStore) -> None:
        await origin.give_up(number)
        await target.take(self.parts(number))


@asynccontextmanager
async def two_stores(folder: Path) -> AsyncIterator[Stores]:
    stores = Stores(folder)
    for store in (stores.one, stores.two):
        await store.start()
        await store.listen("127.0.0.1", 0)
    try:
        yield stores
    finally:
        for store in (stores.one, stores.two):
            await store.close()
