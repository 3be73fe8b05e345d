"""What a migration would do, for `--dry-run`, and whether its two ends may be what they are. Nothing is written:
neither end is opened as a migration opens it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from nadi.cluster.admin.cluster_view import living, opened, read_records
from nadi.engines.identity import check_count, read_cluster, refuse_strangers
from nadi.engines.opening import open_of_chunks
from nadi.engines.urls import folder_of
from nadi.errors import InvalidArgumentError, StoreError
from nadi.migration import migration_lock as marks
from nadi.migration.sources import read_all, store_of
from nadi.migration.states import States
from nadi.migration.targets import check_empty
from nadi.runtime import REAL
from nadi.segmentstore.datafolder import INCOMING, check_stays, find
from nadi.segmentstore.state.stored import EXTENT
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.opening import looked_at
from nadi.segmentstore.tier2.records import ContainerRecord
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
