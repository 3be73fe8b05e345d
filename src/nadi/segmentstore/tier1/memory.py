"""A durable log in memory, for tests: what is "on disk" lives in a MemoryStorage that outlives the log.

Open the same storage again to see what a restarted server would see; the former log is then fenced.
`MemoryStorage.capacity_bytes` is the size of the "disk".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from nadi.errors import ClosedError, CorruptLogError, NotFoundError, StorageFullError, UnavailableError
from nadi.segmentstore.tier1.log import NOTHING, LogAddress


@dataclass(slots=True)
class MemoryStorage:
    """The frames by sequence, as a disk would keep them; they never have gaps."""

    frames: dict[int, bytes] = field(default_factory=dict)
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

    def replay(self, after_sequence: int) -> Iterator[tuple[LogAddress, bytes]]:
        assert self._next_sequence == 0, "replay() is for once, before the first append"
        frames = self._storage.frames
        lowest = min(frames, default=after_sequence + 1)
        if lowest > after_sequence + 1:
            what = f"frames {after_sequence + 1:,} to {lowest - 1:,} are missing"
            raise CorruptLogError("memory", 0, what)
        for sequence in sorted(frames):
            if sequence > after_sequence:
                yield LogAddress(sequence, 0, 0), frames[sequence]
        self._next_sequence = max(max(frames, default=0), after_sequence) + 1

    @property
    def is_full(self) -> bool:
        return self.room_bytes() <= 0

    def room_bytes(self, of_kept: float = NOTHING) -> int:
        return self._storage.capacity_bytes - self.size_bytes

    async def settle(self, payload_bytes: int) -> None:
        pass

    async def append(self, parts: Sequence[bytes]) -> LogAddress:
        assert self._next_sequence > 0, "replay() must have ended before the first append"
        assert not self._appending, "one append at a time"
        self._check_open()
        self._appending = True
        try:
            payload = b"".join(parts)
            await asyncio.sleep(0)  # others run while a disk writes
            self._check_open()
            if self.size_bytes + len(payload) > self._storage.capacity_bytes:
                self._failed = True
                raise StorageFullError("the memory log is full: raise its capacity_bytes and open it again")
            address = LogAddress(self._next_sequence, 0, 0)
            self._storage.frames[address.sequence] = payload
            self._next_sequence += 1
            return address
        finally:
            self._appending = False

    async def read_at(self, address: LogAddress, offset: int, length: int) -> bytes:
        await asyncio.sleep(0)
        return self.read_at_now(address, offset, length)

    def read_at_now(self, address: LogAddress, offset: int, length: int) -> bytes:
        if self._closed:
            raise ClosedError("the memory log is closed")
        payload = self._storage.frames.get(address.sequence)
        if payload is None:
            raise NotFoundError(f"frame {address.sequence:,} was released from the memory log")
        assert 0 <= offset <= offset + length <= len(payload), "a read stays inside its frame"
        return payload[offset : offset + length]

    def truncate(self, before_sequence: int) -> None:
        frames = self._storage.frames
        newest = max(frames, default=0)  # stays, as in a file log: it says where the numbers go on
        for sequence in [s for s in frames if s < before_sequence and s != newest]:
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
