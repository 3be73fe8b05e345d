"""Shards of an index on this machine, in a cache that all processes of a user share: a folder for each, made whole
before it gets its name. All of this blocks: call it in a thread.

    <cache>/<index>/<shard>/           tantivy's files, and `.head`, which has their sizes and checksums
    <cache>/<index>/.new-…             one being made
    <cache>/<index>/.open-<pid>-…      a process's own folder, with links to the files of the shards that it has open
    <cache>/<index>/.gone-…            one being removed

Files are compared with their checksums when a process links them. What is removed here has one of these names, in the
cache: whatever else a folder holds that somebody has named as the cache stays.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from nadi.errors import StoreError
from nadi.limits import SEARCH_CACHED_INDEX_S, SEARCH_CACHED_S
from nadi.search.shards.names import INDEX, SHARD
from nadi.search.shards.packing import check_files, files_in, head_of, unpack

_HEAD = ".head"
_UNFINISHED = re.compile(r"\.(new|gone)-[A-Za-z0-9_]+")
_OPEN = re.compile(r"\.open-([0-9]{1,10})-[A-Za-z0-9_]+")


class DamagedCacheError(Exception):
    """What was unpacked of a shard isn't that any more."""

    def __init__(self, shard: str) -> None:
        super().__init__(shard)
        self.shard = shard


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
        """A new folder of this process."""
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
        """Remove all of the index, which was dropped."""
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
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
