"""Objects in HDFS as a `LogEngine`: what a data folder's claim to its store is proven by. No log is kept in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from nadi.engines.hdfs.files import Files
from nadi.engines.hdfs.registry import HdfsRegistry, value_of
from nadi.engines.hdfs.where import where
from nadi.engines.names import check_name
from nadi.runtime import Runtime
from nadi.wire.fields import Buffer


class HdfsEngine:
    """A `LogEngine` in HDFS."""

    def __init__(self, files: Files) -> None:
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
    files = Files(where(url, **options), runtime)
    return HdfsEngine(files), HdfsRegistry(files, runtime)
