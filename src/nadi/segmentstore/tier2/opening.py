"""The chunk store of a data folder: in the folder, or wherever the folder says."""

from __future__ import annotations

from pathlib import Path

from nadi.engines.urls import folder_of
from nadi.errors import UnavailableError
from nadi.runtime import Runtime
from nadi.segmentstore.datafolder import TIER2
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.claim import Claim
from nadi.segmentstore.tier2.whereabouts import Tier2, Whereabouts, chosen


def chunks_of(folder: Path, given: Tier2 | None, runtime: Runtime) -> ChunkStore:
    """For a server that was told `given`, which then starts the store's `claim`, if there is one. Blocking.

    Raises:
        ChunksElsewhereError: the chunks are in another place.
        DataFolderError: the folder doesn't say where they are.
        InvalidArgumentError: it isn't a store's URL, or its options lack something.
        UnavailableError: they are in a folder that isn't there now.
    """
    where = chosen(folder, given, runtime.unique())
    if where is None or given is None:
        return ChunkStore.in_folder(folder / TIER2, runtime)
    return claimed(folder, where, given.options, runtime)


def claimed(folder: Path, where: Whereabouts, options: dict[str, str], runtime: Runtime) -> ChunkStore:
    """The store of `where`, with the folder's claim to it, which isn't started. Errors: see `chunks_of`."""
    elsewhere = folder_of(where.url, **options)
    if elsewhere is not None and where.claimed and not elsewhere.is_dir():
        raise UnavailableError(
            f"there is no {elsewhere} now, where the chunks of {folder} are: see whether it is mounted"
        )
    return ChunkStore.of(Claim(folder, where, options, runtime), runtime)
