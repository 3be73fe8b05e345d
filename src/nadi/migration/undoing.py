"""Taking a migration back: the source is served again, as it was when it was left. Only while nobody has used the
target since: what was written there isn't in the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from nadi.cluster.admin.cluster_view import SharedStore, opened, read_records
from nadi.engines.engine import Registry
from nadi.engines.identity import forget_cluster, read_cluster
from nadi.engines.opening import open_engines, open_of_chunks
from nadi.engines.urls import folder_of
from nadi.errors import ConflictError, FencedError
from nadi.migration import migration_lock as marks
from nadi.migration.migration_lock import Incoming, Turn
from nadi.migration.sources import store_of, store_url, url_of
from nadi.runtime import REAL
from nadi.segmentstore.datafolder import FolderLock, find
from nadi.segmentstore.tier2.records import ContainerRecord, MovedAway, Records


class _Left:
    """A source, open: its store's records, and its id."""

    def __init__(self, url: str, source: str, registry: Registry, containers: int, *, is_alone: bool) -> None:
        self.url, self.id, self.containers = url, source, containers
        self.stored = Records(registry, REAL, is_alone=is_alone)

    async def records(self) -> list[ContainerRecord]:
        return [(await self.stored.read(number)).record for number in range(self.containers)]


async def take_back_folder(folder: Path, options: dict[str, str]) -> str:
    """Let a data folder be served again; return where its data was moved. options: of that store.

    ConflictError: it wasn't moved, servers have used the target since, or a migration is under way.
    DataFolderError, StoreError, UnavailableError: folder or store can't be used.
    """
    said = store_of(folder)
    engine, registry = await open_of_chunks(store_url(folder, said), REAL, **said.options)
    try:
        left = _Left(url_of(folder), said.cluster, registry, said.containers, is_alone=not said.url)
        async with Turn(registry, left.url) as turn:
            lock = FolderLock(folder)
            try:
                to = await _take_back(left, turn, options)
                epochs = tuple(record.epoch for record in await left.records()) if said.url else ()
                await REAL.in_thread(replace(said, epochs=epochs, next="", moved_to="", moved_by="").write, folder)
            finally:
                lock.release()
    finally:
        await engine.close()
    return to


async def take_back_cluster(url: str, options: dict[str, str]) -> str:
    """Let a cluster's store be served again; return where its data was moved. Errors: as `take_back_folder`."""
    async with opened(url, options) as shared:
        left = _Left(url, shared.cluster.cluster, shared.registry, shared.cluster.containers, is_alone=False)
        async with Turn(shared.registry, url) as turn:
            return await _take_back(left, turn, options)


async def _take_back(left: _Left, turn: Turn, options: dict[str, str]) -> str:
    records = await left.records()
    numbers = [number for number, record in enumerate(records) if record.moved is not None]
    there = records[numbers[0]].moved if numbers else None
    if there is None:
        raise ConflictError(f"{left.url} wasn't moved: nothing is to be taken back")
    folder = folder_of(there.to)
    if folder is not None and find(folder).store is not None:
        raise ConflictError(
            f"{folder} has the data, and servers may have used it: move it back from there, to another place, with "
            f"`nadi migrate {folder} TO`. If you know that nothing of it is needed, remove it, and do this again"
        )
    if folder is None or folder.is_dir():  # else it is another machine's, or gone
        await _close_target(left, there, options)
    await turn.keep()
    # the first container last: it says whether a folder is left
    await _open_again(left.stored, records, list(reversed(numbers)))
    return there.to


async def _close_target(left: _Left, there: MovedAway, options: dict[str, str]) -> None:
    """Make sure that no server can use the cluster that the data was moved to; a migration can go on with it."""
    engine, _ = await open_engines(there.to, REAL, **options)
    try:
        cluster = await read_cluster(engine)
    finally:
        await engine.close()
    if cluster is None or cluster.cluster != there.migration:  # it didn't come to that
        return
    async with opened(there.to, options) as shared, Turn(shared.registry, there.to) as turn:
        await turn.keep()
        await _shut(shared, left.url)
        new = Incoming(left.id, left.url, there.migration, shared.cluster.containers)
        await marks.begin_anew(shared.engine, there.to, new)
        await turn.keep()
        await forget_cluster(shared.engine, REAL)


async def _shut(shared: SharedStore, source: str) -> None:
    """Let nobody claim its containers any more, unless somebody has."""
    records = await read_records(shared)
    changing = Records(shared.registry, REAL)
    used = ConflictError(
        "servers have used the cluster that the data was moved to, and what was written there isn't in the source: "
        "bring it back with `nadi migrate URL FOLDER`, into another folder"
    )
    if any(record.owner for record in records):
        raise used
    shut: list[int] = []
    try:
        for number, record in enumerate(records):
            await changing.move_away(number, record.epoch, MovedAway(source, ""))
            shut.append(number)
    except FencedError as error:  # a server is starting
        await _open_again(changing, records, shut)
        raise used from error


async def _open_again(changing: Records, records: Sequence[ContainerRecord], numbers: Sequence[int]) -> None:
    for number in numbers:
        await changing.take_back(number, records[number].epoch)
