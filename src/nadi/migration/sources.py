"""Where the data of a migration is: a data folder, of a server that runs or of none, or the store of a cluster whose
servers are stopped.

Nothing but tier 2 is read: the snapshots that the containers' records name, and chunks. A running server is asked over
REST to hold its writers; what no server has is opened by this process as a server does, without a door. So containers
of a cluster are claimed, which shuts out a server that wakes up late. A place is left by a mark in its records, behind
which nobody can claim a container.
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

from nadi.cluster.admin.cluster_view import SharedStore, living, opened
from nadi.cluster.storage import ClusterParts
from nadi.errors import ConflictError, DataFolderError, InvalidArgumentError, NadiError, StoreError, UnavailableError
from nadi.limits import MIGRATION_LATE_S, MIGRATION_PAUSE_MAX_S, MIGRATION_REFRESH_S
from nadi.migration.migration_lock import Turn
from nadi.object_log.opening import open_of_chunks
from nadi.observe.cluster import HeldContainer, HoldReport
from nadi.runtime import REAL
from nadi.segmentstore.data_dir import STORE, TIER2, StoreFile, Tier2, check_version, find
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, ContainerRecords, MovedAway
from nadi.segmentstore.write_freeze import Hold, is_left, leave_folder

_LOOK_S = 0.1


Ask = Callable[..., Any]
"""Posts to a running server's REST, blocking: `ask("hold", HoldReport, {"limit_s": 1.0}, within_s=11.0)`. Raises
ConflictError, UnavailableError, PermissionDeniedError."""


class MigrationSource:
    """Opened as a context; what isn't `left` when that ends is as it was before. id: of what is stored there, wherever
    that is. is_served: servers may be writing to it until it is settled."""

    is_served = False
    id: str
    containers: int
    chunks: ChunkStore
    stored: ContainerRecords
    turn: Turn

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
        """Set what there is to know; `stack` ends it."""
        raise NotImplementedError

    async def refresh(self) -> None:
        """Have tier 2, and the snapshots, have what was written by now, if servers write on."""

    async def records(self) -> list[ContainerRecord]:
        """Those of all containers now; servers may replace their snapshots at any moment."""
        return await read_all(self.stored, self.containers)

    async def left_by(self) -> str:
        """The id of the migration that has left it, "" if none has."""
        raise NotImplementedError

    async def settle(self) -> list[ContainerRecord]:
        """Keep everybody from writing, and have everything in the snapshots and the chunks that these name."""
        raise NotImplementedError

    async def leave(self, to: str, migration: str) -> None:
        """Make sure, durably, that no server opens it from now on; may be done again, also by a later run.
        ConflictError, FencedError: others may have written since it was settled, and it isn't left."""
        raise NotImplementedError


class _FolderSource(MigrationSource):
    def __init__(self, folder: Path) -> None:
        super().__init__(url_of(folder))
        self.folder = folder

    async def _open(self, stack: AsyncExitStack) -> None:
        self._said = store_of(self.folder)
        self.id, self.containers = self._said.cluster, self._said.containers
        engine, registry = await open_of_chunks(url := store_url(self.folder, self._said), REAL, **self._said.options)
        stack.push_async_callback(engine.close)
        self.stored = ContainerRecords(registry, REAL, is_alone=not self._said.url)
        self.turn = await stack.enter_async_context(Turn(registry, self.url))
        self.chunks = ChunkStore.from_url(url, **self._said.options)
        stack.push_async_callback(self.chunks.close)

    async def left_by(self) -> str:
        """As the first container says, which is left first."""
        moved = (await self.stored.read(0)).record.moved
        return moved.migration if moved is not None else ""

    async def leave(self, to: str, migration: str) -> None:
        await self.turn.keep()
        await leave_folder(self.folder, self.stored, to, migration)

    async def _settled(self, held: list[HeldContainer]) -> list[ContainerRecord]:
        records = await self.records()
        for one, record in zip(held, records, strict=True):
            if one.sequence and (record.snapshot is None or record.snapshot.sequence < one.sequence):
                raise UnavailableError(f"the snapshot of container {one.number} isn't there: start the migration again")
        return records


class StoppedFolder(_FolderSource):
    """Of no server; none can start while this is open."""

    _hold: Hold | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)
        if not await self.left_by():
            tier2 = Tier2(self._said.url, self._said.options) if self._said.url else None
            store = await REAL.in_thread(partial(SegmentStore, self.folder, tier2=tier2))
            stack.push_async_callback(store.close)
            await store.start()
            self._hold = Hold(store)
            stack.push_async_callback(self._hold.end)

    async def settle(self) -> list[ContainerRecord]:
        assert self._hold is not None, "it was not left before"
        return await self._settled(await self._hold.begin(MIGRATION_PAUSE_MAX_S))

    async def leave(self, to: str, migration: str) -> None:
        if self._hold is None or self._hold.is_kept:
            await super().leave(to, migration)
        else:
            leave = partial(super().leave, to, migration)
            await self._hold.keep(self._hold.id, leave, partial(is_left, self.stored))


class ServedFolder(_FolderSource):
    """Of a running server, whose writers are held for at most `limit_s`."""

    is_served = True

    def __init__(self, folder: Path, ask: Ask, limit_s: float) -> None:
        super().__init__(folder)
        self._ask, self._limit_s = ask, limit_s
        self._held: HoldReport | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)

        async def go_on() -> None:
            if self._held is not None and not await self.left_by():
                with contextlib.suppress(UnavailableError, ConflictError):  # they go on by themselves, at the limit
                    await asyncio.to_thread(self._ask, "go-on", type(None))

        stack.push_async_callback(go_on)

    async def refresh(self) -> None:
        await asyncio.to_thread(self._ask, "refresh", type(None), within_s=MIGRATION_REFRESH_S)

    async def settle(self) -> list[ContainerRecord]:
        limit_s = self._limit_s
        held: HoldReport = await asyncio.to_thread(
            self._ask, "hold", HoldReport, {"limit_s": limit_s}, within_s=limit_s + 10
        )
        self._held = held
        if held.store != self.id:
            raise StoreError(f"the server at that REST address doesn't serve {self.folder}: give its own, with --rest")
        return await self._settled(held.containers)

    async def leave(self, to: str, migration: str) -> None:
        if self._held is None:  # an earlier run has begun to
            await super().leave(to, migration)
            return
        try:
            body = {"hold": self._held.hold, "to": to, "migration": migration}
            await asyncio.to_thread(self._ask, "leave", type(None), body)
        except UnavailableError:  # it may have been done all the same
            until = REAL.monotonic() + MIGRATION_LATE_S
            while await self.left_by() != migration:
                if REAL.monotonic() >= until:
                    raise
                await REAL.sleep(_LOOK_S)
        self._held = None


async def read_all(stored: ContainerRecords, containers: int) -> list[ContainerRecord]:
    return [(await stored.read(number)).record for number in range(containers)]


def store_of(folder: Path) -> StoreFile:
    """What a data folder says of its store; DataFolderError if it isn't one."""
    check_version(folder)
    found = find(folder).store
    if found is None:
        raise DataFolderError(f"{folder} isn't a data folder: its file `{STORE}` is missing")
    return found


def url_of(folder: Path) -> str:
    return folder.absolute().as_uri()


def store_url(folder: Path, store: StoreFile) -> str:
    return store.url or (folder / TIER2).absolute().as_uri()


class ClusterStore(MigrationSource):
    """The store of that URL. options: see `open_engines`."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        super().__init__(url)
        self._options = options
        self._me = REAL.unique()[:16]
        self._parts: dict[int, ClusterParts] = {}  # what is claimed, and not left
        self._hold: Hold | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        self._shared: SharedStore = await stack.enter_async_context(opened(self.url, self._options))
        cluster = self._shared.cluster
        if cluster.log is not None:
            raise InvalidArgumentError(
                f"this cluster has its log in {cluster.log.name}, and a migration reads only logs in the store"
            )
        self.id, self.containers, self.chunks = cluster.cluster, cluster.containers, self._shared.chunks
        self.stored = ContainerRecords(self._shared.registry, REAL)
        self.turn = await stack.enter_async_context(Turn(self._shared.registry, self.url))
        self._living = await living(self._shared)
        self.is_served = bool(self._living)
        stack.push_async_callback(self._give_back)

    async def left_by(self) -> str:
        """As all containers say: another server may have claimed one that hadn't been left yet."""
        await self.turn.keep()
        moves = {record.moved.migration if record.moved else "" for record in await self.records()}
        return moves.pop() if len(moves) == 1 else ""

    async def settle(self) -> list[ContainerRecord]:
        if self._living:
            raise ConflictError(
                f"servers of the cluster run: {', '.join(self._living)}. Stop them all, then start this again. What "
                "was copied is kept"
            )
        scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="nadi-migrate-")))
        # on_lost: another server has claimed it, and `leave` will be refused
        self._store = SegmentStore(scratch, self.containers, chunks=self.chunks, parts=(), on_lost=lambda number: None)
        self._stack.push_async_callback(self._store.close)
        await self._store.start()
        for number in range(self.containers):
            seen = await self.stored.read(number)
            if seen.record.moved is not None:  # by an earlier run, which was killed then
                continue
            folder, engine = scratch / f"container-{number}", self._shared.engine
            parts = ClusterParts(number, folder, self._me, seen, engine, self.stored, self.chunks, REAL)
            await self._store.take(parts)
            self._parts[number] = parts
        self._hold = Hold(self._store)
        await self._hold.begin(MIGRATION_PAUSE_MAX_S)
        return await self.records()

    async def leave(self, to: str, migration: str) -> None:
        for number, record in enumerate(await self.records()):
            if record.moved is None:
                parts = self._parts.get(number)
                if parts is None:
                    raise ConflictError(f"container {number} was taken back meanwhile: start this again")
                await self.turn.keep()
                await self.stored.move_away(number, parts.epoch, MovedAway(to, migration))
            elif record.moved.migration != migration:
                raise StoreError(f"the data of this cluster was moved to {record.moved.to} meanwhile")
            self._parts.pop(number, None)

    async def _give_back(self) -> None:
        """Let servers have what wasn't left, without waiting until this one counts as dead."""
        if self._hold is not None:
            await self._hold.end()
        for number, parts in self._parts.items():
            with contextlib.suppress(NadiError):  # then they wait
                await self._store.give_up(number)
                await self.stored.release(number, parts.epoch, "")
