"""Taking a migration back: the source is served again, as it was when it was left. Only while nobody has used the
target since: what was written there isn't in the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from nadi.cluster.admin.cluster_view import SharedStore, opened, read_records
from nadi.engines.identity import MIGRATION, NAME, read_cluster
from nadi.engines.opening import open_engines, open_of_chunks
from nadi.engines.outcomes import patiently
from nadi.engines.urls import folder_of
from nadi.errors import ConflictError, FencedError
from nadi.migration import migration_lock as marks
from nadi.migration.migration_lock import Incoming, Turn
from nadi.migration.sources import read_all, store_of, store_url, url_of
from nadi.runtime import REAL
from nadi.segmentstore.datafolder import FolderLock, find
from nadi.segmentstore.tier2.records import ContainerRecord, MovedAway, Records


async def take_back_folder(folder: Path, options: dict[str, str]) -> str:
    """Let a data folder be served again; return where its data was moved. options: of that store.

    ConflictError: it wasn't moved, servers have used the target since, or a migration is under way.
    DataFolderError, StoreError, UnavailableError: folder or store can't be used.
    """
    said = store_of(folder)
    engine, registry = await open_of_chunks(store_url(folder, said), REAL, **said.options)
    try:
        stored, url = Records(registry, REAL, is_alone=not said.url), url_of(folder)
        async with Turn(registry, url) as turn:
            lock = FolderLock(folder)
            try:
                records = await read_all(stored, said.containers)
                to = await _take_back(url, said.cluster, stored, records, turn, options)
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
        records, stored = await read_records(shared), Records(shared.registry, REAL)
        return await _take_back(url, shared.cluster.cluster, stored, records, turn, options)


async def _take_back(
    url: str, source: str, stored: Records, records: Sequence[ContainerRecord], turn: Turn, options: dict[str, str]
) -> str:
    numbers = [number for number, record in enumerate(records) if record.moved is not None]
    there = records[numbers[0]].moved if numbers else None
    if there is None:
        raise ConflictError(f"{url} wasn't moved: nothing is to be taken back")
    folder = folder_of(there.to)
    if folder is not None and find(folder).store is not None:
        raise ConflictError(
            f"{folder} has the data, and servers may have used it: move it back from there, to another place, with "
            f"`nadi migrate {folder} TO`. If you know that nothing of it is needed, remove it, and do this again"
        )
    if folder is None or folder.is_dir():  # else it is another machine's, or gone
        await _close_target(url, source, there, options)
    await turn.keep()
    # the first container last: it says whether a folder is left
    await _open_again(stored, records, list(reversed(numbers)))
    return there.to


async def _close_target(url: str, source: str, there: MovedAway, options: dict[str, str]) -> None:
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
        await _shut(shared, url)
        new = Incoming(source, url, there.migration, shared.cluster.containers)
        await patiently("delete the mark", lambda: shared.engine.delete([MIGRATION]), REAL)
        await marks.begin(shared.engine, there.to, new)
        await turn.keep()
        await patiently(f"delete {NAME}", lambda: shared.engine.delete([NAME]), REAL)  # no server can start


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
