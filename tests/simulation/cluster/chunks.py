"""Tier 2 of a simulated cluster: chunks and snapshots in the shared object store, bypassing `obstore`. Methods that
aren't overridden here have no store to access, and fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar, cast

from nadi.errors import NotFoundError, UnavailableError
from nadi.segmentstore.tier2.checksums import ChunkDescription
from nadi.segmentstore.tier2.chunks import ChunkStore, ListedObject
from nadi.wire.fields import Buffer

from ..machine.process import BEGIN_MS, Process
from ..machine.store import Line, SimulatedStore

T = TypeVar("T")
_TRIES = 4  # like obstore's own retries
_PAGE = 100


class StoredChunks(ChunkStore):
    """The chunks as accessed by one process."""

    def __init__(self, store: SimulatedStore, process: Process) -> None:
        super().__init__(cast("Any", None), None, "memory:///", process.runtime)
        self._line = Line(store, process)

    async def _ask(self, what: str, do: Callable[[], T], *, changes: bool = True) -> T:
        for _ in range(_TRIES - 1):
            try:
                return await self._line.ask(what, do, changes=changes)
            except UnavailableError:
                pass  # an earlier attempt may still be executed later
        return await self._line.ask(what, do, changes=changes)

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        data = b"".join(bytes(part) for part in parts)
        is_new = await self._ask(f"put {name}", lambda: self._line.store.create(name, data))
        if not is_new and await self._object(name) != data:  # unless an earlier attempt stored it
            raise UnavailableError(f"tier 2 already has a different {name}")

    async def replace(self, name: str, parts: Sequence[Buffer]) -> None:
        raise NotImplementedError("only repairs and migrations do this")

    async def _object(self, name: str) -> bytes:
        stored = await self._ask(f"get {name}", lambda: self._line.store.objects.get(name), changes=False)
        if stored is None:
            raise NotFoundError(f"chunk {name} is not in tier 2")
        return stored.value

    async def read(self, name: str, position: int, length: int) -> memoryview:
        return memoryview(await self._object(name))[position : position + length]

    async def description(self, name: str, length: int) -> ChunkDescription | None:
        return ChunkDescription.decode(name, memoryview(await self._object(name))[length:])

    def sizes(self, prefix: str) -> dict[str, int]:
        raise NotImplementedError("it blocks")

    async def listed(self, folder: str) -> dict[str, int]:
        return {one.name: one.size_bytes async for page in self.pages(folder) for one in page}

    async def pages(self, folder: str) -> AsyncIterator[list[ListedObject]]:
        objects = await self._ask(f"list {folder}", lambda: self._line.store.listed(folder), changes=False)
        for first in range(0, len(objects), _PAGE):
            if first:
                await self._ask(f"list more of {folder}", lambda: None, changes=False)
            yield [
                ListedObject(name, len(one.value), BEGIN_MS + int(one.since * 1000))
                for name, one in objects[first : first + _PAGE]
            ]

    async def rename(self, name: str, new: str) -> None:
        raise NotImplementedError("only repairs rename")

    async def delete(self, name: str) -> None:
        await self._ask(f"delete {name}", lambda: self._line.store.delete(name))
