"""Chunks in HDFS: `engines.hdfs.files` as a place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from nadi.engines.hdfs.engine import value_of
from nadi.engines.hdfs.files import File, Files
from nadi.engines.hdfs.where import where
from nadi.errors import UnavailableError
from nadi.runtime import Runtime
from nadi.segmentstore.tier2.places.place import Listed
from nadi.wire.fields import Buffer


class HdfsPlace:
    """A `Place` in HDFS."""

    def __init__(self, url: str, runtime: Runtime, options: dict[str, str]) -> None:
        self._files = Files(where(url, **options), runtime)

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        return await self._files.put(name, parts)

    async def put_over(self, name: str, parts: Sequence[Buffer]) -> None:
        if not await self._files.put(name, parts, over=True):
            raise UnavailableError(f"HDFS can't replace {name}: it is tried again")

    async def read(self, name: str, position: int, length: int | None) -> memoryview:
        return memoryview(await self._files.read(name, position, length))

    def has(self, name: str) -> bool:
        return self._files.is_there(name)

    def sizes(self, prefix: str) -> dict[str, int]:
        return {one.name: one.size_bytes for one in map(_listed, self._files.listed(prefix))}

    async def pages(self, folder: str) -> AsyncIterator[list[Listed]]:
        async for page in self._files.pages(folder):
            yield [_listed(file) for file in page]

    async def rename(self, name: str, new: str) -> None:
        await self._files.rename(name, new)

    async def delete(self, name: str) -> None:
        await self._files.delete(name)


def _listed(file: File) -> Listed:
    """A value goes by its own name, not by those of its versions."""
    return Listed(value_of(file.name) or file.name, file.size_bytes, file.modified_ms)
