"""The shards of an index on this machine, as one index of tantivy's that follows the manifest.

A shard is fetched once, into a cache, see `cached`. Each process links the files of the shards that the manifest names
into a folder of its own, so that all count together: words' weights, orders and counts are those of the whole index.
"""

from __future__ import annotations

import asyncio
import shutil
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nadi.errors import ClosedError, NadiError, StoreError
from nadi.runtime import REAL
from nadi.search.analysis import prepared
from nadi.search.asking.cached import Cached, DamagedCacheError, cache_folder
from nadi.search.definition import Definition, Definitions
from nadi.search.missing import IndexNotFoundError
from nadi.search.shards.manifest import Manifest, Shard
from nadi.search.shards.merging import make_empty
from nadi.search.shards.names import folder_of_index
from nadi.search.shards.objects import Shards, open_shards
from nadi.search.shards.packing import META, write_meta
from nadi.search.shards.tantivys import errors_told

if TYPE_CHECKING:
    from tantivy import Index, Searcher

_FETCHED_AT_ONCE = 4
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Opened:
    """The index as a manifest has it."""

    manifest: Manifest
    searcher: Searcher


class LocalIndex:
    """One definition's, for one process."""

    def __init__(self, definitions: Definitions, definition: Definition, cache: Path | None = None) -> None:
        self._definitions, self._definition = definitions, definition
        self._place = (definitions.scope, definition.stream, definition.id)
        folder = folder_of_index(definition.url, *self._place)  # another store's objects are others
        self._cached = Cached(cache or cache_folder(), folder)
        self._shards: Shards | None = None
        self._folder: Path | None = None
        self._index: Index | None = None
        self._linked: dict[str, list[msgspec.Raw]] = {}
        self._opened: Opened | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    async def newest(self) -> Opened:
        """The index as the newest manifest has it. StoreError: a shard is missing in the store, or damaged, or
        the cache can't be used."""
        try:
            return await self._newest()
        except OSError as error:
            if isinstance(error, NadiError):
                raise
            raise StoreError(self._told(f"its cache can't be used ({error}): see NADI_SEARCH_CACHE")) from error
        except StoreError:
            self.check_open()  # which may be why
            raise

    async def _newest(self) -> Opened:
        async with self._lock:
            missing: set[str] = set()
            damaged: set[str] = set()
            for _ in range(_TRIES):
                self.check_open()
                manifest = await self._manifest()
                if self._opened is not None and self._opened.manifest.generation == manifest.generation:
                    return self._opened
                lost = await self._fetch(manifest)
                if again := lost & missing:  # the newest manifest names it, and so nobody has deleted it
                    raise StoreError(self._told(f"the object {min(again)} is missing in {self._definition.url}"))
                missing |= lost
                if lost:
                    continue
                try:
                    searcher = await REAL.in_thread(self._open, manifest)
                except FileNotFoundError:  # another process has removed a shard from the cache, or our folder
                    self._begin_again()
                    continue
                except DamagedCacheError as error:
                    if error.shard in damaged:
                        raise StoreError(
                            self._told(f"{error.shard} is damaged again in the cache: see its disk")
                        ) from None
                    damaged.add(error.shard)
                    await REAL.in_thread(self._cached.remove, error.shard)
                    continue
                if self._is_closed:  # meanwhile
                    self.close()
                    continue
                self._opened = Opened(manifest, searcher)
                return self._opened
            raise StoreError(self._told("its shards go faster than they can be fetched: ask again"))

    def check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the index of {'/'.join(self._place[:2])} was closed: open it again")

    def close(self) -> None:
        self._is_closed = True
        self._shards = None
        self._begin_again()

    async def discard(self) -> None:
        """Remove what the cache has of it."""
        await REAL.in_thread(self._cached.discard)

    def _begin_again(self) -> None:
        self._index = self._opened = None
        self._linked = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _told(self, what: str) -> str:
        return f"the search index of {'/'.join(self._place[:2])}: {what}; if that stays, drop it and create it anew"

    async def _manifest(self) -> Manifest:
        try:
            return (await self._definitions.manifest(self._definition))[0]
        except IndexNotFoundError:
            self._begin_again()
            await self.discard()
            raise

    async def _fetch(self, manifest: Manifest) -> set[str]:
        """Have all shards in the cache; those that the store doesn't have."""
        wanted = [one for one in manifest.shards if one.id not in self._linked and not self._cached.has(one.id)]
        if not wanted:
            return set()
        shards = self._shards or await open_shards(self._definition.url, *self._place)
        turns = asyncio.Semaphore(_FETCHED_AT_ONCE)

        async def fetch(shard: Shard) -> str | None:
            async with turns:
                data = await shards.get(shard.id)
                if data is None:
                    return shard.id
                with suppress(FileNotFoundError):  # its folder was just removed, which linking finds out
                    await REAL.in_thread(self._cached.keep, shard.id, data)
                return None

        try:
            found = await asyncio.gather(*map(fetch, wanted), return_exceptions=True)
        finally:
            if shards.is_folder:
                await shards.close()
            else:
                self._shards = shards
        if error := next((one for one in found if isinstance(one, BaseException)), None):
            raise error
        return {one for one in found if isinstance(one, str)}

    def _open(self, manifest: Manifest) -> Searcher:
        wanted = {shard.id for shard in manifest.shards}
        folder = self._folder
        if folder is None:
            folder = self._folder = self._cached.own_folder()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            make_empty(folder, self._definition.fields)
            self._like = (folder / META).read_bytes()
            self._cached.clean(wanted)
        for shard in wanted - self._linked.keys():
            self._linked[shard] = self._cached.link(shard, folder)
        gone = {shard: self._linked.pop(shard) for shard in self._linked.keys() - wanted}
        segments = [segment for shard in sorted(wanted) for segment in self._linked[shard]]
        write_meta(folder, self._like, segments)
        with errors_told(self._told("a shard can't be read")):
            searcher = self._searcher(folder)
        for shard in gone:
            self._cached.unlink(shard, folder)
        return searcher

    def _searcher(self, folder: Path) -> Searcher:
        from tantivy import Index

        if self._index is None:
            self._index = prepared(Index.open(str(folder)))
            self._index.config_reader("manual")
        self._index.reload()
        return self._index.searcher()
