"""Parts of containers that several stores may claim, as servers of a cluster would: the last to claim them has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nadi.errors import FencedError
from nadi.runtime import REAL
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery.parts import LocalParts, Opened
from nadi.segmentstore.recovery.snapshotter import SnapshotPace, Snapshotter
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, Manifest

from .two_stores import CONTAINERS, OWNER


@dataclass(slots=True)
class Record:
    """Who has a container, and its newest snapshot; in place of `Records`."""

    container: int
    epoch: int = 0
    manifest: Manifest | None = None
    is_alone: bool = False

    async def still_claimed(self, container: int, epoch: int) -> None:
        if self.epoch != epoch:
            raise FencedError(container, self.epoch)

    async def set_snapshot(self, container: int, epoch: int, manifest: Manifest, start: ChainStart) -> None:
        await self.still_claimed(container, epoch)
        self.manifest = manifest


class OwnedParts(LocalParts):
    """In a folder; but a claim decides who may open them. Each checkpoint makes a snapshot."""

    def __init__(self, number: int, folder: Path, chunks: ChunkStore, record: Record) -> None:
        super().__init__(number, folder, chunks, self._has_it)
        self.sweeps = False
        self.snapshots = Snapshotter(number, folder, chunks, self, REAL, SnapshotPace(interval_s=0.0))
        self.record = record
        self.opened = self.claim = 0

    def _has_it(self) -> bool:
        return self.record.epoch == self.claim

    async def _claimed(self) -> ContainerRecord:
        await self.record.still_claimed(self.number, self.claim)
        return ContainerRecord(self.claim, snapshot=self.record.manifest)

    async def claim_record(self) -> tuple[Any, int]:
        return self.record, self.claim

    async def open(self) -> Opened:
        if not self.opened:
            self.record.epoch += 1
            self.claim = self.record.epoch
        self.opened += 1
        await self.record.still_claimed(self.number, self.claim)
        return await super().open()


class OwnedStores:
    """At first `one` has them all. lost: what `one` was told, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chunks = ChunkStore.in_folder(folder / "tier2")
        self.records = [Record(number) for number in range(CONTAINERS)]
        self.lost: list[int] = []
        self.parts_of_one = [self.parts(number) for number in range(CONTAINERS)]
        self.one = self._store("one", self.parts_of_one, self.lost.append)
        self.two = self._store("two", [], lambda number: None)

    def parts(self, number: int) -> OwnedParts:
        return OwnedParts(number, self.folder / f"container-{number}", self.chunks, self.records[number])

    async def claim(self, number: int) -> None:
        """As another server does; it opens the container later."""
        self.records[number].epoch += 1
        await FileLog.open(self.folder / f"container-{number}" / "log").close()

    def _store(self, name: str, parts: list[OwnedParts], on_lost: Callable[[int], None]) -> SegmentStore:
        return SegmentStore(
            self.folder / name,
            CONTAINERS,
            chunks=self.chunks,
            parts=parts,
            owner_of=lambda number: OWNER,
            on_lost=on_lost,
        )


@asynccontextmanager
async def owned_stores(folder: Path) -> AsyncIterator[OwnedStores]:
    stores = OwnedStores(folder)
    for store in (stores.one, stores.two):
        await store.start()
        await store.listen("127.0.0.1", 0)
    try:
        yield stores
    finally:
        for store in (stores.one, stores.two):
            await store.close()
