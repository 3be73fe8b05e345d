"""Two stores of one set of containers, like two servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nadi.errors import FencedError
from nadi.runtime import REAL
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery.snapshotter import SnapshotPace, Snapshotter
from nadi.segmentstore.recovery.storage import LocalStorage, OpenStorage
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, SnapshotManifest

CONTAINERS = 2
OWNER = "other:12345"
AnyStores = TypeVar("AnyStores", bound="Stores")


class Stores:
    """At first `one` has all containers; they use the same storage in either store. lost: containers that `one`
    lost."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chunks = ChunkStore.in_folder(folder / "tier2")
        self.lost: list[int] = []
        self.one = self._store("one", [self.parts(number) for number in range(CONTAINERS)], self.lost.append)
        self.two = self._store("two", [], lambda number: None)

    def parts(self, number: int) -> LocalStorage:
        return LocalStorage(number, self.folder / f"container-{number}", self.chunks)

    def _store(self, name: str, parts: Sequence[LocalStorage], on_lost: Callable[[int], None]) -> SegmentStore:
        return SegmentStore(
            self.folder / name,
            CONTAINERS,
            chunks=self.chunks,
            parts=parts,
            owner_of=lambda number: OWNER,
            on_lost=on_lost,
        )

    async def move(self, number: int, origin: SegmentStore, target: SegmentStore) -> None:
        await origin.give_up(number)
        await target.take(self.parts(number))


@asynccontextmanager
async def opened(stores: AnyStores) -> AsyncIterator[AnyStores]:
    for store in (stores.one, stores.two):
        await store.start()
        await store.listen("127.0.0.1", 0)
    try:
        yield stores
    finally:
        for store in (stores.one, stores.two):
            await store.close()


def two_stores(folder: Path) -> AbstractAsyncContextManager[Stores]:
    return opened(Stores(folder))


# --- storage with claims, as in a cluster: the latest claimant owns it ------------------------------------


@dataclass(slots=True)
class Record:
    """A container's owner and newest snapshot; replaces `ContainerRecords`."""

    container: int
    epoch: int = 0
    manifest: SnapshotManifest | None = None
    is_alone: bool = False

    async def still_claimed(self, container: int, epoch: int) -> None:
        if self.epoch != epoch:
            raise FencedError(container, self.epoch)

    async def set_snapshot(self, container: int, epoch: int, manifest: SnapshotManifest, start: ChainStart) -> None:
        await self.still_claimed(container, epoch)
        self.manifest = manifest


class OwnedParts(LocalStorage):
    """Storage in a folder whose access is decided by a claim. Each checkpoint takes a snapshot."""

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

    async def open(self) -> OpenStorage:
        if not self.opened:
            self.record.epoch += 1
            self.claim = self.record.epoch
        self.opened += 1
        await self.record.still_claimed(self.number, self.claim)
        return await super().open()


class OwnedStores(Stores):
    def __init__(self, folder: Path) -> None:
        self.records = [Record(number) for number in range(CONTAINERS)]
        self.parts_of_one: list[OwnedParts] = []
        super().__init__(folder)

    def parts(self, number: int) -> OwnedParts:
        parts = OwnedParts(number, self.folder / f"container-{number}", self.chunks, self.records[number])
        self.parts_of_one.append(parts)  # later ones belong to the other store
        return parts

    async def claim(self, number: int) -> None:
        """Claim a container as another server does; it is opened later."""
        self.records[number].epoch += 1
        await FileLog.open(self.folder / f"container-{number}" / "log").close()


def owned_stores(folder: Path) -> AbstractAsyncContextManager[OwnedStores]:
    return opened(OwnedStores(folder))
