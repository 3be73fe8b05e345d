"""A data folder's claim to an external store: no two folders, no cluster, and no copy of the folder ever write there at
the same time.

Before anything else, each opening claims the records of all containers, as a cluster's server does, and the folder
stores their epochs (`store.json`). So another folder is detected by the store's id, and a copy of the same folder by
the epochs: of two copies, the earlier one is refused at its next start, and if it is running, it detects the claim
before it deletes anything or publishes a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from nadi.errors import FencedError, StoreError, UnavailableError
from nadi.limits import CLUSTER_RECORDS_AT_ONCE
from nadi.object_log.engine import LogEngine, Registry
from nadi.object_log.identity import NAME, Cluster, named_cluster, read_cluster, refuse_strangers
from nadi.object_log.opening import open_chunk_engines
from nadi.object_log.outcomes import patiently
from nadi.object_log.store_probe import prove
from nadi.object_log.urls import folder_of
from nadi.runtime import Runtime
from nadi.segmentstore import reserve
from nadi.segmentstore.data_dir import LOG, LOG_ELSEWHERE, StoreFile, container_folders
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier2.records import ContainerRecords, VersionedRecord, check_stays, name_of

T = TypeVar("T")
START_S = 30.0  # time limit of a start to reach its store: HDFS may be losing data nodes


class StoreClaim:
    """A data folder's claim to the store in `store`. options: for reaching it. on_lost: called once the store turns out
    not to be this folder's; nothing is written there from then on."""

    def __init__(self, folder: Path, store: StoreFile, options: dict[str, str], runtime: Runtime) -> None:
        self.options = options
        self.on_lost: Callable[[], None] = lambda: None
        self.lost: StoreError | None = None
        self.is_confirmed = False
        self.store = store
        self.folder, self._runtime = folder, runtime
        self._engines: tuple[LogEngine, Registry] | None = None

    @property
    def url(self) -> str:
        return self.store.url

    def is_at(self, root: Path) -> bool:
        """Return whether the folder, possibly a mount, is the store now; blocking briefly."""
        return (root / NAME).exists()

    async def start(self) -> None:
        """Claim the store, before serving. StoreError: another one owns it, or it is unusable or refuses.
        UnavailableError: it doesn't answer."""
        failure = "it doesn't answer"

        async def confirm() -> None:
            nonlocal failure
            try:
                await self.confirm()
            except UnavailableError as error:
                failure = str(error)
                raise

        try:
            async with asyncio.timeout(START_S if self.store.is_elsewhere else None):
                await patiently(f"be claimed at {self.url}", confirm, self._runtime)
        except TimeoutError:
            raise UnavailableError(
                f"tier 2 in {self.url} can't be claimed for {START_S:.0f} s ({failure}), and a start needs the "
                "snapshots there: make it available, then start again. No data is lost: the log has what tier 2 lacks"
            ) from None

    async def confirm(self) -> None:
        """Make sure that this process has claimed the store. StoreError: another one owns it, or it is unusable;
        `on_lost` was called. UnavailableError: that is unknown."""
        if self.lost is not None:
            raise self.lost.with_traceback(None)
        if not self.is_confirmed:
            await self._confirm()

    async def check(self) -> None:
        """Make sure that no other folder has opened the store since: it would claim the first container first. Raises
        as `confirm`."""
        await self.confirm()
        try:
            await (await self.records()).still_claimed(0, self.store.epochs[0])
        except FencedError:
            raise self.overtaken() from None

    def overtaken(self) -> StoreError:
        """Lose the claim to a copy of the folder: call `on_lost`, and return the error."""
        return self._lose(self._copied())

    async def records(self) -> ContainerRecords:
        """Return the store's records, perhaps not claimed yet. UnavailableError: the store is missing."""
        return ContainerRecords(await self.registry(), self._runtime)

    async def close(self) -> None:
        if self._engines is not None:
            await self._engines[0].close()
            self._engines = None

    async def registry(self) -> Registry:
        """Return the store's registry. Raises as `records`."""
        return (await self._opened())[1]

    async def _opened(self) -> tuple[LogEngine, Registry]:
        if self._engines is None:
            folder = folder_of(self.url, **self.options)
            if folder is not None and self.store.is_elsewhere and not folder.is_dir():
                raise UnavailableError(f"the folder {folder} is missing: check that it is mounted")
            self._engines = await open_chunk_engines(self.url, self._runtime, **self.options)
        return self._engines

    async def _confirm(self) -> None:
        engine, registry = await self._opened()
        records = ContainerRecords(registry, self._runtime)
        try:
            cluster = await read_cluster(engine)
            if cluster is None:
                if self.store.is_elsewhere:
                    raise StoreError(missing_store(self.folder, self.url))
                await refuse_strangers(engine, self._runtime)
                await prove(engine, registry, self._runtime)
                named = self.store.cluster, self.store.containers
                cluster = await named_cluster(
                    engine, *named, self._runtime, LOG_ELSEWHERE, encrypted=self.store.is_encrypted
                )
            check_is_elsewhere(cluster, self.url)
            if cluster.cluster != self.store.cluster:
                raise StoreError(f"{self.url} has the chunks of another data folder: give this one a separate prefix")
            seen = await _of_each(records.read, range(self.store.containers))
            for number, record in enumerate(seen):
                self._check_known(number, record)
        except StoreError as error:
            raise self._lose(error) from None
        await self._claim(records, seen)

    def _check_known(self, number: int, seen: VersionedRecord) -> None:
        """Raise StoreError if another folder has claimed the container since this one did."""
        check_stays(seen.record)
        known = self.store.epochs[number] if self.store.epochs else 0
        is_unfinished = seen.record.epoch == known + 1 and seen.record.nonce == self.store.next != ""
        if seen.record.epoch < known:
            raise StoreError(
                f"{name_of(number)} in {self.url} was deleted, or is older than the last claim of the data folder "
                f"{self.folder}: restore it; without a newer one, `nadi tier2 claim {self.folder}` accepts it"
            )
        if seen.record.epoch != known and not is_unfinished:
            raise self._copied()

    async def _claim(self, records: ContainerRecords, seen: list[VersionedRecord]) -> None:
        """Claim the records read, the first container first; the folder stores the intent before, and the epochs
        after."""
        epochs = tuple(each.record.epoch for each in seen)
        await self._save_store(replace(self.store, epochs=epochs, next=self._runtime.unique()))

        async def claim(number: int) -> int:
            claimed = await records.claim(number, self.store.cluster, seen[number], self.store.next)
            return claimed.record.epoch

        try:
            first = await claim(0)
            others = await _of_each(claim, range(1, len(seen)))
        except FencedError:
            raise UnavailableError(f"another server is opening {self.url}: stop it, or use a separate prefix") from None
        await self._save_store(replace(self.store, epochs=(first, *others), next=""))
        self.is_confirmed = True

    async def take_over(self) -> None:
        """Claim the store although another copy of the folder may have it, for an operator who knows that none needs
        it. StoreError: its data was moved elsewhere, or a record is damaged. UnavailableError: the outcome is unknown;
        retry."""
        records = await self.records()
        await self._claim(records, await _of_each(records.read, range(self.store.containers)))

    def _copied(self) -> StoreError:
        return StoreError(
            f"{self.url} has since been opened by a copy of the data folder {self.folder}: use that copy; or, if it is "
            f"lost, run `nadi tier2 claim {self.folder}`"
        )

    def _lose(self, error: StoreError) -> StoreError:
        if self.lost is None:
            self.lost = error
            self.on_lost()
        return error

    async def _save_store(self, store: StoreFile) -> None:
        await self._runtime.in_thread(_write, store, self.folder)
        self.store = store


async def _of_each(work: Callable[[int], Awaitable[T]], numbers: range) -> list[T]:
    permits = asyncio.Semaphore(CLUSTER_RECORDS_AT_ONCE)

    async def one(number: int) -> T:
        async with permits:
            return await work(number)

    return await asyncio.gather(*map(one, numbers))


def _write(store: StoreFile, folder: Path) -> None:
    """Write the file; on a full disk, use a container's reserve. Blocking."""
    try:
        store.write(folder)
    except OSError as error:
        released = (path for path in container_folders(folder).values() if reserve.release(path))
        container = next(released, None) if disk.is_disk_full(error) else None
        if container is None:
            raise
        store.write(folder)
        reserve.take(container)


def check_is_elsewhere(cluster: Cluster, url: str) -> None:
    """Raise StoreError unless it is the external store of a data folder."""
    if cluster.log == LOG:
        raise StoreError(f"{url} is the store inside a data folder: pass a separate URL")
    if cluster.log != LOG_ELSEWHERE:
        raise StoreError(f"{url} is the store of a cluster: pass a separate URL")


def missing_store(folder: Path, url: str) -> str:
    """Return the message for a folder's store whose contents are missing."""
    return (
        f"{url} has lost {NAME}, which identifies the chunks of {folder}: it was emptied, isn't mounted, or is "
        "another store. Restore or mount it"
    )
