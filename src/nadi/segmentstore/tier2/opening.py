"""The chunk store of a data folder: in the folder, or wherever the folder says."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from nadi.engines.urls import folder_of
from nadi.errors import StoreError, UnavailableError
from nadi.runtime import Runtime
from nadi.segmentstore.datafolder import TIER2
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.claim import NAME, Claim, gone
from nadi.segmentstore.tier2.whereabouts import Tier2, Whereabouts, chosen, find


def chunks_of(folder: Path, given: Tier2 | None, runtime: Runtime) -> ChunkStore:
    """For a server that was told `given`, which then starts the store's `claim`, if there is one. Blocking.

    Raises:
        DataFolderError: the chunks are in another place.
        DataFolderError: the folder doesn't say where they are.
        InvalidArgumentError: it isn't a store's URL, or its options lack something.
        UnavailableError: they are in a folder that isn't there now.
    """
    where = chosen(folder, given, runtime.unique())
    if where is None or given is None:
        return ChunkStore.in_folder(folder / TIER2, runtime)
    return claimed(Claim(folder, where, given.options, runtime), runtime)


@contextmanager
def looked_at(folder: Path, runtime: Runtime) -> Iterator[ChunkStore]:
    """That of a stopped folder, to read from; an empty one elsewhere if the folder has lost its own. Blocking.

    Raises:
        StoreError: it is elsewhere, and not the folder's, as when a disk isn't mounted: no chunk is missing for that.
        UnavailableError: it doesn't answer.
        as `chunks_of`.
    """
    where = find(folder)
    if where is not None and where.claimed:
        _check_there(folder, where)
        chunks = ChunkStore.from_url(where.url, **where.options)
        if not chunks.has(NAME):
            raise StoreError(gone(folder, where.url))
        chunks.changes = False
        yield chunks
    elif (folder / TIER2).is_dir():
        chunks = ChunkStore.in_folder(folder / TIER2, runtime)
        chunks.changes = False
        yield chunks
    else:
        with tempfile.TemporaryDirectory(prefix="nadi-no-chunks-") as temporary:
            yield ChunkStore.in_folder(Path(temporary), runtime)


@asynccontextmanager
async def taken_over(folder: Path, runtime: Runtime) -> AsyncIterator[ChunkStore]:
    """That of a stopped folder, to change it.

    Raises: as `chunks_of`, and `Claim.confirm`.
    """
    where = find(folder)
    if where is None or not where.claimed:
        yield ChunkStore.in_folder(folder / TIER2, runtime)
        return
    claim = Claim(folder, where, where.options, runtime)
    try:
        chunks = claimed(claim, runtime)
        await claim.confirm()
        yield chunks
    finally:
        await claim.close()


def claimed(claim: Claim, runtime: Runtime) -> ChunkStore:
    """The store that is claimed, or will be. Errors: see `chunks_of`."""
    _check_there(claim.folder, claim.where)
    return ChunkStore.of(claim, runtime)


def _check_there(folder: Path, where: Whereabouts) -> None:
    elsewhere = folder_of(where.url)
    if elsewhere is not None and where.claimed and not elsewhere.is_dir():
        raise UnavailableError(
            f"there is no {elsewhere} now, where the chunks of {folder} are: see whether it is mounted"
        )
