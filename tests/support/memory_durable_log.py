"""An in-memory durable log for tests: the "disk" is a MemoryStorage that outlives the log.

Open the same storage again to see what a restarted server would see; the former log is then fenced.
`MemoryStorage.capacity_bytes` is the size of the "disk".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Self

from crc32c import crc32c

from nadi.errors import ClosedError, CorruptLogError, NotFoundError, StorageFullError, UnavailableError
from nadi.segmentstore.tier1.log import (
    NOTHING,
    AppendedFrame,
    Frame,
    HeadsPage,
    LogAddress,
    LogRange,
    PartRead,
    read_each,
)


@dataclass(slots=True)
class MemoryStorage:
    """The frames by sequence, as on a disk."""

    frames: dict[int, bytes] = field(default_factory=dict)
    sizes: dict[int, list[int]] = field(default_factory=dict)  # of each frame's parts
    checksums: dict[int, list[bytes]] = field(default_factory=dict)  # of each frame's parts
    epoch: int = 0
    capacity_bytes: int = 1 << 62


class MemoryLog:
    """A DurableLog over a MemoryStorage."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._next_sequence = 0  # 0 until replay() has ended
        self._appending = False
        self._failed = False
        self._closed = False
        self.epoch = storage.epoch

    @classmethod
    def open(cls, storage: MemoryStorage) -> Self:
        storage.epoch += 1
        return cls(storage)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self._storage.frames.values()))

    @property
    def last_sequence(self) -> int:
        return max(0, self._next_sequence - 1)

    async def replay(self, after_sequence: int) -> AsyncIterator[Frame]:
        assert self._next_sequence == 0, "replay() must be called once, before the first append"
        frames = self._storage.frames
        lowest, newest = min(frames, default=after_sequence + 1), max(frames, default=0)
        if lowest > after_sequence + 1:
            what = f"frames {after_sequence + 1:,} to {lowest - 1:,} are missing"
            raise CorruptLogError("memory", 0, what)
        if newest < after_sequence:
            raise CorruptLogError("memory", 0, f"the log ends before frame {newest + 1:,}")
        for sequence in range(after_sequence + 1, newest + 1):
            if sequence not in frames or not self._is_whole(sequence, 0):
                raise CorruptLogError("memory", 0, f"frame {sequence:,} can't be read")
            checksums = self._storage.checksums[sequence]
            damaged = [part - 1 for part in range(1, len(checksums)) if not self._is_whole(sequence, part)]
            address = LogAddress(sequence, 0, 0)
            yield Frame(address, frames[sequence], b"".join(checksums[1:]), tuple(damaged))
        self._next_sequence = newest + 1

    def _is_whole(self, sequence: int, part: int) -> bool:
        sizes, checksums = self._storage.sizes[sequence], self._storage.checksums[sequence]
        begin = sum(sizes[:part])
        data = self._storage.frames[sequence][begin : begin + sizes[part]]
        return _checksum(data, sequence, begin) == checksums[part]

    @property
    def is_full(self) -> bool:
        return self.free_bytes() <= 0

    @property
    def sure_bytes(self) -> int:
        return self.free_bytes()

    def free_bytes(self, of_reserve: float = NOTHING) -> int:
        return self._storage.capacity_bytes - self.size_bytes

    def is_settled(self, payload_bytes: int) -> bool:
        return True

    async def settle(self, payload_bytes: int) -> None:
        pass

    async def append(self, parts: Sequence[bytes]) -> AppendedFrame:
        assert self._next_sequence > 0, "replay() must finish before the first append"
        assert not self._appending, "one append at a time"
        self._check_open()
        self._appending = True
        try:
            payload = b"".join(parts)
            await asyncio.sleep(0)  # other tasks run while a disk writes
            self._check_open()
            if self.size_bytes + len(payload) > self._storage.capacity_bytes:
                self._failed = True
                raise StorageFullError("the memory log is full: raise its capacity_bytes and open it again")
            address = LogAddress(self._next_sequence, 0, 0)
            sizes = list(map(len, parts or [b""]))
            begins = [0, *accumulate(sizes)]
            checksums = [
                _checksum(part, address.sequence, at) for part, at in zip(parts or [b""], begins, strict=False)
            ]
            self._storage.frames[address.sequence] = payload
            self._storage.sizes[address.sequence], self._storage.checksums[address.sequence] = sizes, checksums
            self._next_sequence += 1
            return AppendedFrame(address, b"".join(checksums[1:]))
        finally:
            self._appending = False

    async def read_at(self, address: LogAddress, offset: int, length: int, checksum: bytes = b"") -> bytes:
        await asyncio.sleep(0)
        if self._closed:
            raise ClosedError("the memory log is closed")
        payload = self._storage.frames.get(address.sequence)
        if payload is None:
            raise NotFoundError(
                f"frame {address.sequence:,} is not in the memory log: it was truncated or never written"
            )
        data = payload[offset : offset + length]
        if checksum:
            is_whole = _checksum(data, address.sequence, offset) == checksum
        else:
            parts = range(len(self._storage.sizes[address.sequence]))
            is_whole = all(self._is_whole(address.sequence, part) for part in parts)
        if len(data) < length or not is_whole:
            raise CorruptLogError("memory", offset, f"frame {address.sequence:,} has a wrong checksum")
        return data

    async def read_parts(self, parts: Sequence[LogRange]) -> list[PartRead]:
        return await read_each(self.read_at, parts)

    async def read_heads(self, after_sequence: int) -> AsyncIterator[HeadsPage]:
        for sequence in range(after_sequence + 1, self._next_sequence):
            await asyncio.sleep(0)
            if sequence < min(self._storage.frames, default=0):
                continue  # released
            damages = []
            if sequence not in self._storage.frames or not self._is_whole(sequence, 0):
                damages.append(CorruptLogError("memory", 0, f"the head of frame {sequence:,} has a wrong checksum"))
            head_bytes = self._storage.sizes.get(sequence, [0])[0]
            yield HeadsPage(0, sequence + 1, head_bytes, tuple(damages))

    def has(self, address: LogAddress, length: int) -> bool:
        return len(self._storage.frames.get(address.sequence, b"")) >= length

    def truncate(self, before_sequence: int, keep: Iterable[LogAddress] = ()) -> None:
        frames, kept = self._storage.frames, {address.sequence for address in keep}
        newest = max(frames, default=0)  # stays, as in a file log, to preserve the numbering
        for sequence in [s for s in frames if s < before_sequence and s != newest and s not in kept]:
            del frames[sequence]

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the memory log is closed")
        if self.epoch != self._storage.epoch:
            raise ClosedError(f"the memory log was opened by another owner (this one had epoch {self.epoch})")
        if self._failed:
            raise UnavailableError("an append to the memory log has failed: open it again")


def _checksum(data: bytes, sequence: int, position: int) -> bytes:
    return crc32c(data, crc32c(b"%d %d" % (sequence, position))).to_bytes(4, "little")
