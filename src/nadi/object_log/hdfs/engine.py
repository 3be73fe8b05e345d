"""HDFS as `LogEngine` and `Registry`, for a data folder's claim to its store; it holds no log.

HDFS lacks compare-and-set: a value is a folder whose files are its versions.

    containers/0/.value-3f9c21aa-0000000001   .value-3f9c21aa-0000000007

The last version is the value. A set renames a new file to the next number, which HDFS refuses if another set was
faster. Numbers only grow: a late set finds its number taken, or creates a file below the last version, which is never
read; the late set notices that when it reads the versions again. The first version stays as long as the value exists:
its random digits distinguish this value's files from those of late sets to a deleted value of the same name. Versions
in between are removed.

The folder with the first version is created elsewhere and renamed into place, which HDFS also refuses if it exists.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence

from nadi.errors import UnavailableError
from nadi.limits import HDFS_SET_TRIES
from nadi.object_log.engine import VersionedValue, check_name
from nadi.object_log.hdfs.files import HdfsFiles
from nadi.object_log.hdfs.location import where
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)


class HdfsEngine:
    def __init__(self, files: HdfsFiles) -> None:
        self._files = files

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        check_name(name)
        return await self._files.put(name, parts)

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        check_name(name)
        try:
            return memoryview(await self._files.read(name, position, length))
        except FileNotFoundError:
            return None

    async def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        seen_values: set[str] = set()  # a value has several files
        async for page in self._files.pages(prefix):
            sizes = {value_of(file.name) or file.name: file.size_bytes for file in page}
            yield {name: size for name, size in sizes.items() if name not in seen_values}
            seen_values |= {name for file in page if (name := value_of(file.name)) is not None}

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            check_name(name)
        await asyncio.gather(*(self._files.delete(name) for name in names))

    async def close(self) -> None:
        """Do nothing: the library closes its connections itself."""


def open_hdfs(url: str, runtime: Runtime, **options: str) -> tuple[HdfsEngine, HdfsRegistry]:
    """Open engine and registry of `hdfs://…`, without contacting HDFS yet. Errors: see `where` and `client.connect`."""
    files = HdfsFiles(where(url, **options), runtime)
    return HdfsEngine(files), HdfsRegistry(files, runtime)


_VALUE = re.compile(r"(?:(?P<name>.*)/)?\.value-(?P<version>[0-9a-f]{8}-[0-9]{10})")
_FIRST = "0000000001"


def value_of(name: str) -> str | None:
    """Return the name of the value that has this file as a version; None if it isn't a version.

    >>> value_of("proof/x/.value-3f9c21aa-0000000001")
    'proof/x'
    """
    match = _VALUE.fullmatch(name)
    return match["name"] if match is not None else None


class HdfsRegistry:
    def __init__(self, files: HdfsFiles, runtime: Runtime) -> None:
        self._files, self._runtime = files, runtime

    async def get(self, name: str) -> VersionedValue | None:
        check_name(name)
        for _ in range(HDFS_SET_TRIES):
            version = await self._newest(name)
            if version is None:
                return None
            try:
                return VersionedValue(await self._files.read(f"{name}/.value-{version}"), version)
            except FileNotFoundError:  # replaced by a newer version meanwhile
                continue
        raise UnavailableError(f"HDFS can't read {name}: too many concurrent changes; will be retried")

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        check_name(name)
        if version is None:
            first = f"{self._runtime.unique()[:8]}-{_FIRST}"
            return first if await self._files.put(name, [value], file=f".value-{first}") else None
        if await self._newest(name) != version:
            return None
        chance, _, number = version.partition("-")
        new = f"{chance}-{int(number) + 1:010d}"
        if not await self._files.put(f"{name}/.value-{new}", [value], makes_folder=False):
            return None
        if await self._newest(name) != new:  # too late: another set was faster, or the value was deleted
            return None
        await self._clean(name, new)
        return new

    async def put(self, name: str, value: bytes, *, ends_with_process: bool = False) -> str:
        for _ in range(HDFS_SET_TRIES):
            new = await self.compare_and_set(name, value, await self._newest(name))
            if new is not None:
                return new
        raise UnavailableError(f"HDFS can't set {name}: too many concurrent changes; will be retried")

    async def list(self, folder: str) -> dict[str, str]:
        by_name: dict[str, list[str]] = {}
        for match in await self._versions(folder):
            by_name.setdefault(match["name"], []).append(match["version"])
        newest = {name: _newest(versions) for name, versions in by_name.items()}
        return {name: version for name, version in newest.items() if version is not None}

    async def delete(self, name: str) -> None:
        check_name(name)
        await self._files.delete(name, recursive=True)

    async def _versions(self, folder: str) -> Sequence[re.Match[str]]:
        """Return the matched names of all files in and below a folder that are versions of values."""
        names = [file.name async for page in self._files.pages(folder) for file in page]
        return [match for name in names if (match := _VALUE.fullmatch(name)) is not None]

    async def _newest(self, name: str) -> str | None:
        return _newest([match["version"] for match in await self._versions(name) if match["name"] == name])

    async def _clean(self, name: str, newest: str) -> None:
        """Remove old versions. The next set removes those that can't be removed now."""
        chance, _, number = newest.partition("-")
        try:
            for match in await self._versions(name):
                other, _, older = match["version"].partition("-")
                if other != chance or _FIRST < older < number:
                    await self._files.delete(match[0])
        except UnavailableError as error:
            log.debug("old versions of %s couldn't be removed: %s", name, error)


def _newest(versions: Sequence[str]) -> str | None:
    """Return the last version of the value that has a first version."""
    chance = next((version[:8] for version in versions if version.endswith(_FIRST)), None)
    return max((version for version in versions if version[:8] == chance), default=None)
