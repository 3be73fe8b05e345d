"""Taking a migration back: the source is served again, as it was when it was left. Only while nobody has used the
target since: what was written there isn't in the source.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from nadi.cluster.admin.cluster_view import SharedStore, opened, read_records
from nadi.engines.engine import LogEngine
from nadi.engines.identity import forget_cluster, known_cluster
from nadi.engines.opening import open_engines
from nadi.engines.urls import folder_of
from nadi.errors import ConflictError, FencedError
from nadi.migration import migration_lock as marks
from nadi.migration.migration_lock import Turn
from nadi.migration.sources import alone, url_of
from nadi.runtime import REAL
from nadi.segmentstore import moved
from nadi.segmentstore.datafolder import TIER2, FolderLock, find_format
from nadi.segmentstore.moved import Incoming, Moved
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, MovedAway, Records


async def take_back_folder(folder: Path, options: dict[str, str]) -> str:
    """Let a data folder be served again; return where its data was moved. options: of that store.

    ConflictError: it wasn't moved, servers have used the cluster since, or a migration is under way.
    DataFolderError, StoreError, UnavailableError: folder or store can't be used.
    """
    only = alone(folder)
    try:
        lock = FolderLock(folder)
        try:
            left = moved.moved(folder)
            if left is None:
                raise ConflictError(f"{folder} wasn't moved: nothing is to be taken back")
            engine, registry = await open_engines(left.to, REAL, **options)
            try:
                async with Turn(registry, left.to) as turn:
                    await _close_cluster(folder, left, engine, options, turn)
                    await REAL.in_thread(moved.clear_moved, folder)
            finally:
                await engine.close()
            return left.to
        finally:
            lock.release()
    finally:
        os.close(only)


async def _close_cluster(folder: Path, left: Moved, engine: LogEngine, options: dict[str, str], turn: Turn) -> None:
    """Make sure that no server can use the cluster that the data was moved to; a migration can go on with it."""
    cluster = await known_cluster(engine, "", REAL)
    if cluster is None or cluster.cluster != left.migration:  # it didn't come to that
        return
    async with opened(left.to, options) as shared:
        await turn.keep()
        await _shut(shared, folder)
        source = await ChunkStore.in_folder(folder / TIER2).mark()
        await marks.begin_anew(engine, left.to, Incoming(source, url_of(folder), left.migration, cluster.containers))
        await turn.keep()
        await forget_cluster(engine, REAL)


async def _shut(shared: SharedStore, folder: Path) -> None:
    """Let nobody claim its containers any more, unless somebody has."""
    records = await read_records(shared)
    changing = Records(shared.registry, REAL)
    used = ConflictError(
        "servers have used the cluster that the data was moved to, and what was written there isn't in the folder: "
        "bring it back with `nadi migrate --from URL --to-data FOLDER`, into another folder. If you know that nothing "
        f"of it is needed, remove {folder / 'moved'}, and never start the cluster again"
    )
    if any(record.owner for record in records):
        raise used
    shut: list[int] = []
    try:
        for number, record in enumerate(records):
            await changing.move_away(number, record.epoch, MovedAway(url_of(folder), ""))
            shut.append(number)
    except FencedError as error:  # a server is starting
        await _open_again(changing, records, shut)
        raise used from error


async def take_back_cluster(url: str, options: dict[str, str]) -> str:
    """Let a cluster's store be served again; return where its data was moved.

    ConflictError: it wasn't moved, a folder of this machine has the data, or a migration is under way.
    DataFolderError, StoreError, UnavailableError: as `take_back_folder`.
    """
    async with opened(url, options) as shared, Turn(shared.registry, url) as turn:
        records = await read_records(shared)
        left = [number for number, record in enumerate(records) if record.moved is not None]
        there = records[left[0]].moved if left else None
        if there is None:
            raise ConflictError(f"the cluster in {url} wasn't moved: nothing is to be taken back")
        folder = folder_of(there.to)
        assert folder is not None, "a cluster is moved to a folder"
        await turn.keep()
        if not folder.is_dir():  # of another machine, or gone
            await _open_again(Records(shared.registry, REAL), records, left)
            return there.to
        lock = FolderLock(folder)
        try:
            if find_format(folder).own == "" and moved.incoming(folder) is None:
                raise ConflictError(
                    f"{folder} has the data, and servers may have used it: move it back from there, to another URL, "
                    f"with `nadi migrate --data {folder} --to URL`. If you know that nothing of it is needed, remove "
                    "it, and do this again"
                )
            await _open_again(Records(shared.registry, REAL), records, left)
        finally:
            lock.release()
        return there.to


async def _open_again(changing: Records, records: Sequence[ContainerRecord], numbers: Sequence[int]) -> None:
    for number in numbers:
        await changing.take_back(number, records[number].epoch)
