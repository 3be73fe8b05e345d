"""The shards of an index on this machine, as one index of tantivy's that follows the manifest.

A shard is fetched once, and unpacked into a cache that all processes of a user share: a folder for each, made whole
before it gets its name. Each process links the files of the shards that the manifest names into a folder of its own, so
that all count together: words' weights, orders and counts are those of the whole index.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
import uuid
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nadi.limits import SEARCH_CACHED_S
from nadi.runtime import REAL
from nadi.search.analysis import prepared
from nadi.search.definition import Definition, Definitions
from nadi.search.shards.manifest import Manifest, Shard
from nadi.search.shards.merging import make_empty
from nadi.search.shards.objects import Shards
from nadi.search.shards.packing import META, files_in, unpack, write_meta

if TYPE_CHECKING:
    from tantivy import Index, Searcher

_LIST = ".segments"  # of a shard in the cache: what tantivy's list has of it
_FETCHED_AT_ONCE = 4
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Opened:
    """The index as a manifest has it."""

    manifest: Manifest
    searcher: Searcher


def cache_folder() -> Path:
    """Where shards are kept between queries: `NADI_SEARCH_CACHE`, or the user's cache."""
    given = os.environ.get("NADI_SEARCH_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(given).expanduser() if given else Path(home).expanduser() / "nadi" / "search"


class LocalIndex:
    """One definition's, for one process."""

    def __init__(
        self, definitions: Definitions, definition: Definition, shards: Shards, cache: Path | None = None
    ) -> None:
        self._definitions, self._definition, self._shards = definitions, definition, shards
        self._cache = (cache or cache_folder()) / definition.id
        self._folder: Path | None = None
        self._index: Index | None = None
        self._linked: dict[str, list[msgspec.Raw]] = {}
        self._opened: Opened | None = None
        self._lock = asyncio.Lock()

    async def newest(self) -> Opened:
        """The index as the newest manifest has it."""
        async with self._lock:
            for _ in range(_TRIES):
                manifest, _ = await self._definitions.manifest(self._definition)
                if self._opened is not None and self._opened.manifest.generation == manifest.generation:
                    return self._opened
                if not await self._fetch(manifest):
                    continue
                try:
                    searcher = await REAL.in_thread(self._open, manifest)
                except FileNotFoundError:  # a process that knows a newer manifest has removed a shard from the cache
                    continue
                self._opened = Opened(manifest, searcher)
                return self._opened
            raise AssertionError("shards are deleted faster than they can be fetched, though they are kept for minutes")

    def close(self) -> None:
        self._index = self._opened = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _fetch(self, manifest: Manifest) -> bool:
        """Whether all shards are in the cache now; else some of them are gone, and the manifest isn't the newest."""
        turns = asyncio.Semaphore(_FETCHED_AT_ONCE)

        async def fetch(shard: Shard) -> bool:
            async with turns:
                if shard.id in self._linked or (self._cache / shard.id).is_dir():
                    return True
                data = await self._shards.get(shard.id)
                if data is not None:
                    await REAL.in_thread(self._unpack, shard, data)
                return data is not None

        return all(await asyncio.gather(*map(fetch, manifest.shards)))

    def _unpack(self, shard: Shard, data: memoryview) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".new-", dir=self._cache))
        try:
            segments = unpack(data, folder, shard.id)
            (folder / _LIST).write_bytes(msgspec.json.encode(segments))
            with suppress(OSError):  # another process was faster
                folder.rename(self._cache / shard.id)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _open(self, manifest: Manifest) -> Searcher:
        from tantivy import Index

        if self._folder is None:
            self._cache.mkdir(parents=True, exist_ok=True)
            self._clean(manifest)
            self._folder = Path(tempfile.mkdtemp(prefix=f".open-{os.getpid()}-", dir=self._cache))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            make_empty(self._folder, self._definition.fields)
            self._like = (self._folder / META).read_bytes()
        wanted = {shard.id for shard in manifest.shards}
        for shard in wanted - self._linked.keys():
            cached = self._cache / shard
            for path in files_in(cached):
                with suppress(FileExistsError):
                    os.link(path, self._folder / path.name)
            self._linked[shard] = msgspec.json.decode((cached / _LIST).read_bytes(), type=list[msgspec.Raw])
        gone = {shard: self._linked.pop(shard) for shard in self._linked.keys() - wanted}
        segments = [segment for shard in sorted(wanted) for segment in self._linked[shard]]
        write_meta(self._folder, self._like, segments)
        if self._index is None:
            self._index = prepared(Index.open(str(self._folder)))
            self._index.config_reader("manual")
        self._index.reload()
        searcher = self._index.searcher()
        for shard in gone:  # what is open stays readable
            self._unlink(self._folder, shard)
        return searcher

    def _unlink(self, folder: Path, shard: str) -> None:
        cached = self._cache / shard
        with suppress(FileNotFoundError):
            for path in files_in(cached):
                (folder / path.name).unlink(missing_ok=True)
        self._remove(cached)

    def _clean(self, manifest: Manifest) -> None:
        """Remove shards of the cache that nobody has used for long, and folders of processes that are gone."""
        wanted = {shard.id for shard in manifest.shards}
        for path in self._cache.iterdir():
            with suppress(OSError, ValueError):
                if path.name.startswith(".open-"):
                    if not _runs(int(path.name.split("-")[1])):
                        shutil.rmtree(path, ignore_errors=True)
                elif path.name not in wanted and path.stat().st_mtime < time.time() - SEARCH_CACHED_S:
                    self._remove(path)

    def _remove(self, cached: Path) -> None:
        """At once, for those who link its files just now: they find all of them or miss the list, which they read
        last."""
        gone = self._cache / f".gone-{uuid.uuid4().hex}"
        with suppress(OSError):  # another has removed it
            cached.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
