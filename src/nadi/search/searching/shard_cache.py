"""The shards of an index on this machine, opened as one tantivy index that follows the manifest.

A shard is fetched once, into a cache. Each process links the files of the manifest's shards into a private folder, so
that word weights, orders and counts are those of the whole index.

All processes of a user share the cache: a folder for each shard, completed before it gets its name. The cache's
functions block: call them in a thread.

    <cache>/<index>/<shard>/           tantivy's files, and `.head` with their sizes and checksums
    <cache>/<index>/.new-…             an unfinished folder
    <cache>/<index>/.open-<pid>-…      a process's folder, with links to the files of its open shards
    <cache>/<index>/.gone-…            a folder being deleted

A process verifies the checksums when it links files. Only folders with these names are deleted: the user may have named
a folder with other content as the cache.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nadi.encryption.sealing import scratch
from nadi.errors import ClosedError, NadiError, StoreError
from nadi.limits import SEARCH_CACHED_INDEX_S, SEARCH_CACHED_S
from nadi.runtime import REAL
from nadi.search.definition import Definitions, IndexDefinition, IndexNotFoundError
from nadi.search.fields import prepared
from nadi.search.objects import Shards, open_shards
from nadi.search.shards.building import META, check_files, files_in, head_of, make_empty, unpack, write_meta
from nadi.search.shards.manifest import INDEX, SHARD, Shard, ShardManifest, folder_of_index

if TYPE_CHECKING:
    from tantivy import Index, Searcher


_HEAD = ".head"
_UNFINISHED = re.compile(r"\.(new|gone)-[A-Za-z0-9_]+")
_OPEN = re.compile(r"\.open-([0-9]{1,10})-[A-Za-z0-9_]+")


class DamagedCacheError(Exception):
    """The cached files of the named shard are damaged."""


def cache_folder() -> Path:
    """Return the folder of cached shards: `NADI_SEARCH_CACHE`, or in the user's cache folder; for a process with a
    master key, in memory."""
    configured = os.environ.get("NADI_SEARCH_CACHE")
    if not configured and (private := scratch()) is not None:
        return private / "search"
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(configured).expanduser() if configured else Path(home).expanduser() / "nadi" / "search"


class CachedShards:
    """The cached shards of one index. index: its `folder_of_index`."""

    def __init__(self, root: Path, index: str) -> None:
        assert INDEX.match(index), index
        self._root, self._folder = root, root / index

    def has(self, shard: str) -> bool:
        return (self._folder / shard).is_dir()

    def keep(self, shard: str, data: memoryview) -> None:
        """Unpack an object; StoreError if it is damaged."""
        self._folder.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
        try:
            unpack(data, folder, shard)
            (folder / _HEAD).write_bytes(head_of(data, shard))
            with suppress(OSError):  # another process has stored it
                folder.rename(self._folder / shard)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def own_folder(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".open-{os.getpid()}-", dir=self._folder))

    def link(self, shard: str, folder: Path) -> list[msgspec.Raw]:
        """Link a shard's files into a folder, and return their entries in tantivy's list. FileNotFoundError: another
        process has deleted it; DamagedCacheError."""
        cached = self._folder / shard
        try:
            segments = check_files(cached, (cached / _HEAD).read_bytes(), shard)
        except (StoreError, FileNotFoundError) as error:
            if not cached.is_dir():
                raise FileNotFoundError(cached) from error
            raise DamagedCacheError(shard) from error
        for path in files_in(cached):
            with suppress(FileExistsError):
                os.link(path, folder / path.name)
        return segments

    def unlink(self, shard: str, folder: Path) -> None:
        """Delete a shard and its links in a folder; open files stay readable."""
        with suppress(FileNotFoundError):
            for path in files_in(self._folder / shard):
                (folder / path.name).unlink(missing_ok=True)
        self.remove(shard)

    def remove(self, shard: str) -> None:
        """Delete a shard atomically, so that processes that link it find all of its files or none."""
        assert SHARD.match(shard), shard
        trash = self._folder / f".gone-{uuid.uuid4().hex}"
        with suppress(OSError):  # another process has deleted it
            (self._folder / shard).rename(trash)
            shutil.rmtree(trash, ignore_errors=True)

    def clean(self, used: Iterable[str]) -> None:
        """Delete shards and indexes unused for long, and folders of processes that have ended."""
        _clean(self._folder, set(used), time.time() - SEARCH_CACHED_S)
        before = time.time() - SEARCH_CACHED_INDEX_S
        for folder in _folders(self._root):
            with suppress(OSError):
                if INDEX.match(folder.name) and folder != self._folder and folder.stat().st_mtime < before:
                    _discard(folder)

    def discard(self) -> None:
        _discard(self._folder)


def _folders(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    return []


def _clean(folder: Path, used: set[str], before: float) -> None:
    for path in _folders(folder):
        with suppress(OSError):
            if match := _OPEN.fullmatch(path.name):
                if not _runs(int(match[1])):
                    shutil.rmtree(path, ignore_errors=True)
                continue
            is_ours = SHARD.match(path.name) or _UNFINISHED.fullmatch(path.name)
            if is_ours and path.name not in used and path.stat().st_mtime < before:
                shutil.rmtree(path, ignore_errors=True)


def _discard(folder: Path) -> None:
    _clean(folder, set(), float("inf"))
    with suppress(OSError):  # in use by a process, which deletes its own folder; or the folder has other content
        folder.rmdir()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:  # a process of another user
        return not isinstance(error, ProcessLookupError)
    return True


_FETCHED_AT_ONCE = 4
_TRIES = 20


@dataclass(frozen=True, slots=True)
class OpenShards:
    manifest: ShardManifest
    searcher: Searcher


class LocalIndex:
    """The index of one definition, in one process."""

    def __init__(self, definitions: Definitions, definition: IndexDefinition, cache: Path | None = None) -> None:
        self._definitions, self._definition = definitions, definition
        scope, stream = definitions.scope, definition.stream
        self._name = f"the search index of {scope}/{stream}"
        folder = folder_of_index(definition.url, scope, stream, definition.id)  # the URL distinguishes stores
        self._cached = CachedShards(cache or cache_folder(), folder)
        self._shards: Shards | None = None
        self._folder: Path | None = None
        self._index: Index | None = None
        self._linked: dict[str, list[msgspec.Raw]] = {}
        self._opened: OpenShards | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    async def newest(self) -> OpenShards:
        """Return the index of the newest manifest. StoreError if a shard is missing or damaged in the store, or the
        cache can't be used."""
        try:
            async with self._lock:
                return await self._newest()
        except OSError as error:
            if isinstance(error, NadiError):
                raise
            raise self._error(f"can't use the cache folder ({error}); set NADI_SEARCH_CACHE to another") from error
        except StoreError:
            self.check_open()  # closing may be the cause
            raise

    async def _newest(self) -> OpenShards:
        missing: set[str] = set()
        damaged: set[str] = set()
        for _ in range(_TRIES):
            self.check_open()
            manifest = await self._manifest()
            if self._opened is not None and self._opened.manifest.generation == manifest.generation:
                return self._opened
            absent = await self._fetch(manifest)
            if still_missing := absent & missing:  # the newest manifest names it, so it wasn't deleted
                raise self._error(f"object {min(still_missing)} is missing in {self._definition.url}")
            missing |= absent
            if absent:
                continue
            try:
                searcher = await REAL.in_thread(self._open, manifest)
            except FileNotFoundError:  # another process has removed a shard from the cache, or our folder
                self._reset()
            except DamagedCacheError as error:
                shard = str(error)
                if shard in damaged:
                    raise self._error(f"{shard} is damaged again in the cache; check the cache's disk") from None
                damaged.add(shard)
                await REAL.in_thread(self._cached.remove, shard)
            else:
                if not self._is_closed:
                    self._opened = OpenShards(manifest, searcher)
                    return self._opened
                self.close()  # closed meanwhile
        raise self._error("its shards were deleted before they could be fetched; repeat the query")

    def check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self._name} was closed: open it again")

    def close(self) -> None:
        self._is_closed = True
        self._shards = None
        self._reset()

    async def discard(self) -> None:
        await REAL.in_thread(self._cached.discard)

    def _reset(self) -> None:
        self._index = self._opened = None
        self._linked = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _error(self, what: str) -> StoreError:
        return StoreError(f"{self._name}: {what}; if the error persists, delete the index and create it again")

    async def _manifest(self) -> ShardManifest:
        try:
            return await self._definitions.manifest(self._definition).get()
        except IndexNotFoundError:
            self._reset()
            await self.discard()
            raise

    async def _fetch(self, manifest: ShardManifest) -> set[str]:
        """Cache all shards; return those missing in the store."""
        uncached = [
            result for result in manifest.shards if result.id not in self._linked and not self._cached.has(result.id)
        ]
        if not uncached:
            return set()
        shards = self._shards or await open_shards(self._definitions.scope, self._definition)
        turns = asyncio.Semaphore(_FETCHED_AT_ONCE)

        async def fetch(shard: Shard) -> str | None:
            async with turns:
                data = await shards.get(shard.id)
                if data is None:
                    return shard.id
                with suppress(FileNotFoundError):  # its folder was just deleted: linking will notice
                    await REAL.in_thread(self._cached.keep, shard.id, data)
                return None

        try:
            results = await asyncio.gather(*map(fetch, uncached), return_exceptions=True)
        finally:
            if shards.is_folder:
                await shards.close()
            else:
                self._shards = shards
        if error := next((result for result in results if isinstance(result, BaseException)), None):
            raise error
        return {result for result in results if isinstance(result, str)}

    def _open(self, manifest: ShardManifest) -> Searcher:
        from tantivy import Index

        current = {shard.id for shard in manifest.shards}
        folder = self._folder
        if folder is None:
            folder = self._folder = self._cached.own_folder()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            make_empty(folder, self._definition.fields)
            self._sample_meta = (folder / META).read_bytes()
            self._cached.clean(current)
        for shard in current - self._linked.keys():
            self._linked[shard] = self._cached.link(shard, folder)
        unlinked = {shard: self._linked.pop(shard) for shard in self._linked.keys() - current}
        segments = [segment for shard in sorted(current) for segment in self._linked[shard]]
        write_meta(folder, self._sample_meta, segments)
        try:
            if self._index is None:
                self._index = prepared(Index.open(str(folder)))
                self._index.config_reader("manual")
            self._index.reload()
            searcher = self._index.searcher()
        except BaseException as error:
            if not isinstance(error, ValueError | OSError) and type(error).__name__ != "PanicException":
                raise  # a Rust panic, whose class can't be imported
            raise self._error(f"can't read a shard ({str(error)[:200]})") from error
        for shard in unlinked:
            self._cached.unlink(shard, folder)
        return searcher
