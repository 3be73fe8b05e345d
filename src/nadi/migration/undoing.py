"""Taking a migration back: the source is served again, as it was when it was left. Only once what it was moved to is
gone, for two servers would each have half of what is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from nadi.cluster.admin.cluster_view import opened, read_records
from nadi.engines.identity import read_cluster
from nadi.engines.opening import open_engines, open_of_chunks
from nadi.engines.outcomes import patiently
from nadi.engines.urls import folder_of
from nadi.errors import ConflictError
from nadi.migration.migration_lock import Turn
from nadi.migration.sources import read_all, store_of, store_url, url_of
from nadi.runtime import REAL
from nadi.segmentstore.datafolder import FolderLock, find
from nadi.segmentstore.tier2.records import ContainerRecord, Records


async def take_back_folder(folder: Path, options: dict[str, str]) -> str:
    """Let a data folder be served again; return where its data was moved. options: of that store. ConflictError: it
    wasn't moved, the target is there, or a migration is under way. DataFolderError, StoreError, UnavailableError:
    folder or store can't be used."""
    said = store_of(folder)
    engine, registry = await open_of_chunks(store_url(folder, said), REAL, **said.options)
    try:
        stored, url = Records(registry, REAL, is_alone=not said.url), url_of(folder)
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
        records, stored = await read_records(shared), Records(shared.registry, REAL)
        return await _take_back(url, stored, records, turn, options)


async def _take_back(
    url: str, stored: Records, records: Sequence[ContainerRecord], turn: Turn, options: dict[str, str]
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
    # the first container last: it says whether a folder is left
    await _open_again(stored, records, list(reversed(numbers)))
    return there.to


async def _open_again(changing: Records, records: Sequence[ContainerRecord], numbers: Sequence[int]) -> None:
    for number in numbers:
        await changing.take_back(number, records[number].epoch)
