"""HDFS as `LogEngine` and `Registry`, for a data folder's claim to its store; no log is kept in it.

HDFS has no compare-and-set: a value is a folder, its versions are files in it.

    containers/0/.value-3f9c21aa-0000000001   .value-3f9c21aa-0000000007

The last is the value. A set renames a new file to the next number, which HDFS refuses if another was faster. Numbers
only grow: so a set that is late finds its number taken, or makes a file below the last, which nobody looks at, and it
sees that itself as it looks again. The first is never removed while the value is there: its chance digits say which of
the files are of this value, and which of a late set to one of that name that was deleted. Those between are removed.

The folder with the first file is made elsewhere and renamed into place, which HDFS refuses, too, if there is one.
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
        told: set[str] = set()  # values are several files
        async for page in self._files.pages(prefix):
            sizes = {value_of(file.name) or file.name: file.size_bytes for file in page}
            yield {name: size for name, size in sizes.items() if name not in told}
            told |= {name for file in page if (name := value_of(file.name)) is not None}

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:
            check_name(name)
        await asyncio.gather(*(self._files.delete(name) for name in names))

    async def close(self) -> None:
        """The library closes its connections by itself."""


def open_hdfs(url: str, runtime: Runtime, **options: str) -> tuple[HdfsEngine, HdfsRegistry]:
    """Engine and registry of `hdfs://…`; nothing is asked of HDFS yet. Errors: see `where` and `client.connect`."""
    files = HdfsFiles(where(url, **options), runtime)
    return HdfsEngine(files), HdfsRegistry(files, runtime)


_VALUE = re.compile(r"(?:(?P<name>.*)/)?\.value-(?P<version>[0-9a-f]{8}-[0-9]{10})")
_FIRST = "0000000001"


def value_of(name: str) -> str | None:
    """The name of the value of which a file is a version; None if it is none.

    >>> value_of("proof/x/.value-3f9c21aa-0000000001")
    'proof/x'
    """
    found = _VALUE.fullmatch(name)
    return found["name"] if found is not None else None


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
            except FileNotFoundError:  # another has set it since, and removed this one
                continue
        raise UnavailableError(f"HDFS can't read {name}: others set it all the time; it is tried again")

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
        if await self._newest(name) != new:  # it came late: another has gone on, or deleted the value
            return None
        await self._clean(name, new)
        return new

    async def put(self, name: str, value: bytes) -> str:
        for _ in range(HDFS_SET_TRIES):
            new = await self.compare_and_set(name, value, await self._newest(name))
            if new is not None:
                return new
        raise UnavailableError(f"HDFS can't set {name}: others set it all the time; it is tried again")

    async def list(self, folder: str) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        for match in await self._versions(folder):
            found.setdefault(match["name"], []).append(match["version"])
        newest = {name: _newest(versions) for name, versions in found.items()}
        return {name: version for name, version in newest.items() if version is not None}

    async def delete(self, name: str) -> None:
        check_name(name)
        await self._files.delete(name, whole=True)

    async def _versions(self, folder: str) -> Sequence[re.Match[str]]:
        """The names of all files that are versions of values, in a folder and below it."""
        names = [file.name async for page in self._files.pages(folder) for file in page]
        return [match for name in names if (match := _VALUE.fullmatch(name)) is not None]

    async def _newest(self, name: str) -> str | None:
        return _newest([match["version"] for match in await self._versions(name) if match["name"] == name])

    async def _clean(self, name: str, newest: str) -> None:
        """Remove what no version needs; what can't be removed now, the next set removes."""
        chance, _, number = newest.partition("-")
        try:
            for match in await self._versions(name):
                other, _, older = match["version"].partition("-")
                if other != chance or _FIRST < older < number:
                    await self._files.delete(match[0])
        except UnavailableError as error:
            log.debug("versions of %s before the last are left: %s", name, error)


def _newest(versions: Sequence[str]) -> str | None:
    """The last one of the value that has a first one."""
    chance = next((version[:8] for version in versions if version.endswith(_FIRST)), None)
    return max((version for version in versions if version[:8] == chance), default=None)
