"""The two kinds of targets: a store that becomes a cluster's, and a folder that becomes one server's."""

from __future__ import annotations

import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from nadi.engines.identity import (
    DEFAULT_CONTAINERS,
    Cluster,
    check_count,
    known_cluster,
    named_cluster,
    refuse_strangers,
)
from nadi.engines.opening import open_engines
from nadi.engines.outcomes import patiently
from nadi.engines.proof import prove
from nadi.errors import InvalidArgumentError, StoreError
from nadi.migration import migration_lock as marks
from nadi.migration.ends import Source
from nadi.migration.migration_lock import Turn
from nadi.migration.planning import check_empty
from nadi.runtime import REAL
from nadi.segmentstore import datafolder, moved
from nadi.segmentstore.datafolder import TIER2, FolderLock, find_format, write_format
from nadi.segmentstore.moved import Incoming
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.state import check as statecheck
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.operations import encode_head
from nadi.segmentstore.tier1 import disk
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import Manifest, Records, first_record

_STATE = "state"


class NewCluster:
    """The store of that URL. options: see `open_engines`. containers: None is what an earlier run began with, or
    `DEFAULT_CONTAINERS`."""

    keeps_states = False

    def __init__(self, url: str, options: dict[str, str], containers: int | None) -> None:
        check_count(containers)
        self.url, self._options, self._asked = url, options, containers
        self.containers, self._id = 0, ""
        self._cluster: Cluster | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._engine, self._registry = await open_engines(self.url, REAL, **self._options)
            stack.push_async_callback(self._engine.close)
            self._cluster = await known_cluster(self._engine, "", REAL)
            if self._cluster is None:
                if await marks.begun(self._engine, self.url) is None:
                    await refuse_strangers(self._engine, REAL)
                await prove(self._engine, self._registry, REAL)
            self._turn = await stack.enter_async_context(Turn(self._registry, self.url))
            self.chunks = ChunkStore.from_url(self.url, **self._options)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def begin(self, source: Source) -> str:
        left_by = await source.left_by()
        if self._cluster is not None:
            if self._cluster.cluster != left_by:
                raise StoreError(f"{self.url} is the store of a cluster already: give another URL")
            self.containers, self._id = self._cluster.containers, left_by
            return left_by
        if left_by and await marks.begun(self._engine, self.url) is None:
            raise _left_before(source)
        new = Incoming(source.id, source.url, REAL.unique(), self._asked or DEFAULT_CONTAINERS)
        await self._turn.keep()
        found = await marks.begin(self._engine, self.url, new)
        check_same(found, source, self.url, self._asked)
        self.containers, self._id = found.containers, found.migration
        return self._id

    def states(self, scratch: Path) -> list[Path]:
        return _emptied([scratch / f"new-{number}" for number in range(self.containers)])

    async def put(self, number: int, state: Path, sequence: int, epoch: int) -> None:
        copy = await REAL.in_thread(_compact, state, number)
        base = await snapshots.put_base(self.chunks, number, sequence, copy)
        record = first_record(epoch, Manifest(number, sequence, base, ()))
        await self._turn.keep()
        await patiently("set a record", lambda: Records(self._registry, REAL).put(number, record), REAL)

    async def finish(self) -> None:
        await self._turn.keep()
        cluster = await named_cluster(self._engine, self._id, self.containers, REAL)
        if cluster.cluster != self._id:
            raise StoreError(f"another cluster was made in {self.url} meanwhile: give another URL")
        await marks.clear(self._engine)


class NewFolder:
    """A folder that is empty, or isn't there. containers: as for `NewCluster`, one by default."""

    keeps_states = True

    def __init__(self, folder: Path, containers: int | None) -> None:
        self.folder, self.url, self._asked = folder, folder.absolute().as_uri(), containers
        self.containers = 0

    async def __aenter__(self) -> Self:
        self._lock = FolderLock(self.folder)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()

    async def begin(self, source: Source) -> str:
        there = moved.incoming(self.folder)
        if there is None:
            there = await self._new(source)
        else:
            check_same(there, source, str(self.folder), self._asked)
        self.containers = there.containers
        self.chunks = ChunkStore.in_folder(self.folder / TIER2)
        return there.migration

    async def _new(self, source: Source) -> Incoming:
        left_by, found = await source.left_by(), find_format(self.folder).format
        if found is not None and left_by:  # an earlier run has come to its end
            return Incoming(source.id, source.url, left_by, found.containers)
        if left_by:
            raise _left_before(source)
        check_empty(self.folder)
        new = Incoming(source.id, source.url, REAL.unique(), self._asked or datafolder.DEFAULT_CONTAINERS)
        await REAL.in_thread(moved.note_incoming, self.folder, new)
        return new

    def states(self, scratch: Path) -> list[Path]:
        for path in datafolder.container_folders(self.folder).values():
            shutil.rmtree(path)
        return _emptied([self.folder / f"container-{number}" / _STATE for number in range(self.containers)])

    async def put(self, number: int, state: Path, sequence: int, epoch: int) -> None:
        copy = await REAL.in_thread(_compact, state, number)
        try:
            base = await snapshots.put_base(self.chunks, number, sequence, copy)
        finally:
            copy.unlink()
        records = await self.chunks.records()
        await records.put(number, first_record(epoch, Manifest(number, sequence, base, ())))
        await _begin_log(state.with_name("log"), sequence, epoch)
        await REAL.in_thread(_seal, state)

    async def finish(self) -> None:
        await REAL.in_thread(write_format, self.folder, self.containers)
        await REAL.in_thread(moved.clear_incoming, self.folder)


def check_same(found: Incoming, source: Source, where: str, containers: int | None) -> None:
    """Raise StoreError if a target is being filled from another source, InvalidArgumentError if it was begun with
    another number of containers."""
    if found.source != source.id:
        raise StoreError(f"a migration from {found.url} to {where} hasn't ended: end that one, or give another target")
    if containers is not None and containers != found.containers:
        raise InvalidArgumentError(
            f"this migration was begun with {found.containers:,} containers: leave --containers out, or give as many"
        )


def _left_before(source: Source) -> StoreError:
    return StoreError(f"the data of {source.url} was moved elsewhere before: see `nadi migrate --undo`")


def _emptied(folders: list[Path]) -> list[Path]:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
    return folders


def _compact(state: Path, number: int) -> Path:
    """A copy of the state without free pages, beside its folder."""
    copy = state.with_name(f"{state.name}.copy")
    descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        metadata = Metadata(state, number, durable=False)
        try:
            metadata.copy(descriptor)
        finally:
            metadata.close()
    finally:
        os.close(descriptor)
    return copy


async def _begin_log(folder: Path, sequence: int, epoch: int) -> None:
    """A log with one frame that changes nothing: so it shows where it begins, and that its owners follow that epoch."""
    new = (sequence, epoch)
    log = await REAL.in_thread(FileLog.open, folder, name=folder.parent.name, complete=new, is_new=True)
    try:
        async for _ in log.replay(sequence):
            raise AssertionError("it is new")
        await log.append([encode_head([])])
    finally:
        await log.close()


def _seal(state: Path) -> None:
    """Vouch for the state, durably."""
    statecheck.seal(state)
    for folder in (state.parent, state.parent.parent):
        disk.sync_folder(folder)
