"""What a migration would do, for `--dry-run`, and whether its two ends may be what they are. Nothing is written:
neither end is opened as a migration opens it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from nadi.cluster.admin.cluster_view import living, opened, read_records
from nadi.engines.identity import check_count, known_cluster, refuse_strangers
from nadi.engines.opening import open_engines
from nadi.engines.urls import folder_of
from nadi.errors import DataFolderError, InvalidArgumentError, StoreError
from nadi.migration import migration_lock as marks
from nadi.migration.ends import Snapshots
from nadi.migration.states import States
from nadi.runtime import REAL
from nadi.segmentstore import moved
from nadi.segmentstore.datafolder import TIER2, check_version, find_format
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.state.stored import EXTENT
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.whereabouts import check_within


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
    one, other = (_place(url) for url in (source, target))
    if one == other:
        raise InvalidArgumentError(f"{source} is to be moved to itself: give another place")
    if one[0] == other[0] and (one[1].is_relative_to(other[1]) or other[1].is_relative_to(one[1])):
        raise InvalidArgumentError(f"{source} and {target} lie within each other: give a place of its own")


def _place(url: str) -> tuple[str, Path]:
    folder = folder_of(url)
    scheme, _, rest = url.partition("://")
    return (scheme, folder.resolve() if folder is not None else Path(rest))


async def plan_of_folder(folder: Path) -> Plan:
    """DataFolderError: it isn't a data folder, or was moved before. UnavailableError: it can't be read."""
    check_version(folder)
    moved.check(folder)
    check_within(folder, "moved")
    found = find_format(folder).format
    if found is None:
        raise DataFolderError(f"{folder} isn't a data folder: its file `format` is missing")
    chunks = ChunkStore.in_folder(folder / TIER2)
    return await _plan(chunks, [(await snapshots.newest(chunks, number))[0] for number in range(found.containers)], ())


async def plan_of_cluster(url: str, options: dict[str, str]) -> Plan:
    """StoreError: there is no cluster, or it was moved before. UnavailableError: it can't be read."""
    async with opened(url, options) as shared:
        records = await read_records(shared)
        there = next((record.moved for record in records if record.moved is not None), None)
        if there is not None:
            raise StoreError(f"the data of the cluster in {url} was moved to {there.to}")
        servers = tuple(await living(shared))
        return await _plan(shared.chunks, [record.snapshot for record in records], servers)


async def _plan(chunks: ChunkStore, manifests: Snapshots, servers: tuple[str, ...]) -> Plan:
    with (
        tempfile.TemporaryDirectory(prefix="nadi-migrate-") as scratch,
        await States.fetch(chunks, manifests, Path(scratch)) as states,
    ):
        return await REAL.in_thread(_counted, states, len(manifests), servers)


def _counted(states: States, containers: int, servers: tuple[str, ...]) -> Plan:
    count = size_bytes = logged_bytes = 0
    for _, _, value in states.rows("extents"):
        length, sequence = EXTENT.unpack_from(value)[:2]
        if sequence:
            logged_bytes += length
        else:
            count, size_bytes = count + 1, size_bytes + length
    return Plan(containers, sum(1 for _ in states.names()), count, size_bytes, logged_bytes, servers)


async def look_at_store(url: str, options: dict[str, str], containers: int | None) -> bool:
    """Whether a migration to there has begun. StoreError: something else is there."""
    check_count(containers)
    folder = folder_of(url, **options)
    if folder is not None and not folder.is_dir():
        return False
    engine, _ = await open_engines(url, REAL, **options)
    try:
        if await known_cluster(engine, "", REAL) is not None:
            raise StoreError(f"{url} is the store of a cluster already: give another URL")
        if await marks.begun(engine, url) is not None:
            return True
        await refuse_strangers(engine, REAL)
        return False
    finally:
        await engine.close()


def look_at_folder(folder: Path) -> bool:
    """Whether a migration to there has begun. DataFolderError: something else is there."""
    if not folder.exists():
        return False
    if moved.incoming(folder) is not None:
        return True
    check_empty(folder)
    return False


def check_empty(folder: Path) -> None:
    """Raise DataFolderError if a new data folder can't be there."""
    others = sorted(path.name for path in folder.iterdir() if path.name != "lock")
    if others:
        raise DataFolderError(f"{folder} isn't empty, it has {', '.join(others[:3])}: give an empty folder")
