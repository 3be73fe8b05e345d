"""A cluster's storage interfaces over the simulated object store: an engine for logs, and a registry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from nadi.errors import StoreError
from nadi.object_log.engine import VersionedValue
from nadi.segmentstore.tier2 import records
from nadi.wire.fields import Buffer

from .process import Process
from .store import Line, SimulatedStore

_PAGE = 100


def _epoch(record: bytes) -> int:
    try:
        return records._record(0, VersionedValue(record, "")).epoch
    except StoreError:  # a test's value
        return 0


class SimulatedEngine:
    """`nadi.object_log.engine.LogEngine` for one process."""

    def __init__(self, store: SimulatedStore, process: Process) -> None:
        self._line = Line(store, process)

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        line, value = self._line, b"".join(bytes(part) for part in parts)
        if await line.is_busy():
            return False
        is_stored = await line.ask(f"create {name}", lambda: line.store.create(name, value))
        return is_stored and not line.is_repeated()

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        stored = await self._line.ask(f"get {name}", lambda: self._line.store.objects.get(name), changes=False)
        if stored is None:
            return None
        return memoryview(stored.value)[position : None if length is None else position + length]

    async def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        objects = await self._line.ask(f"list {prefix}", lambda: self._line.store.listed(prefix), changes=False)
        for first in range(0, len(objects), _PAGE):
            if first:
                await self._line.ask(f"list more of {prefix}", lambda: None, changes=False)
            yield {name: len(stored.value) for name, stored in objects[first : first + _PAGE]}

    async def delete(self, names: Sequence[str]) -> None:
        for name in names:  # individually, so that some may remain
            await self._line.ask(f"delete {name}", lambda: self._line.store.delete(name))  # noqa: B023

    async def close(self) -> None:
        pass


class SimulatedRegistry:
    """`nadi.object_log.engine.Registry` for one process."""

    def __init__(self, store: SimulatedStore, process: Process) -> None:
        self._line = Line(store, process)

    async def get(self, name: str) -> VersionedValue | None:
        stored = await self._line.ask(f"get {name}", lambda: self._line.store.objects.get(name), changes=False)
        return None if stored is None else VersionedValue(stored.value, stored.version)

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        line = self._line
        if await line.is_busy():
            return None
        what = "claim" if self._is_claim(name, value) else "set"
        new = await line.ask(f"{what} {name}", lambda: line.store.set_if(name, value, version))
        return None if line.is_repeated() else new

    def _is_claim(self, name: str, value: bytes) -> bool:
        """Return whether the update gives a container a new epoch."""
        if not name.startswith(records.FOLDER):
            return False
        stored = self._line.store.objects.get(name)
        return _epoch(value) > (_epoch(stored.value) if stored is not None else 0)

    async def put(self, name: str, value: bytes, *, ends_with_process: bool = False) -> str:
        return await self._line.ask(f"put {name}", lambda: self._line.store.put(name, value))

    async def list(self, folder: str) -> dict[str, str]:
        objects = await self._line.ask(f"list {folder}", lambda: self._line.store.listed(folder), changes=False)
        return {name: stored.version for name, stored in objects}

    async def delete(self, name: str) -> None:
        await self._line.ask(f"delete {name}", lambda: self._line.store.delete(name))
