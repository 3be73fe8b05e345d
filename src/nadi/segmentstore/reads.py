"""Reading a segment's bytes: from memory, from the log, or from chunks with read-ahead.

A read gives what lies contiguously in memory, or one piece fetched from where it is; less than was
asked for is always fine. Concurrent reads of one block share its fetch.
"""

from __future__ import annotations

import asyncio

from nadi.errors import (
    CorruptLogError,
    DamagedDataError,
    InvalidArgumentError,
    NotFoundError,
    SegmentNotFoundError,
    TruncatedError,
    UnavailableError,
)
from nadi.limits import MIB, READ_REPLY_MAX_BYTES
from nadi.segmentstore.cache import BlockCache, Place
from nadi.segmentstore.container import Container
from nadi.segmentstore.records import Extent, Kind, SegmentRecord
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.wire.fields import Buffer

CHUNK_BLOCK_BYTES = 4 * MIB
READ_AHEAD_BLOCKS = 3


class SegmentReader:
    """Reads for one segment store."""

    def __init__(self, chunks: ChunkStore, cache: BlockCache) -> None:
        self._chunks = chunks
        self._cache = cache
        self._fetches: dict[Place, asyncio.Task[memoryview]] = {}

    async def read(self, container: Container, name: str, offset: int, length: int) -> tuple[SegmentRecord, Buffer]:
        """Up to `length` bytes at `offset`, waiting for the first of them at the tail.

        Empty only where the segment is sealed and ends. Raises SegmentNotFoundError, TruncatedError, DamagedDataError.
        """
        while True:
            container.make_room()
            record, data = self.at_hand(container, name, offset, length)
            if data is not None:
                return record, data
            state = container.state
            state.residents.hold(record)
            extent = None
            try:
                if offset < record.durable_length:
                    extent = record.extents[record.extent_index(offset)]
                    return record, await self._load(container, record, offset, _bounded(length))
                await _growth(record)
            except NotFoundError as error:
                if extent is not None and state.find(name) is record and _is_at(record, offset, extent):
                    raise DamagedDataError(name, offset, extent.end, str(error)) from error
                # else it was moved, compacted or truncated meanwhile: look again
            finally:
                state.residents.release(record)

    def at_hand(self, container: Container, name: str, offset: int, length: int) -> tuple[SegmentRecord, Buffer | None]:
        """`read` as far as it goes without waiting: None for what must be fetched, and at the tail."""
        if container.failure is not None:
            raise UnavailableError(f"the container recovers: {container.failure}") from container.failure
        record = container.state.find(name)
        if record is None or not record.exists or record.deleted:
            raise SegmentNotFoundError(name)
        if record.kind == Kind.TABLE:
            raise InvalidArgumentError(f"{name} is a table segment: read its keys")
        if offset < record.start_offset:
            raise TruncatedError(name, offset, record.start_offset)
        if offset >= record.durable_length:
            return record, b"" if record.durable_sealed else None
        return record, self._in_memory(container, record, offset, _bounded(length))

    def _in_memory(self, container: Container, record: SegmentRecord, offset: int, length: int) -> Buffer | None:
        """What follows `offset` in the cache, or None; blocks of chunks that come next are fetched meanwhile."""
        parts: list[Buffer] = []
        end = min(offset + length, record.durable_length)
        index = record.extent_index(offset)
        if record.extents[index].chunk:
            self._read_ahead(record, index, offset)
        while offset < end and index < len(record.extents):
            extent = record.extents[index]
            within = offset - extent.offset
            block = self._cached(container, extent, within, min(extent.length - within, end - offset))
            if block is None:
                break
            parts.append(block)
            offset += len(block)
            index += offset >= extent.end
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _cached(self, container: Container, extent: Extent, within: int, count: int) -> Buffer | None:
        if extent.frame is not None:
            block = self._cache.get((f"{container.number}", extent.frame.sequence, extent.position))
            return None if block is None else memoryview(block)[within : within + count]
        number, skip = divmod(within, CHUNK_BLOCK_BYTES)
        block = self._cache.get((extent.chunk, number, 0))
        if block is None:
            return None
        return memoryview(block)[skip : skip + count]

    def _read_ahead(self, record: SegmentRecord, index: int, offset: int) -> None:
        """Fetch the blocks that a reader in order will ask for next, across chunks."""
        ahead = READ_AHEAD_BLOCKS
        number = (offset - record.extents[index].offset) // CHUNK_BLOCK_BYTES + 1
        while ahead and index < len(record.extents) and record.extents[index].chunk:
            extent = record.extents[index]
            while ahead and number * CHUNK_BLOCK_BYTES < extent.length:
                self._start_block(extent, number)
                number += 1
                ahead -= 1
            index, number = index + 1, 0

    async def _load(self, container: Container, record: SegmentRecord, offset: int, length: int) -> Buffer:
        """What one extent has there, from where it lies."""
        extent = record.extents[record.extent_index(offset)]
        within = offset - extent.offset
        count = min(extent.length - within, length, record.durable_length - offset)
        if extent.frame is not None:
            assert extent.frame.address is not None
            return await container.log.read_at(extent.frame.address, extent.position + within, count)
        number, skip = divmod(within, CHUNK_BLOCK_BYTES)
        task = self._start_block(extent, number)
        block = await asyncio.shield(task) if task is not None else self._cache.get((extent.chunk, number, 0))
        if block is None:
            raise NotFoundError(extent.chunk)
        return memoryview(block)[skip : skip + count]

    def _start_block(self, extent: Extent, number: int) -> asyncio.Task[memoryview] | None:
        """Fetch one block of a chunk into the cache, unless it is there or on its way."""
        place = (extent.chunk, number, 0)
        if self._cache.get(place) is not None:
            return None
        task = self._fetches.get(place)
        if task is None:
            start = number * CHUNK_BLOCK_BYTES
            size = min(CHUNK_BLOCK_BYTES, extent.length - start)
            task = asyncio.create_task(self._chunks.read(extent.chunk, start, size))
            self._fetches[place] = task
            task.add_done_callback(lambda done: self._fetched(place, done))
        return task

    def _fetched(self, place: Place, task: asyncio.Task[memoryview]) -> None:
        self._fetches.pop(place, None)
        if not task.cancelled() and task.exception() is None:
            self._cache.put(place, task.result())

    async def verify(self, container: Container, record: SegmentRecord, extent: Extent) -> None:
        """Read an extent where it lies, past the cache; DamagedDataError if it is not what was stored."""
        try:
            if extent.frame is not None:
                assert extent.frame.address is not None
                data: Buffer = await container.log.read_at(extent.frame.address, extent.position, extent.length)
            else:
                data = await self._chunks.read(extent.chunk, 0, extent.length)
        except NotFoundError as error:
            if _is_at(record, extent.offset, extent):
                raise DamagedDataError(record.name, extent.offset, extent.end, str(error)) from error
            return  # moved, compacted or truncated meanwhile
        except CorruptLogError as error:
            raise DamagedDataError(record.name, extent.offset, extent.end, str(error).partition(". ")[0]) from error
        if len(data) < extent.length:
            raise DamagedDataError(record.name, extent.offset, extent.end, f"{extent.chunk} is too short")

    async def read_exactly(self, container: Container, extents: list[Extent]) -> list[Buffer]:
        """All bytes of the extents in parts, for the storage writer: past the cache where they are not in it."""
        parts: list[Buffer] = []
        for extent in extents:
            if extent.frame is not None:
                block = self._cached(container, extent, 0, extent.length)
                if block is None:
                    assert extent.frame.address is not None
                    block = await container.log.read_at(extent.frame.address, extent.position, extent.length)
            else:
                block = await self._chunks.read(extent.chunk, 0, extent.length)
            parts.append(block)
        return parts


async def _growth(record: SegmentRecord) -> None:
    """Wait until something durable happened to the segment."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def grew() -> None:
        if not waiter.done():
            waiter.set_result(None)

    record.waiters.append(grew)
    try:
        await waiter
    finally:
        if grew in record.waiters:
            record.waiters.remove(grew)


def _bounded(length: int) -> int:
    """Of a reply, whatever was asked for."""
    return min(READ_REPLY_MAX_BYTES, max(8, length))


def _is_at(record: SegmentRecord, offset: int, extent: Extent) -> bool:
    """Whether the extent still has what the segment has there."""
    if record.deleted or offset < record.start_offset or not record.extents:
        return False
    now = record.extents[record.extent_index(offset)]
    return (now.chunk, now.frame) == (extent.chunk, extent.frame)
