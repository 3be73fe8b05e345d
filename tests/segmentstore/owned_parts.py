"""Parts of containers that several stores may claim, as servers of a cluster would: the last to claim them has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from nadi.errors import FencedError
from nadi.runtime import REAL
from nadi.segmentstore.recovery.localparts import LocalParts
from nadi.segmentstore.recovery.parts import Opened
from nadi.segmentstore.recovery.snapshots import Manifest
from nadi.segmentstore.recovery.snapshotter import SnapshotPace, Snapshotter
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier2.chunks import ChunkStore

from .two_stores import CONTAINERS, OWNER


@dataclass(slots=True)
class Record:
    """Who has a container, and its newest snapshot. puts: each with the oldest frame that the log needed."""

    epoch: int = 0
    manifest: Manifest | None = None
    puts: list[tuple[Manifest, int]] = field(default_factory=list)


class RecordManifests:
    """The manifest is in the record, which only the last to claim it can change. Nothing is deleted by a listing."""

    def __init__(self, record: Record, container: int, chunks: ChunkStore) -> None:
        self.epoch = 0  # of the claim
        self._record, self._container, self._chunks = record, container, chunks

    def check(self) -> None:
        if self._record.epoch != self.epoch:
            raise FencedError(self._container, self._record.epoch)

    async def newest(self) -> tuple[Manifest | None, list[str]]:
        self.check()
        return self._record.manifest, []

    async def put(self, manifest: Manifest, former: Manifest | None, oldest_frame: int) -> Manifest:
        self.check()
        number = len(self._record.puts) + 1
        self._record.manifest = msgspec.structs.replace(manifest, number=number)
        self._record.puts.append((self._record.manifest, oldest_frame))
        return self._record.manifest

    async def renew(self, manifest: Manifest, is_newest: Callable[[], bool]) -> list[str]:
        self.check()
        return []

    async def delete_former(self, former: Manifest | None, manifest: Manifest) -> None:
        needed = {part.name for part in manifest.parts}
        for part in former.parts if former is not None else ():
            if part.name not in needed:
                await self._chunks.delete(part.name)


class OwnedParts(LocalParts):
    """In a folder; but a claim decides who may open them. Each checkpoint makes a snapshot."""

    def __init__(self, number: int, folder: Path, chunks: ChunkStore, record: Record) -> None:
        super().__init__(number, folder, chunks, self._has_it)
        self.manifests = RecordManifests(record, number, chunks)
        self.snapshots = Snapshotter(number, folder, chunks, REAL, self.manifests, SnapshotPace(interval_s=0.0))
        self.record = record
        self.opened = 0

    def _has_it(self) -> bool:
        return self.record.epoch == self.manifests.epoch

    async def open(self) -> Opened:
        if not self.opened:
            self.record.epoch += 1
            self.manifests.epoch = self.record.epoch
        self.opened += 1
        self.manifests.check()
        return await super().open()


class OwnedStores:
    """At first `one` has them all. lost: what `one` was told, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chunks = ChunkStore.in_folder(folder / "tier2")
        self.records = [Record() for _ in range(CONTAINERS)]
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
