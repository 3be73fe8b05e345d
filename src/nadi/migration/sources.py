"""A data folder as the source of a migration: of a server that runs, or of none.

Nothing but its tier 2 is read: the snapshots of its states, and chunks. Of a running server, which is asked over REST
to hold its writers; of a stopped one's folder, after this process has opened it as a server would, without a door.

A cluster's store as the source of a migration, once its servers are stopped.

This process claims its containers as a server does, and so shuts out one that wakes up late; each is left by a mark in
its record, which its owner alone can set, and behind which nobody can claim it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Protocol, Self

from nadi.cluster.admin.cluster_view import SharedStore, living, opened, read_records
from nadi.cluster.parts import ClusterParts
from nadi.errors import ConflictError, DataFolderError, InvalidArgumentError, NadiError, StoreError, UnavailableError
from nadi.limits import MIGRATION_LATE_S, MIGRATION_PAUSE_MAX_S
from nadi.migration.ends import Settled, Snapshots
from nadi.migration.migration_lock import Turn
from nadi.observe.migration import HeldContainer, HoldReport
from nadi.runtime import REAL
from nadi.segmentstore import moved
from nadi.segmentstore.datafolder import TIER2, check_version, find_format
from nadi.segmentstore.holding import Hold
from nadi.segmentstore.moved import Moved
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.store import SegmentStore
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import MovedAway, Records
from nadi.segmentstore.tier2.whereabouts import check_within

_LOCK = "migrating"
_LOOK_S = 0.1


class Server(Protocol):
    """A running server's REST; blocking. Raises ConflictError, UnavailableError, PermissionDeniedError."""

    def refresh(self) -> None: ...

    def hold(self, limit_s: float) -> HoldReport: ...

    def go_on(self) -> None: ...

    def leave(self, hold: str, to: str, migration: str) -> None: ...


class _Folder:
    """What both have in common. One migration at a time reads a folder."""

    is_served = False

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, url_of(folder)
        self.id = ""

    async def __aenter__(self) -> Self:
        check_version(self.folder)
        check_within(self.folder, "moved")
        found = find_format(self.folder).format
        if found is None:
            if (self.folder / "cluster.json").exists():
                raise DataFolderError(f"{self.folder} is a cluster's store: move it with --from {self.url}")
            raise DataFolderError(f"{self.folder} isn't a data folder: its file `format` is missing")
        self.containers = found.containers
        self._lock = alone(self.folder)
        try:
            self.chunks = ChunkStore.in_folder(self.folder / TIER2)
            self.id = await self.chunks.mark()
            await self._open()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    async def _open(self) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._close()
        finally:
            os.close(self._lock)

    async def left_by(self) -> str:
        there = await REAL.in_thread(moved.settled, self.folder)
        return there.migration if there is not None else ""

    async def refresh(self) -> None:
        """Nothing: nobody writes here."""

    async def snapshots(self) -> Snapshots:
        return [(await snapshots.newest(self.chunks, number))[0] for number in range(self.containers)]


class StoppedFolder(_Folder):
    """Of no server; none can start while this is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._hold: Hold | None = None

    async def _open(self) -> None:
        if moved.moved(self.folder) is not None:
            return
        self._store = SegmentStore(self.folder)
        await self._store.start()
        self._hold = Hold(self._store)

    async def settle(self) -> Settled:
        assert self._hold is not None, "it was not left before"
        held = await self._hold.begin(MIGRATION_PAUSE_MAX_S)
        return _settled(held, await self.snapshots())

    async def leave(self, to: str, migration: str) -> None:
        assert self._hold is not None, "it was not left before"
        mark = Moved(to, migration, REAL.now_ms())
        await self._hold.keep(
            self._hold.id, partial(moved.note_moved, self.folder, mark), partial(moved.may_be_moved, self.folder)
        )

    async def _close(self) -> None:
        if self._hold is not None:
            await self._hold.end()
            await self._store.close()


class ServedFolder(_Folder):
    """Of a running server, whose writers are held for at most `limit_s`."""

    is_served = True

    def __init__(self, folder: Path, server: Server, limit_s: float) -> None:
        super().__init__(folder)
        self._server, self._limit_s = server, limit_s
        self._held: HoldReport | None = None

    async def _open(self) -> None:
        """Nothing: its server has it open."""

    async def refresh(self) -> None:
        await asyncio.to_thread(self._server.refresh)

    async def settle(self) -> Settled:
        report = self._held = await asyncio.to_thread(self._server.hold, self._limit_s)
        if report.mark != self.id:
            raise StoreError(f"the server at that REST address doesn't serve {self.folder}: give its own, with --rest")
        found = await self.snapshots()
        return _settled(report.containers, found)

    async def leave(self, to: str, migration: str) -> None:
        assert self._held is not None, "it was settled before"
        try:
            await asyncio.to_thread(self._server.leave, self._held.hold, to, migration)
        except UnavailableError:  # it may have been done all the same
            until = REAL.monotonic() + MIGRATION_LATE_S
            while await self.left_by() != migration:
                if REAL.monotonic() >= until:
                    raise
                await REAL.sleep(_LOOK_S)
        self._held = None

    async def _close(self) -> None:
        if self._held is not None and not await self.left_by():
            try:
                await asyncio.to_thread(self._server.go_on)
            except (UnavailableError, ConflictError):
                return  # they go on by themselves, at the limit


def _settled(held: Sequence[HeldContainer], found: Snapshots) -> Settled:
    """UnavailableError if the newest snapshot that can be read isn't the one that has everything."""
    for one, snapshot in zip(held, found, strict=True):
        if one.sequence and (snapshot is None or snapshot.sequence < one.sequence):
            raise UnavailableError(f"the snapshot of container {one.number} isn't there: start the migration again")
    return Settled(found, max(one.epoch for one in held))


def url_of(folder: Path) -> str:
    """How a migration calls a data folder."""
    return folder.absolute().as_uri()


def alone(folder: Path) -> int:
    """The lock that lets one migration at a time read a data folder, whoever serves it; to be closed. DataFolderError:
    another has it, or takes one back. It ends with the process that has it."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise DataFolderError(
            f"the data of {folder} is being moved by another `nadi migrate`, or taken back: wait until that has ended, "
            "or stop it, then start this one again"
        ) from None
    return lock


class ClusterStore:
    """The store of that URL. options: see `open_engines`."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.url, self._options = url, options
        self.id, self.is_served = "", False
        self._me = REAL.unique()[:16]
        self._parts: dict[int, ClusterParts] = {}  # what is claimed, and not left
        self._hold: Hold | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._shared: SharedStore = await stack.enter_async_context(opened(self.url, self._options))
            cluster = self._shared.cluster
            if cluster.log is not None:
                raise InvalidArgumentError(
                    f"this cluster has its log in {cluster.log.name}, and a migration reads only logs in the store"
                )
            self.id, self.containers, self.chunks = cluster.cluster, cluster.containers, self._shared.chunks
            self._records = Records(self._shared.registry, REAL)
            self._turn = await stack.enter_async_context(Turn(self._shared.registry, self.url))
            self._living = await living(self._shared)
            self.is_served = bool(self._living)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        async with self._stack:
            await self._give_back()

    async def left_by(self) -> str:
        await self._turn.keep()
        moves = {record.moved.migration if record.moved else "" for record in await read_records(self._shared)}
        return moves.pop() if len(moves) == 1 else ""

    async def refresh(self) -> None:
        """Nothing: its servers are to be stopped."""

    async def snapshots(self) -> Snapshots:
        return [record.snapshot for record in await read_records(self._shared)]

    async def settle(self) -> Settled:
        if self._living:
            raise ConflictError(
                f"servers of the cluster run: {', '.join(self._living)}. Stop them all, then start this again. What "
                "was copied is kept"
            )
        scratch = Path(tempfile.mkdtemp(prefix="nadi-migrate-"))
        self._stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        self._store = SegmentStore(scratch, self.containers, chunks=self.chunks, parts=(), on_lost=self._lost)
        self._stack.push_async_callback(self._store.close)
        await self._store.start()
        for number in range(self.containers):
            seen = await self._records.read(number)
            if seen.record.moved is not None:  # by an earlier run, which was killed then
                continue
            engine, chunks = self._shared.engine, self.chunks
            folder = scratch / f"container-{number}"
            parts = ClusterParts(number, folder, self._me, seen, engine, self._records, chunks, REAL)
            await self._store.take(parts)
            self._parts[number] = parts
        self._hold = Hold(self._store)
        await self._hold.begin(MIGRATION_PAUSE_MAX_S)
        records = await read_records(self._shared)
        return Settled([record.snapshot for record in records], max(record.epoch for record in records))

    def _lost(self, number: int) -> None:
        """Another server has claimed it: `leave` will be refused."""

    async def leave(self, to: str, migration: str) -> None:
        for number in range(self.containers):
            record = (await self._records.read(number)).record
            if record.moved is None:
                parts = self._parts.get(number)
                if parts is None:
                    raise ConflictError(f"container {number} was taken back meanwhile: start this again")
                await self._turn.keep()
                await self._records.move_away(number, parts.epoch, MovedAway(to, migration))
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
                await self._records.release(number, parts.epoch, "")
