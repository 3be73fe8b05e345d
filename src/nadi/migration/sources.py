"""Source of a migration: a data folder, served or stopped, or the store of a cluster whose servers are stopped.

Only tier 2 is read: chunks, and the snapshots named in the containers' records. A running server is asked over REST to
hold its writers. Other data is opened by this process as a server does, without listening. So a cluster's containers
are claimed, which fences a server that wakes up late. A place is left by a mark in its records, which prevents further
claims.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

from nadi.cluster.admin.cluster_view import SharedStore, live_servers, open_shared_store
from nadi.cluster.storage import ClusterStorage
from nadi.errors import ConflictError, DataFolderError, InvalidArgumentError, NadiError, StoreError, UnavailableError
from nadi.limits import MIGRATION_LATE_S, MIGRATION_PAUSE_MAX_S, MIGRATION_REFRESH_S
from nadi.migration.migration_lock import MigrationLock
from nadi.object_log.opening import open_chunk_engines
from nadi.observe.cluster import FrozenContainer, WriteFreezeReport
from nadi.runtime import REAL
from nadi.segmentstore.data_dir import STORE, TIER2, StoreFile, Tier2, check_version, find_store
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, ContainerRecords, NewLocation
from nadi.segmentstore.write_freeze import WriteFreeze, abandon_folder, is_abandoned

_LOOK_S = 0.1


Ask = Callable[..., Any]
"""Sends a POST to a running server's REST port, blocking: `ask("hold", WriteFreezeReport, {"limit_s": 1.0},
within_s=11.0)`. Raises ConflictError, UnavailableError, PermissionDeniedError."""


class MigrationSource:
    """Source, opened as a context; unless it was `left` by its end, it is unchanged. id: of the stored data, wherever
    it is. is_served: servers may write to it until it is settled."""

    is_served = False
    id: str
    containers: int
    chunks: ChunkStore
    stored: ContainerRecords
    lock: MigrationLock

    def __init__(self, url: str) -> None:
        self.url = url

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _open(self, stack: AsyncExitStack) -> None:
        """Set the attributes; cleanup is added to `stack`."""
        raise NotImplementedError

    async def refresh(self) -> None:
        """Bring tier 2 and the snapshots up to date, while servers keep writing."""

    async def records(self) -> list[ContainerRecord]:
        """Return the current records of all containers; servers may replace their snapshots at any moment."""
        return await read_all(self.stored, self.containers)

    async def migrated_by(self) -> str:
        """Return the id of the migration that has left the source, "" if none has."""
        raise NotImplementedError

    async def settle(self) -> list[ContainerRecord]:
        """Stop all writes, and bring everything into snapshots and the chunks that they name."""
        raise NotImplementedError

    async def leave(self, to: str, migration: str) -> None:
        """Mark the source as left, durably: no server opens it any more. May be repeated, also by a later run.
        ConflictError, FencedError: other servers may have written since it was settled; it isn't left."""
        raise NotImplementedError


class _FolderSource(MigrationSource):
    def __init__(self, folder: Path) -> None:
        super().__init__(url_of(folder))
        self.folder = folder

    async def _open(self, stack: AsyncExitStack) -> None:
        self._store_file = store_of(self.folder)
        self.id, self.containers = self._store_file.cluster, self._store_file.containers
        engine, registry = await open_chunk_engines(
            url := store_url(self.folder, self._store_file), REAL, **self._store_file.options
        )
        stack.push_async_callback(engine.close)
        self.stored = ContainerRecords(registry, REAL, is_alone=not self._store_file.url)
        self.lock = await stack.enter_async_context(MigrationLock(registry, self.url))
        self.chunks = ChunkStore.from_url(url, **self._store_file.options)
        stack.push_async_callback(self.chunks.close)
        if self._store_file.is_encrypted:
            await self.chunks.unlock()

    async def migrated_by(self) -> str:
        """Return the migration named in the first container's record, which is marked first."""
        moved = (await self.stored.read(0)).record.moved
        return moved.migration if moved is not None else ""

    async def leave(self, to: str, migration: str) -> None:
        await self.lock.keep()
        await abandon_folder(self.folder, self.stored, to, migration)

    async def _settled(self, frozen: list[FrozenContainer]) -> list[ContainerRecord]:
        records = await self.records()
        for container, record in zip(frozen, records, strict=True):
            if container.sequence and (record.snapshot is None or record.snapshot.sequence < container.sequence):
                raise UnavailableError(f"container {container.number} has no current snapshot: run the migration again")
        return records


class StoppedFolder(_FolderSource):
    """Data folder without a server; none can start while this is open."""

    _hold: WriteFreeze | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)
        if not await self.migrated_by():
            tier2 = Tier2(self._store_file.url, self._store_file.options) if self._store_file.url else None
            store = await REAL.in_thread(partial(SegmentStore, self.folder, tier2=tier2))
            stack.push_async_callback(store.close)
            await store.start()
            self._hold = WriteFreeze(store)
            stack.push_async_callback(self._hold.end)

    async def settle(self) -> list[ContainerRecord]:
        assert self._hold is not None, "left before"
        return await self._settled(await self._hold.begin(MIGRATION_PAUSE_MAX_S))

    async def leave(self, to: str, migration: str) -> None:
        if self._hold is None or self._hold.is_kept:
            await super().leave(to, migration)
        else:
            leave = partial(super().leave, to, migration)
            await self._hold.keep(self._hold.id, leave, partial(is_abandoned, self.stored))


class ServedFolder(_FolderSource):
    """Data folder of a running server, whose writers are held for at most `limit_s`."""

    is_served = True

    def __init__(self, folder: Path, ask: Ask, limit_s: float) -> None:
        super().__init__(folder)
        self._ask, self._limit_s = ask, limit_s
        self._hold_report: WriteFreezeReport | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)

        async def resume() -> None:
            if self._hold_report is not None and not await self.migrated_by():
                with contextlib.suppress(UnavailableError, ConflictError):  # writers resume by themselves at the limit
                    await asyncio.to_thread(self._ask, "go-on", type(None))

        stack.push_async_callback(resume)

    async def refresh(self) -> None:
        await asyncio.to_thread(self._ask, "refresh", type(None), within_s=MIGRATION_REFRESH_S)

    async def settle(self) -> list[ContainerRecord]:
        limit_s = self._limit_s
        report: WriteFreezeReport = await asyncio.to_thread(
            self._ask, "hold", WriteFreezeReport, {"limit_s": limit_s}, within_s=limit_s + 10
        )
        self._hold_report = report
        if report.store != self.id:
            raise StoreError(f"the server at that REST address doesn't serve {self.folder}: correct --rest")
        return await self._settled(report.containers)

    async def leave(self, to: str, migration: str) -> None:
        if self._hold_report is None:  # an earlier run has begun to leave
            await super().leave(to, migration)
            return
        try:
            body = {"hold": self._hold_report.hold, "to": to, "migration": migration}
            await asyncio.to_thread(self._ask, "leave", type(None), body)
        except UnavailableError:  # it may have left all the same
            until = REAL.monotonic() + MIGRATION_LATE_S
            while await self.migrated_by() != migration:
                if REAL.monotonic() >= until:
                    raise
                await REAL.sleep(_LOOK_S)
        self._hold_report = None


async def read_all(stored: ContainerRecords, containers: int) -> list[ContainerRecord]:
    return [(await stored.read(number)).record for number in range(containers)]


def store_of(folder: Path) -> StoreFile:
    """Read a data folder's store file. DataFolderError: it isn't a data folder."""
    check_version(folder)
    store_file = find_store(folder).store
    if store_file is None:
        raise DataFolderError(f"{folder} isn't a data folder: its file `{STORE}` is missing")
    return store_file


def url_of(folder: Path) -> str:
    return folder.absolute().as_uri()


def store_url(folder: Path, store: StoreFile) -> str:
    return store.url or (folder / TIER2).absolute().as_uri()


class ClusterStore(MigrationSource):
    """Store of a cluster at that URL. options: see `open_engines`."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        super().__init__(url)
        self._options = options
        self._me = REAL.unique()[:16]
        self._parts: dict[int, ClusterStorage] = {}  # claimed and not yet left
        self._hold: WriteFreeze | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        self._shared: SharedStore = await stack.enter_async_context(
            open_shared_store(self.url, self._options, unlocks=True)
        )
        cluster = self._shared.cluster
        if cluster.log is not None:
            raise InvalidArgumentError(
                f"this cluster has its log in {cluster.log.name}, but only a log in the store can be migrated"
            )
        self.id, self.containers, self.chunks = cluster.cluster, cluster.containers, self._shared.chunks
        self.stored = ContainerRecords(self._shared.registry, REAL)
        self.lock = await stack.enter_async_context(MigrationLock(self._shared.registry, self.url))
        self._living = await live_servers(self._shared)
        self.is_served = bool(self._living)
        stack.push_async_callback(self._release)

    async def migrated_by(self) -> str:
        """Return the migration named in all records: another server may have claimed a container that wasn't left
        yet."""
        await self.lock.keep()
        moves = {record.moved.migration if record.moved else "" for record in await self.records()}
        return moves.pop() if len(moves) == 1 else ""

    async def settle(self) -> list[ContainerRecord]:
        if self._living:
            raise ConflictError(
                f"servers of the cluster are running: {', '.join(self._living)}. Stop them all, then run this again. "
                "Copied chunks are kept"
            )
        scratch = Path(
            self._stack.enter_context(
                tempfile.TemporaryDirectory(prefix="nadi-migrate-", dir=self.chunks.sealing.scratch)
            )
        )
        # on_lost: another server has claimed the container, so `leave` will fail
        self._store = SegmentStore(scratch, self.containers, chunks=self.chunks, parts=(), on_lost=lambda number: None)
        self._stack.push_async_callback(self._store.close)
        await self._store.start()
        for number in range(self.containers):
            seen = await self.stored.read(number)
            if seen.record.moved is not None:  # by an earlier run that was killed
                continue
            folder, engine = scratch / f"container-{number}", self._shared.engine
            parts = ClusterStorage(number, folder, self._me, seen, engine, self.stored, self.chunks, REAL)
            await self._store.take(parts)
            self._parts[number] = parts
        self._hold = WriteFreeze(self._store)
        await self._hold.begin(MIGRATION_PAUSE_MAX_S)
        return await self.records()

    async def leave(self, to: str, migration: str) -> None:
        for number, record in enumerate(await self.records()):
            if record.moved is None:
                parts = self._parts.get(number)
                if parts is None:
                    raise ConflictError(f"moving container {number} was undone meanwhile: run this again")
                await self.lock.keep()
                await self.stored.move_away(number, parts.epoch, NewLocation(to, migration))
            elif record.moved.migration != migration:
                raise StoreError(f"the data of this cluster was moved to {record.moved.to} meanwhile: use that")
            self._parts.pop(number, None)

    async def _release(self) -> None:
        """Release containers that weren't left, so that servers needn't wait until this process counts as dead."""
        if self._hold is not None:
            await self._hold.end()
        for number, parts in self._parts.items():
            with contextlib.suppress(NadiError):  # servers then wait
                await self._store.give_up(number)
                await self.stored.release(number, parts.epoch, "")
