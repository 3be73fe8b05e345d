"""The in-memory storage of a simulated server: each container's log and tier 2, which outlive the server. Container
states are LMDB files in a temporary folder.

A frame is durable once the disk has synced it; a kill loses unsynced frames. Disk and tier 2 take time, and fail as the
seed determines.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from crc32c import crc32c

from nadi.errors import NotFoundError, UnavailableError
from nadi.object_log.engine import VersionedValue
from nadi.runtime import Runtime
from nadi.segmentstore.recovery.storage import ContainerStorage, OpenStorage
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.tier1.log import AppendedFrame
from nadi.segmentstore.tier2.checksums import ChunkDescription
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord, ContainerRecords
from nadi.wire.fields import Buffer
from tests.support.memory_durable_log import MemoryLog, MemoryStorage


@dataclass(slots=True)
class Faults:
    """Fault rates of disks and tier 2, all decided by the seed."""

    chance: random.Random
    kill: Callable[[], None]  # kills the server at once
    note: Callable[..., None]  # for the trace
    frame_fails: float = 0.0  # per frame: the disk reports an error, though it may have stored the frame
    put_fails: float = 0.0  # per object, likewise
    slow: float = 0.02  # per step of a disk: it takes up to 0.5 s instead of 2 ms
    away_until: float = 0.0  # of tier 2, by the simulation's time
    now: Callable[[], float] = lambda: 0.0
    kill_due: int = -1  # number of disk steps until the server is killed

    async def step(self) -> None:
        """Perform a step of a disk, before or after which the server may be killed."""
        if self.kill_due >= 0:
            self.kill_due -= 1
            if self.kill_due < 0:
                self.kill()
                await asyncio.get_running_loop().create_future()  # never continues
        await asyncio.sleep(self.chance.random() * (0.5 if self.happens(self.slow) else 0.002))

    def tier2_away(self, seconds: float) -> None:
        self.note("tier 2 is away", f"{seconds:.3f}")
        self.away_until = self.now() + seconds

    @property
    def put_fails_now(self) -> bool:
        return self.now() < self.away_until or self.happens(self.put_fails)

    def rest(self) -> None:
        """End all faults."""
        self.frame_fails = self.put_fails = self.slow = 0.0
        self.kill_due, self.away_until = -1, 0.0

    def happens(self, part: float) -> bool:
        return self.chance.random() < part


@dataclass(slots=True)
class Disk(MemoryStorage):
    """`unsynced`: frames that a kill may lose."""

    unsynced: list[int] = field(default_factory=list)

    def killed(self, faults: Faults) -> None:
        for sequence in self.unsynced[faults.chance.randrange(len(self.unsynced) + 1) :]:
            self.frames.pop(sequence, None)
        self.unsynced.clear()


class SimulatedLog(MemoryLog):
    _storage: Disk
    faults: Faults

    async def append(self, parts: Sequence[bytes]) -> AppendedFrame:
        await self.faults.step()
        fails = self.faults.happens(self.faults.frame_fails)
        if fails and self.faults.happens(0.5):
            self._failed = True
            raise OSError("the disk failed before writing the frame")
        appended = await super().append(parts)
        self.faults.note("frame", appended.address.sequence, crc32c(b"".join(parts)))
        await self._sync(appended.address.sequence)
        if fails:
            self._failed = True
            raise OSError("the disk failed after writing the frame")
        return appended

    async def _sync(self, sequence: int) -> None:
        self._storage.unsynced.append(sequence)
        await self.faults.step()
        self._storage.unsynced.remove(sequence)


class SimulatedChunks(ChunkStore):
    """Objects in a dict, put atomically. Methods that aren't overridden here have no store to access, and fail."""

    def __init__(self, objects: dict[str, bytes], faults: Faults, runtime: Runtime) -> None:
        super().__init__(cast("Any", None), None, "memory:///", runtime)
        self._objects, self._faults = objects, faults

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        data = b"".join(bytes(part) for part in parts)
        await self._step(name)
        self._faults.note("object", name, len(data), crc32c(data))
        self._objects[name] = data
        await self._step(name)

    async def replace(self, name: str, parts: Sequence[Buffer]) -> None:
        await self.put(name, parts)

    async def _step(self, name: str) -> None:
        await self._faults.step()
        if self._faults.put_fails_now:
            raise UnavailableError(f"tier 2 is unreachable for {name}")

    def _object(self, name: str) -> bytes:
        try:
            return self._objects[name]
        except KeyError:
            raise NotFoundError(f"chunk {name} is not in tier 2") from None

    async def read(self, name: str, position: int, length: int) -> memoryview:
        await self._faults.step()
        return memoryview(self._object(name))[position : position + length]

    async def description(self, name: str, length: int) -> ChunkDescription | None:
        await self._faults.step()
        return ChunkDescription.decode(name, memoryview(self._object(name))[length:])

    def sizes(self, prefix: str) -> dict[str, int]:
        folder = f"{prefix.rstrip('/')}/"
        return {name: len(data) for name, data in sorted(self._objects.items()) if name.startswith(folder)}

    async def records(self) -> ContainerRecords:
        return ContainerRecords(_Registry(self), self.runtime, is_alone=True)

    async def rename(self, name: str, new: str) -> None:
        raise NotImplementedError("only repairs rename")

    async def delete(self, name: str) -> None:
        await self._faults.step()
        self._objects.pop(name, None)


class _Registry:
    """A registry in a chunk store: values are its objects."""

    def __init__(self, chunks: SimulatedChunks) -> None:
        self._chunks = chunks

    async def get(self, name: str) -> VersionedValue | None:
        await self._chunks._faults.step()
        value = self._chunks._objects.get(name)
        return None if value is None else VersionedValue(value, str(crc32c(value)))

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        there = self._chunks._objects.get(name)
        assert version == (None if there is None else str(crc32c(there))), "other writers are excluded"
        return await self.put(name, value)

    async def put(self, name: str, value: bytes, *, ends_with_process: bool = False) -> str:
        await self._chunks.put(name, [value])
        return str(crc32c(value))

    async def list(self, folder: str) -> dict[str, str]:
        raise NotImplementedError("a data folder's server knows its containers")

    async def delete(self, name: str) -> None:
        await self._chunks.delete(name)


class MemoryParts(ContainerStorage):
    """A container's storage over an in-memory log."""

    def __init__(
        self,
        number: int,
        folder: Path,
        open_log: Callable[[], MemoryLog],
        chunks: ChunkStore,
        runtime: Runtime,
    ) -> None:
        super().__init__(number, folder, chunks, runtime)
        self._open_new_log = open_log
        self._metadata: ContainerMetadata | None = None
        self._epoch = 0

    async def _claimed(self) -> ContainerRecord:
        record = (await (await self._chunks.records()).read(self.number)).record
        self._epoch = record.epoch
        return record

    async def _open_log(self, record: ContainerRecord) -> MemoryLog:
        return self._open_new_log()

    async def _opened(self, opened: OpenStorage) -> OpenStorage:
        self._metadata = opened.metadata
        return opened

    def killed(self) -> None:
        """Release the resources of a killed server, as the system would."""
        if self._metadata is not None:
            self._metadata.close()

    async def claim_record(self) -> tuple[ContainerRecords, int]:
        return await self._chunks.records(), self._epoch
