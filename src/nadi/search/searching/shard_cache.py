"""The shards of an index on this machine, as one index of tantivy's that follows the manifest.

A shard is fetched once, into a cache. Each process links the files of the shards that the manifest names
into a folder of its own, so that all count together: words' weights, orders and counts are those of the whole index.

All processes of a user share the cache: a folder for each shard, made whole before it gets its name. The cache's
functions block: call them in a thread.

    <cache>/<index>/<shard>/           tantivy's files, and `.head`, which has their sizes and checksums
    <cache>/<index>/.new-…             one being made
    <cache>/<index>/.open-<pid>-…      a process's own folder, with links to the files of the shards that it has open
    <cache>/<index>/.gone-…            one being removed

Files are compared with their checksums when a process links them. What is removed here has one of these names, in the
cache: whatever else a folder holds that somebody has named as the cache stays.
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
    """What was unpacked of the shard that it names isn't that any more."""


def cache_folder() -> Path:
    """Where shards are kept between queries: `NADI_SEARCH_CACHE`, or the user's cache."""
    given = os.environ.get("NADI_SEARCH_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(given).expanduser() if given else Path(home).expanduser() / "nadi" / "search"


class Cached:
    """One index's. index: as `folder_of_index` names it."""

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
            with suppress(OSError):  # another process was faster
                folder.rename(self._folder / shard)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def own_folder(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".open-{os.getpid()}-", dir=self._folder))

    def link(self, shard: str, folder: Path) -> list[msgspec.Raw]:
        """Link a shard's files into a folder, and return what tantivy's list has of them. FileNotFoundError: another
        process has removed it; DamagedCacheError."""
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
        """Remove a shard, and what a folder has of it; what is open stays readable."""
        with suppress(FileNotFoundError):
            for path in files_in(self._folder / shard):
                (folder / path.name).unlink(missing_ok=True)
        self.remove(shard)

    def remove(self, shard: str) -> None:
        """At once, for those who link its files just now: they find all of them, or none."""
        assert SHARD.match(shard), shard
        gone = self._folder / f".gone-{uuid.uuid4().hex}"
        with suppress(OSError):  # another has removed it
            (self._folder / shard).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def clean(self, wanted: Iterable[str]) -> None:
        """Remove what nobody has used for long, of other indexes as well, and folders of processes that are gone."""
        _clean(self._folder, set(wanted), time.time() - SEARCH_CACHED_S)
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


def _clean(folder: Path, wanted: set[str], before: float) -> None:
    for path in _folders(folder):
        with suppress(OSError):
            if found := _OPEN.fullmatch(path.name):
                if not _runs(int(found[1])):
                    shutil.rmtree(path, ignore_errors=True)
                continue
            is_ours = SHARD.match(path.name) or _UNFINISHED.fullmatch(path.name)
            if is_ours and path.name not in wanted and path.stat().st_mtime < before:
                shutil.rmtree(path, ignore_errors=True)


def _discard(folder: Path) -> None:
    _clean(folder, set(), float("inf"))
    with suppress(OSError):  # a process has it open, and removes what it has; or there is something else in it
        folder.rmdir()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:  # another user's can't be asked
        return not isinstance(error, ProcessLookupError)
    return True


_FETCHED_AT_ONCE = 4
_TRIES = 20


@dataclass(frozen=True, slots=True)
class OpenShards:
    manifest: ShardManifest
    searcher: Searcher


class LocalIndex:
    """One definition's, for one process."""

    def __init__(self, definitions: Definitions, definition: IndexDefinition, cache: Path | None = None) -> None:
        self._definitions, self._definition = definitions, definition
        scope, stream = definitions.scope, definition.stream
        self._name = f"the search index of {scope}/{stream}"
        folder = folder_of_index(definition.url, scope, stream, definition.id)  # another store's objects are others
        self._cached = Cached(cache or cache_folder(), folder)
        self._shards: Shards | None = None
        self._folder: Path | None = None
        self._index: Index | None = None
        self._linked: dict[str, list[msgspec.Raw]] = {}
        self._opened: OpenShards | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()

    async def newest(self) -> OpenShards:
        """The index as the newest manifest has it. StoreError: a shard is missing in the store, or damaged, or
        the cache can't be used."""
        try:
            async with self._lock:
                return await self._newest()
        except OSError as error:
            if isinstance(error, NadiError):
                raise
            raise self._error(f"its cache can't be used ({error}): see NADI_SEARCH_CACHE") from error
        except StoreError:
            self.check_open()  # which may be why
            raise

    async def _newest(self) -> OpenShards:
        missing: set[str] = set()
        damaged: set[str] = set()
        for _ in range(_TRIES):
            self.check_open()
            manifest = await self._manifest()
            if self._opened is not None and self._opened.manifest.generation == manifest.generation:
                return self._opened
            lost = await self._fetch(manifest)
            if again := lost & missing:  # the newest manifest names it, and so nobody has deleted it
                raise self._error(f"the object {min(again)} is missing in {self._definition.url}")
            missing |= lost
            if lost:
                continue
            try:
                searcher = await REAL.in_thread(self._open, manifest)
            except FileNotFoundError:  # another process has removed a shard from the cache, or our folder
                self._begin_again()
            except DamagedCacheError as error:
                shard = str(error)
                if shard in damaged:
                    raise self._error(f"{shard} is damaged again in the cache: see its disk") from None
                damaged.add(shard)
                await REAL.in_thread(self._cached.remove, shard)
            else:
                if not self._is_closed:
                    self._opened = OpenShards(manifest, searcher)
                    return self._opened
                self.close()  # meanwhile
        raise self._error("its shards go faster than they can be fetched: ask again")

    def check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self._name} was closed: open it again")

    def close(self) -> None:
        self._is_closed = True
        self._shards = None
        self._begin_again()

    async def discard(self) -> None:
        await REAL.in_thread(self._cached.discard)

    def _begin_again(self) -> None:
        self._index = self._opened = None
        self._linked = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _error(self, what: str) -> StoreError:
        return StoreError(f"{self._name}: {what}; if that stays, drop it and create it anew")

    async def _manifest(self) -> ShardManifest:
        try:
            return await self._definitions.manifest(self._definition).get()
        except IndexNotFoundError:
            self._begin_again()
            await self.discard()
            raise

    async def _fetch(self, manifest: ShardManifest) -> set[str]:
        """Have all shards in the cache; those that the store doesn't have."""
        wanted = [one for one in manifest.shards if one.id not in self._linked and not self._cached.has(one.id)]
        if not wanted:
            return set()
        shards = self._shards or await open_shards(self._definitions.scope, self._definition)
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

    def _open(self, manifest: ShardManifest) -> Searcher:
        from tantivy import Index

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
        try:
            if self._index is None:
                self._index = prepared(Index.open(str(folder)))
                self._index.config_reader("manual")
            self._index.reload()
            searcher = self._index.searcher()
        except BaseException as error:
            if not isinstance(error, ValueError | OSError) and type(error).__name__ != "PanicException":
                raise  # the latter is one of Rust, which nobody can import
            raise self._error(f"a shard can't be read ({str(error)[:200]})") from error
        for shard in gone:
            self._cached.unlink(shard, folder)
        return searcher
