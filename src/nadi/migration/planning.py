"""Checks before a migration, and its undo.

Plans for `--dry-run` and checks of source and target write nothing. Undo lets the source be served again as it was when
it was left, but only once the target is gone: two servers would each have half of the later writes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from nadi.cluster.admin.cluster_view import live_servers, open_shared_store, read_records
from nadi.errors import ConflictError, InvalidArgumentError, StoreError
from nadi.migration import migration_lock as marks
from nadi.migration.migration_lock import MigrationLock
from nadi.migration.sources import read_all, store_of, store_url, url_of
from nadi.migration.states import States
from nadi.migration.targets import check_empty
from nadi.object_log.identity import check_count, read_cluster, refuse_strangers
from nadi.object_log.opening import open_chunk_engines, open_engines
from nadi.object_log.outcomes import patiently
from nadi.object_log.urls import folder_of
from nadi.runtime import REAL
from nadi.segmentstore.data_dir import INCOMING, FolderLock, check_not_moved, find_store
from nadi.segmentstore.state.stored import EXTENT
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.opening import open_read_only
from nadi.segmentstore.tier2.records import ContainerRecord, ContainerRecords
from nadi.segmentstore.tier2.records import check_stays as check_record


class Plan(msgspec.Struct, frozen=True):
    """Size of a migration, from the source's newest snapshots. containers: of the source. logged_bytes: not in chunks
    yet. servers: of the cluster, which must be stopped first."""

    containers: int
    segments: int
    chunks: int
    bytes: int
    logged_bytes: int
    servers: tuple[str, ...] = ()


def check_apart(source: str, target: str) -> None:
    """Raise InvalidArgumentError if the two URLs name the same place, or one is inside the other."""
    places = []
    for url in (source, target):
        folder, (scheme, _, path) = folder_of(url), url.partition("://")
        places.append((scheme, folder.resolve() if folder is not None else Path(path)))
    (from_scheme, from_path), (to_scheme, to_path) = places
    if from_scheme != to_scheme:
        return
    if from_path == to_path:
        raise InvalidArgumentError(f"{source} can't be moved to itself: choose another target")
    if from_path.is_relative_to(to_path) or to_path.is_relative_to(from_path):
        raise InvalidArgumentError(f"one of {source} and {target} is inside the other: choose another target")


async def plan_of_folder(folder: Path) -> Plan:
    """Plan for a data folder. DataFolderError: it isn't one, or was moved before. UnavailableError: it can't be
    read."""
    store = store_of(folder)
    check_not_moved(folder, store)
    with open_read_only(folder, REAL) as chunks:
        try:
            if store.is_encrypted:
                await chunks.unlock()
            return await _plan(chunks, await read_all(await chunks.records(), store.containers), ())
        finally:
            await chunks.close()


async def plan_of_cluster(url: str, options: dict[str, str]) -> Plan:
    """Plan for a cluster's store. StoreError: it has no cluster, or was moved before. UnavailableError: it can't be
    read."""
    async with open_shared_store(url, options, unlocks=True) as shared:
        records = await read_records(shared)
        return await _plan(shared.chunks, records, tuple(await live_servers(shared)))


async def _plan(chunks: ChunkStore, records: Sequence[ContainerRecord], servers: tuple[str, ...]) -> Plan:
    for record in records:
        check_record(record)
    with (
        tempfile.TemporaryDirectory(prefix="nadi-migrate-", dir=chunks.sealing.scratch) as scratch,
        await States.fetch(chunks, records, Path(scratch)) as states,
    ):

        def count() -> Plan:
            chunks = size_bytes = logged_bytes = 0
            for _, _, value in states.rows("extents"):
                length, sequence = EXTENT.unpack_from(value)[:2]
                if sequence:
                    logged_bytes += length
                else:
                    chunks, size_bytes = chunks + 1, size_bytes + length
            return Plan(
                len(records), sum(1 for _ in states.rows("segments")), chunks, size_bytes, logged_bytes, servers
            )

        return await REAL.in_thread(count)


async def check_target_store(url: str, options: dict[str, str], containers: int | None) -> bool:
    """Check a target store. Return whether a migration to it has begun. StoreError: it has other data."""
    check_count(containers)
    folder = folder_of(url, **options)
    if folder is not None and not folder.is_dir():
        return False
    engine, _ = await open_chunk_engines(url, REAL, **options)
    try:
        if await read_cluster(engine) is not None:
            raise StoreError(f"{url} already has an owner: choose another target")
        if await marks.incoming(engine, url) is not None:
            return True
        await refuse_strangers(engine, REAL)
        return False
    finally:
        await engine.close()


async def check_target_folder(folder: Path, tier2: str | None, options: dict[str, str]) -> bool:
    """Check a target folder. Return whether a migration to it has begun. DataFolderError, StoreError: it has other
    data."""
    check_empty(folder)
    if find_store(folder).store is not None:
        raise StoreError(f"{folder} is already a data folder: choose an empty one")
    if tier2 is not None:
        return await check_target_store(tier2, options, None)
    return (folder / INCOMING).exists()


async def undo_folder(folder: Path, options: dict[str, str]) -> str:
    """Let a data folder be served again; return the place its data was moved to.

    options: of that place's store. ConflictError: the folder wasn't moved, the target still exists, or a migration is
    under way. DataFolderError, StoreError, UnavailableError: folder or store can't be used.
    """
    store_file = store_of(folder)
    engine, registry = await open_chunk_engines(store_url(folder, store_file), REAL, **store_file.options)
    try:
        stored, url = ContainerRecords(registry, REAL, is_alone=not store_file.url), url_of(folder)
        async with MigrationLock(registry, url) as lock:
            folder_lock = FolderLock(folder)
            try:
                records = await read_all(stored, store_file.containers)
                to = await _take_back(url, stored, records, lock, options)
                latest = await read_all(stored, store_file.containers) if store_file.url else []
                epochs = tuple(record.epoch for record in latest)
                restored = replace(store_file, epochs=epochs, next="", moved_to="", moved_by="")
                await REAL.in_thread(restored.write, folder)
            finally:
                folder_lock.release()
    finally:
        await engine.close()
    return to


async def undo_cluster(url: str, options: dict[str, str]) -> str:
    """Let a cluster's store be served again; return the place its data was moved to. Errors: as `undo_folder`."""
    async with open_shared_store(url, options) as shared, MigrationLock(shared.registry, url) as lock:
        records, stored = await read_records(shared), ContainerRecords(shared.registry, REAL)
        return await _take_back(url, stored, records, lock, options)


async def _take_back(
    url: str, stored: ContainerRecords, records: Sequence[ContainerRecord], lock: MigrationLock, options: dict[str, str]
) -> str:
    numbers = [number for number, record in enumerate(records) if record.moved is not None]
    moved = records[numbers[0]].moved if numbers else None
    if moved is None:
        raise ConflictError(f"{url} wasn't moved, so there is nothing to undo")
    folder = folder_of(moved.to)
    place = ""  # that still has the data
    if folder is not None and find_store(folder).store is not None:
        place = str(folder)
    elif folder is None or folder.is_dir():  # otherwise it is on another machine, or removed
        engine, _ = await open_engines(moved.to, REAL, **options)
        try:
            cluster = await patiently("read its owner", partial(read_cluster, engine), REAL)
        finally:
            await engine.close()
        if cluster is not None and cluster.cluster == moved.migration:
            place = moved.to
    if place:
        raise ConflictError(
            f"{place} still has the data, and servers may have changed it: move it from there to a new place with "
            f"`nadi migrate {place} TO`. If you are sure that it isn't needed, delete it, and run this again"
        )
    await lock.keep()
    for number in reversed(numbers):  # the first container last: it decides whether a folder counts as moved
        await stored.take_back(number, records[number].epoch)
    return moved.to
