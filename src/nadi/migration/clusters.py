"""A cluster's store as the source of a migration, once its servers are stopped.

This process claims its containers as a server does, and so shuts out one that wakes up late; each is left by a mark in
its record, which its owner alone can set, and behind which nobody can claim it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from nadi.cluster.admin.cluster_view import SharedStore, living, opened, read_records
from nadi.cluster.map import container_of
from nadi.cluster.parts import ClusterParts
from nadi.cluster.records import MovedAway, Records
from nadi.errors import ConflictError, InvalidArgumentError, NadiError, StoreError
from nadi.limits import MIGRATION_PAUSE_MAX_S
from nadi.migration.ends import Settled, Snapshots
from nadi.migration.turn import Turn
from nadi.runtime import REAL
from nadi.segmentstore.holding import Hold
from nadi.segmentstore.store import SegmentStore


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
        self._store = SegmentStore(
            scratch, self.containers, chunks=self.chunks, parts=(), mapping=container_of, on_lost=self._lost
        )
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
