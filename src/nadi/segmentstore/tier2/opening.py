"""The chunk store of a data folder: in the folder, or wherever the folder says."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from nadi.errors import DataFolderError, StoreError, UnavailableError
from nadi.object_log.failures import RefusedError, public
from nadi.object_log.identity import NAME, read_cluster
from nadi.object_log.opening import open_of_chunks
from nadi.object_log.urls import folder_of
from nadi.runtime import Runtime
from nadi.segmentstore.data_dir import (
    FORMAT,
    TIER2,
    StoreFile,
    Tier2,
    check_outside,
    check_stays,
    container_folders,
    find,
    has_chunks,
    is_pristine,
    make_containers,
    normal,
)
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.claim import StoreClaim, check_is_elsewhere, gone


def chunks_of(folder: Path, store: StoreFile, options: dict[str, str], runtime: Runtime) -> ChunkStore:
    """For a server, which then starts the store's `claim`, if it is elsewhere. options: as that is reached. Blocking.
    InvalidArgumentError: it isn't a store's URL, or its options lack something. UnavailableError: it is in a folder
    that isn't there now."""
    if not store.url:
        return ChunkStore.in_folder(folder / TIER2, runtime)
    _check_there(folder, store)
    return ChunkStore.at(store.url, runtime, options, StoreClaim(folder, store, options, runtime))


@contextmanager
def looked_at(folder: Path, runtime: Runtime) -> Iterator[ChunkStore]:
    """That of a stopped folder, to read from; an empty one elsewhere if the folder has lost its own. Blocking.
    StoreError: it is elsewhere, and not the folder's, as when a disk isn't mounted: no chunk is missing for that.
    UnavailableError: it doesn't answer. Others: as `chunks_of`."""
    store = find(folder).store
    if store is not None and store.is_elsewhere:
        _check_there(folder, store)
        chunks = ChunkStore.from_url(store.url, **store.options)
        if not chunks.has(NAME):
            raise StoreError(gone(folder, store.url))
        yield chunks
    elif (folder / TIER2).is_dir():
        yield ChunkStore.in_folder(folder / TIER2, runtime)
    else:
        with tempfile.TemporaryDirectory(prefix="nadi-no-chunks-") as temporary:
            yield ChunkStore.in_folder(Path(temporary), runtime)


@asynccontextmanager
async def taken_over(folder: Path, runtime: Runtime) -> AsyncIterator[ChunkStore]:
    """That of a stopped folder, to change it. Raises: as `chunks_of`, and `StoreClaim.confirm`."""
    store = find(folder).store
    if store is None or not store.is_elsewhere:
        yield ChunkStore.in_folder(folder / TIER2, runtime)
        return
    chunks = chunks_of(folder, store, store.options, runtime)
    assert chunks.claim is not None, "it is elsewhere"
    try:
        await chunks.claim.confirm()
        yield chunks
    finally:
        await chunks.claim.close()


async def claim_anew(folder: Path, at: Tier2 | None, runtime: Runtime) -> str:
    """Make the store the folder's, whichever copy had it, and begin the folder anew if it is empty; return its URL. It
    may be killed, and done again. at: None is the store that the folder names. DataFolderError: the folder names none,
    has chunks of its own, was moved, or has other containers. InvalidArgumentError: it isn't the URL of a store that
    can have them. StoreError: the store isn't a data folder's, or another folder's. UnavailableError: it isn't known
    whether it was claimed."""
    store = find(folder).store
    if store is not None:
        check_stays(folder, store)
    if at is None:
        if store is None or not store.is_elsewhere:
            raise DataFolderError(f"{folder} names no store of its chunks: say which, with --tier2")
        at = Tier2(store.url, store.options)
    url = normal(at.url)
    check_outside(folder, url)
    if has_chunks(folder):
        raise DataFolderError(
            f"the data folder {folder} has its chunks in {folder / TIER2}: `nadi migrate` moves them to a new folder; "
            f"if they are left of an earlier try, set {folder / TIER2} aside first"
        )
    elsewhere = folder_of(url)
    if elsewhere is not None and not elsewhere.is_dir():
        raise StoreError(f"there is no folder {elsewhere}: see whether the URL is right, and whether it is mounted")
    engine, _ = await open_of_chunks(url, runtime, **at.options)
    try:
        cluster = await read_cluster(engine)
    except RefusedError as error:
        raise StoreError(str(error)) from None
    finally:
        await engine.close()
    if cluster is None:
        raise StoreError(f"there are no chunks in {url}: see whether the URL is right")
    check_is_elsewhere(cluster, url)
    new = StoreFile(FORMAT, cluster.cluster, cluster.containers, url, public(at.options))
    if store is not None and store.is_elsewhere and store.cluster != new.cluster:
        raise StoreError(f"{url} has the chunks of another data folder: see whether the URL is right")
    there = container_folders(folder)
    if all(map(is_pristine, there.values())):
        make_containers(folder, new.containers)  # only the claim says whose they are
    elif set(there) != set(range(new.containers)):
        raise DataFolderError(f"{url} has {new.containers} containers, and {folder} has others: see if it is the one")
    claim = StoreClaim(folder, new, at.options, runtime)
    try:
        await claim.take_over()
    except RefusedError as error:
        raise StoreError(str(error)) from None
    finally:
        await claim.close()
    return url


def _check_there(folder: Path, store: StoreFile) -> None:
    elsewhere = folder_of(store.url)
    if elsewhere is not None and store.is_elsewhere and not elsewhere.is_dir():
        raise UnavailableError(
            f"there is no {elsewhere} now, where the chunks of {folder} are: see whether it is mounted"
        )
