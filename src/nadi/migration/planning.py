"""Before and after a migration. What it would do, for `--dry-run`, and whether its two ends may be what they are;
nothing is written. And taking it back: the source is served again as it was when it was left, but only once what it was
moved to is gone, for two servers would each have half of what is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from nadi.cluster.admin.cluster_view import living, opened, read_records
from nadi.errors import ConflictError, InvalidArgumentError, StoreError
from nadi.migration import migration_lock as marks
from nadi.migration.migration_lock import Turn
from nadi.migration.sources import read_all, store_of, store_url, url_of
from nadi.migration.states import States
from nadi.migration.targets import check_empty
from nadi.object_log.identity import check_count, read_cluster, refuse_strangers
from nadi.object_log.opening import open_engines, open_of_chunks
from nadi.object_log.outcomes import patiently
from nadi.object_log.urls import folder_of
from nadi.runtime import REAL
from nadi.segmentstore.data_dir import INCOMING, FolderLock, check_stays, find
from nadi.segmentstore.state.stored import EXTENT
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.opening import looked_at
from nadi.segmentstore.tier2.records import ContainerRecord, ContainerRecords
from nadi.segmentstore.tier2.records import check_stays as check_record


class Plan(msgspec.Struct, frozen=True):
    """As the newest snapshots of the source have it. containers: of the source. logged_bytes: not in chunks yet.
    servers: of the cluster, which must be stopped before."""

    containers: int
    segments: int
    chunks: int
    bytes: int
    logged_bytes: int
    servers: tuple[str, ...] = ()


def check_apart(source: str, target: str) -> None:
    """Raise InvalidArgumentError if the two URLs are the same place, or one lies within the other."""
    places = []
    for url in (source, target):
        folder, (scheme, _, rest) = folder_of(url), url.partition("://")
        places.append((scheme, folder.resolve() if folder is not None else Path(rest)))
    one, other = places
    if one == other:
        raise InvalidArgumentError(f"{source} is to be moved to itself: give another place")
    if one[0] == other[0] and (one[1].is_relative_to(other[1]) or other[1].is_relative_to(one[1])):
        raise InvalidArgumentError(f"{source} and {target} lie within each other: give a place of its own")


async def plan_of_folder(folder: Path) -> Plan:
    """DataFolderError: it isn't a data folder, or was moved before. UnavailableError: it can't be read."""
    store = store_of(folder)
    check_stays(folder, store)
    with looked_at(folder, REAL) as chunks:
        try:
            return await _plan(chunks, await read_all(await chunks.records(), store.containers), ())
        finally:
            await chunks.close()


async def plan_of_cluster(url: str, options: dict[str, str]) -> Plan:
    """StoreError: there is no cluster, or it was moved before. UnavailableError: it can't be read."""
    async with opened(url, options) as shared:
        records = await read_records(shared)
        return await _plan(shared.chunks, records, tuple(await living(shared)))


async def _plan(chunks: ChunkStore, records: Sequence[ContainerRecord], servers: tuple[str, ...]) -> Plan:
    for record in records:
        check_record(record)
    with (
        tempfile.TemporaryDirectory(prefix="nadi-migrate-") as scratch,
        await States.fetch(chunks, records, Path(scratch)) as states,
    ):

        def counted() -> Plan:
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

        return await REAL.in_thread(counted)


async def look_at_store(url: str, options: dict[str, str], containers: int | None) -> bool:
    """Whether a migration to there has begun. StoreError: something else is there."""
    check_count(containers)
    folder = folder_of(url, **options)
    if folder is not None and not folder.is_dir():
        return False
    engine, _ = await open_of_chunks(url, REAL, **options)
    try:
        if await read_cluster(engine) is not None:
            raise StoreError(f"{url} has an owner already: give another place")
        if await marks.begun(engine, url) is not None:
            return True
        await refuse_strangers(engine, REAL)
        return False
    finally:
        await engine.close()


async def look_at_folder(folder: Path, tier2: str | None, options: dict[str, str]) -> bool:
    """Whether a migration to there has begun. DataFolderError, StoreError: something else is there."""
    check_empty(folder)
    if find(folder).store is not None:
        raise StoreError(f"{folder} is a data folder already: give an empty one")
    if tier2 is not None:
        return await look_at_store(tier2, options, None)
    return (folder / INCOMING).exists()


async def take_back_folder(folder: Path, options: dict[str, str]) -> str:
    """Let a data folder be served again; return where its data was moved. options: of that store. ConflictError: it
    wasn't moved, the target is there, or a migration is under way. DataFolderError, StoreError, UnavailableError:
    folder or store can't be used."""
    said = store_of(folder)
    engine, registry = await open_of_chunks(store_url(folder, said), REAL, **said.options)
    try:
        stored, url = ContainerRecords(registry, REAL, is_alone=not said.url), url_of(folder)
        async with Turn(registry, url) as turn:
            lock = FolderLock(folder)
            try:
                records = await read_all(stored, said.containers)
                to = await _take_back(url, stored, records, turn, options)
                epochs = tuple(one.epoch for one in await read_all(stored, said.containers)) if said.url else ()
                await REAL.in_thread(replace(said, epochs=epochs, next="", moved_to="", moved_by="").write, folder)
            finally:
                lock.release()
    finally:
        await engine.close()
    return to


async def take_back_cluster(url: str, options: dict[str, str]) -> str:
    """Let a cluster's store be served again; return where its data was moved. Errors: as `take_back_folder`."""
    async with opened(url, options) as shared, Turn(shared.registry, url) as turn:
        records, stored = await read_records(shared), ContainerRecords(shared.registry, REAL)
        return await _take_back(url, stored, records, turn, options)


async def _take_back(
    url: str, stored: ContainerRecords, records: Sequence[ContainerRecord], turn: Turn, options: dict[str, str]
) -> str:
    numbers = [number for number, record in enumerate(records) if record.moved is not None]
    there = records[numbers[0]].moved if numbers else None
    if there is None:
        raise ConflictError(f"{url} wasn't moved: nothing is to be taken back")
    folder = folder_of(there.to)
    place = ""  # which has the data
    if folder is not None and find(folder).store is not None:
        place = str(folder)
    elif folder is None or folder.is_dir():  # else it is another machine's, or gone
        engine, _ = await open_engines(there.to, REAL, **options)
        try:
            cluster = await patiently("see whose it is", partial(read_cluster, engine), REAL)
        finally:
            await engine.close()
        if cluster is not None and cluster.cluster == there.migration:
            place = there.to
    if place:
        raise ConflictError(
            f"{place} has the data, and servers may have used it: move it back from there, to another place, with "
            f"`nadi migrate {place} TO`. If you know that nothing of it is needed, remove it, and do this again"
        )
    await turn.keep()
    for number in reversed(numbers):  # the first container last: it says whether a folder is left
        await stored.take_back(number, records[number].epoch)
    return there.to
