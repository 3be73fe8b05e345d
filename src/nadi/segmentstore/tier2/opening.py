"""Opens the chunk store of a data folder, in the folder or at the URL that it names."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from nadi.errors import DataFolderError, StoreError, UnavailableError
from nadi.object_log.failures import RefusedError, public
from nadi.object_log.identity import NAME, read_cluster
from nadi.object_log.opening import open_chunk_engines
from nadi.object_log.urls import folder_of
from nadi.runtime import Runtime
from nadi.segmentstore.data_dir import (
    ENCRYPTED_FORMAT,
    FORMAT,
    TIER2,
    StoreFile,
    Tier2,
    check_not_moved,
    check_outside,
    container_folders,
    find_store,
    has_chunks,
    is_pristine,
    make_containers,
    normalized_url,
)
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.claim import StoreClaim, check_is_elsewhere, missing_store


def chunks_of(folder: Path, store: StoreFile, options: dict[str, str], runtime: Runtime) -> ChunkStore:
    """Return the chunk store for a server, which then starts the store's `claim`, if it is external. options: for
    reaching it. Blocking. InvalidArgumentError: the URL or its options are invalid. UnavailableError: its folder is
    missing now."""
    if not store.url:
        return ChunkStore.in_folder(folder / TIER2, runtime)
    _check_mounted(folder, store)
    return ChunkStore.at(store.url, runtime, options, StoreClaim(folder, store, options, runtime))


@contextmanager
def open_read_only(folder: Path, runtime: Runtime) -> Iterator[ChunkStore]:
    """Open the chunk store of a stopped folder read-only; empty if the folder has lost its own one. Blocking.
    StoreError: it is external, and isn't the folder's, as when a disk isn't mounted: its chunks don't count as missing.
    UnavailableError: it doesn't answer. Else raises as `chunks_of`."""
    store = find_store(folder).store
    if store is not None and store.is_elsewhere:
        _check_mounted(folder, store)
        chunks = ChunkStore.from_url(store.url, **store.options)
        if not chunks.has(NAME):
            raise StoreError(missing_store(folder, store.url))
        yield chunks
    elif (folder / TIER2).is_dir():
        yield ChunkStore.in_folder(folder / TIER2, runtime)
    else:
        with tempfile.TemporaryDirectory(prefix="nadi-no-chunks-") as temporary:
            yield ChunkStore.in_folder(Path(temporary), runtime)


@asynccontextmanager
async def open_for_changes(folder: Path, runtime: Runtime) -> AsyncIterator[ChunkStore]:
    """Open the chunk store of a stopped folder for changes. Raises as `chunks_of` and `StoreClaim.confirm`."""
    store = find_store(folder).store
    if store is None or not store.is_elsewhere:
        chunks = ChunkStore.in_folder(folder / TIER2, runtime)
        if store is not None and store.is_encrypted:
            await chunks.unlock()
        yield chunks
        return
    chunks = chunks_of(folder, store, store.options, runtime)
    assert chunks.claim is not None, "it is external"
    try:
        await chunks.claim.confirm()
        if store.is_encrypted:
            await chunks.unlock()
        yield chunks
    finally:
        await chunks.claim.close()


async def reclaim(folder: Path, at: Tier2 | None, runtime: Runtime) -> str:
    """Claim the store for the folder, whichever copy had it, creating an empty folder's files; return its URL. Can be
    repeated after a kill. at: None is the store that the folder names. DataFolderError: the folder names none, has its
    own chunks, was moved, or has a different number of containers. InvalidArgumentError: the URL isn't a valid store.
    StoreError: the store isn't a data folder's, or another folder's. UnavailableError: the outcome is unknown."""
    store = find_store(folder).store
    if store is not None:
        check_not_moved(folder, store)
    if at is None:
        if store is None or not store.is_elsewhere:
            raise DataFolderError(f"{folder} doesn't name the store of its chunks: pass --tier2")
        at = Tier2(store.url, store.options)
    url = normalized_url(at.url)
    check_outside(folder, url)
    if has_chunks(folder):
        raise DataFolderError(
            f"the data folder {folder} has its chunks in {folder / TIER2}: `nadi migrate` moves them to a new folder; "
            f"if they are left over from an earlier attempt, move {folder / TIER2} aside first"
        )
    elsewhere = folder_of(url)
    if elsewhere is not None and not elsewhere.is_dir():
        raise StoreError(f"the folder {elsewhere} is missing: check the URL, and that it is mounted")
    engine, _ = await open_chunk_engines(url, runtime, **at.options)
    try:
        cluster = await read_cluster(engine)
    except RefusedError as error:
        raise StoreError(str(error)) from None
    finally:
        await engine.close()
    if cluster is None:
        raise StoreError(f"{url} has no chunks: check the URL")
    check_is_elsewhere(cluster, url)
    form = ENCRYPTED_FORMAT if cluster.is_encrypted else FORMAT
    new = StoreFile(form, cluster.cluster, cluster.containers, url, public(at.options))
    if store is not None and store.is_elsewhere and store.cluster != new.cluster:
        raise StoreError(f"{url} has the chunks of another data folder: check the URL")
    existing = container_folders(folder)
    if all(map(is_pristine, existing.values())):
        make_containers(folder, new.containers)  # they belong to no store before the claim
    elif set(existing) != set(range(new.containers)):
        raise DataFolderError(f"{url} has {new.containers} containers, but {folder} has others: check the URL")
    claim = StoreClaim(folder, new, at.options, runtime)
    try:
        await claim.take_over()
    except RefusedError as error:
        raise StoreError(str(error)) from None
    finally:
        await claim.close()
    return url


def _check_mounted(folder: Path, store: StoreFile) -> None:
    elsewhere = folder_of(store.url)
    if elsewhere is not None and store.is_elsewhere and not elsewhere.is_dir():
        raise UnavailableError(
            f"the folder {elsewhere} with the chunks of {folder} is missing: check that it is mounted"
        )
