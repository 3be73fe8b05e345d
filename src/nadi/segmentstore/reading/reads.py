"""Reads a segment's bytes from memory, from the log, or from chunks with read-ahead.

A read returns the contiguous bytes in memory, or one piece fetched from where it is stored; a small read returns all
the requested bytes, as official readers of index streams take a record from one reply. Concurrent reads of one block
share its fetch, and connections take turns. Everything fetched is verified before it is returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import NamedTuple

from cachetools import FIFOCache

from nadi import errors
from nadi.access.fair_shares import FairQueue, Ticket
from nadi.encryption.sealing import SealBrokenError, Sealing
from nadi.limits import FETCHES_AT_ONCE, MIB, READ_AHEAD_FETCHES, READ_REPLY_MAX_BYTES, READ_WHOLE_BYTES
from nadi.segmentstore.container.cache import BlockCache, BlockLocation, location_in_log
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.counters import StoreCounters
from nadi.segmentstore.fair_scheduler import FairScheduler
from nadi.segmentstore.reading.boundaries import SizesOfEvents, Walks, event_begins
from nadi.segmentstore.state.operations import frame_context
from nadi.segmentstore.state.records import Extent, SegmentKind, SegmentRecord
from nadi.segmentstore.tier1.log import LogRange, PartRead
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError
from nadi.wire.fields import Buffer

CHUNK_BLOCK_BYTES = 4 * MIB  # fetched at once: complete checksum blocks
READ_AHEAD_BLOCKS = 3
_EXTENTS_A_TURN = 500  # joined from the cache per turn: about 1 us each
_DAMAGED_PLACES = 10_000  # remembered


log = logging.getLogger(__name__)


TOGETHER_BYTES, TOGETHER_EXTENTS = 4 * MIB, 4_096  # for callers that need all bytes
AHEAD_BYTES, AHEAD_EXTENTS = MIB // 4, 64  # for a reader, which waits for the first bytes


class Fetched(NamedTuple):
    """The fetched bytes of an extent: `size` bytes from `begin`. damaged: the damaged blocks of the extent, with
    reasons."""

    data: Buffer
    begin: int
    size: int
    damaged: dict[int, str]
    block_bytes: int

    def readable_to(self, within: int) -> int:
        """Return the end of the intact bytes that start at that position of the extent."""
        if not self.damaged:
            return self.begin + self.size
        first = within // self.block_bytes
        ends = [number for number in self.damaged if number >= first]
        return max(within, min(ends) * self.block_bytes) if ends else self.begin + self.size


def is_cut_short(record: SegmentRecord, offset: int, data: Buffer, length: int) -> bool:
    """Return whether a small read at `offset` returned less than available."""
    return 0 < len(data) < length <= READ_WHOLE_BYTES and offset + len(data) < record.durable_length


async def of_log(container: Container, extents: Sequence[Extent]) -> list[Fetched]:
    """Fetch extents of the log, or one in a separate file, each verified. UnavailableError: the log can't be read."""
    parts, first, sealing = [], extents[0], container.state.sealing
    for extent in extents:
        assert extent.frame is not None
        assert extent.frame.address is not None
        parts.append(
            LogRange(extent.frame.address, extent.position, extent.length + sealing.overhead, extent.checksums)
        )
    read: list[PartRead]
    try:
        if first.run and container.runs is not None:
            read = [await container.runs.read_at(first.run, first.position, first.length, first.checksums)]
        else:
            read = await container.log.read_parts(parts)
    except (errors.NotFoundError, errors.CorruptLogError) as error:  # from a separate file
        read = [error]
    except OSError as error:
        raise errors.UnavailableError(f"the log can't be read: {error}") from error
    return [_fetched(extent, part, sealing) for extent, part in zip(extents, read, strict=True)]


def _fetched(extent: Extent, part: PartRead, sealing: Sealing) -> Fetched:
    length = extent.length
    if isinstance(part, errors.CorruptLogError):
        return Fetched(b"", 0, length, {0: f"{part.what}, at byte {part.offset:,} of {part.file}"}, length)
    if isinstance(part, errors.NotFoundError):
        return Fetched(b"", 0, length, {0: str(part)}, length)
    if not sealing.overhead:
        return Fetched(part, 0, length, {}, length)
    assert extent.frame is not None
    try:
        context = frame_context(extent.frame.sequence, extent.position)
        return Fetched(sealing.open(part, context), 0, length, {}, length)
    except SealBrokenError as error:
        return Fetched(b"", 0, length, {0: f"it can't be decrypted: {error}"}, length)


def following(
    extents: Sequence[Extent], first: int, is_at_hand: Callable[[Extent], bool], most_bytes: int, most: int
) -> list[Extent]:
    """Return the extent `first` and those after it that can be fetched from the log with it: up to a chunk or a
    separate file, except those at hand. At most `most` extents with `most_bytes`, unless the first has more."""
    chosen, size = [extents[first]], extents[first].length
    for number in range(first + 1, min(first + most, len(extents))):
        extent = extents[number]
        if extent.frame is None or extent.frame.address is None or extent.run or size + extent.length > most_bytes:
            break
        if not is_at_hand(extent):
            chosen.append(extent)
            size += extent.length
    return chosen


class SegmentReader:
    """The reads of one segment store. walks: finds event boundaries in the bytes read. sizes: finds event sizes."""

    def __init__(
        self, chunks: ChunkStore, cache: BlockCache, scheduler: FairScheduler, counts: StoreCounters | None = None
    ) -> None:
        self.counts = counts or StoreCounters()
        self.walks = Walks(scheduler)
        self.sizes = SizesOfEvents(scheduler)
        self._chunks = chunks
        self._cache = cache
        self._fetches: dict[BlockLocation, _Fetch] = {}
        self._of_chunks = self._of_logs = FairQueue(FETCHES_AT_ONCE)
        if not chunks.is_here:  # fetches from a slow store don't delay those from the log
            self._of_logs = FairQueue(FETCHES_AT_ONCE // 2)
        self._is_away = False  # whether tier 2 failed the last fetch
        self._damaged: FIFOCache[BlockLocation, None] = FIFOCache(_DAMAGED_PLACES)  # no read-ahead for these

    async def location_of_chunks(self) -> tuple[str, str]:
        return self._chunks.url, await self._chunks.mark()

    async def read(
        self, container: Container, name: str, offset: int, length: int, owner: Hashable = None
    ) -> tuple[SegmentRecord, Buffer]:
        """Return up to `length` bytes at `offset`; empty only at the segment's end, where the caller may wait. A small
        read returns all of them. Raises SegmentNotFoundError, TruncatedError, and DamagedDataError at damaged bytes;
        bytes before them are returned, and the error's end is an event boundary."""
        try:
            record, data = await self._read(container, name, offset, length, owner)
            while is_cut_short(record, offset, data, length):
                try:
                    missing = length - len(data)
                    record, more = await self._read(container, name, offset + len(data), missing, owner)
                except errors.NadiError:  # the next read reports it
                    break
                if not more:
                    break
                data = b"".join((data, memoryview(more)[:missing]))
            return record, data
        except errors.UnavailableError as error:
            if isinstance(container.failure, errors.NotOwnerError):  # its log was closed during the read
                raise container.refusal(name) from error
            raise
        except errors.DamagedDataError as error:
            resume_at = await self._next_event(container, name, error.end_offset)
            raise errors.DamagedDataError(name, error.offset, resume_at, error.reason) from error

    async def _read(
        self, container: Container, name: str, offset: int, length: int, owner: Hashable
    ) -> tuple[SegmentRecord, Buffer]:
        while True:
            container.evict_idle()
            record, data = self.at_hand(container, name, offset, length, owner)
            if data is not None:
                return record, data
            if offset >= record.durable_length:
                return record, b""
            state = container.state
            state.record_cache.hold(record)
            try:
                loaded = await self._load(container, record, offset, _bounded(length), owner)
            finally:
                state.record_cache.release(record)
            if loaded is not None:
                return record, loaded

    def at_hand(
        self, container: Container, name: str, offset: int, length: int, owner: Hashable = None
    ) -> tuple[SegmentRecord, Buffer | None]:
        """`read` without waiting: None for bytes that must be fetched, and at a tail that may grow."""
        if container.failure is not None:
            if isinstance(container.failure, errors.NotOwnerError):
                raise container.refusal(name)
            raise errors.UnavailableError(f"the container is recovering: {container.failure}") from container.failure
        if not container.parts.may_answer():
            raise errors.UnavailableError("another server may own this container by now: try again")
        record = container.state.find(name)
        if record is None or not record.exists or record.deleted:
            raise errors.SegmentNotFoundError(name)
        if record.kind == SegmentKind.TABLE:
            raise errors.InvalidArgumentError(f"{name} is a table segment: read its keys")
        if offset < record.start_offset:
            raise errors.TruncatedError(name, offset, record.start_offset)
        if offset >= record.durable_length:
            return record, b"" if record.durable_sealed else None
        return record, self._in_memory(container, record, offset, _bounded(length), owner)

    def _in_memory(
        self, container: Container, record: SegmentRecord, offset: int, length: int, owner: Hashable
    ) -> Buffer | None:
        """Return cached bytes from `offset` on, or None; start fetching the next blocks of chunks."""
        parts: list[Buffer] = []
        end = min(offset + length, record.durable_length)
        index = record.extent_index(offset)
        if record.extents[index].chunk:
            self._read_ahead(record, index, offset, owner)
        while offset < end and index < len(record.extents) and len(parts) < _EXTENTS_A_TURN:
            extent = record.extents[index]
            within = offset - extent.offset
            block = self._cached(container, extent, within, min(extent.length - within, end - offset))
            if block is None:
                self._cache.misses += 1
                break
            parts.append(block)
            offset += len(block)
            index += offset >= extent.end
        if not parts:
            return None
        self._cache.hits += len(parts)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _cached(self, container: Container, extent: Extent, within: int, count: int) -> Buffer | None:
        if extent.frame is not None:
            block = self._cache.get(location_in_log(container.number, extent))
            return None if block is None else memoryview(block)[within : within + count]
        number, skip = divmod(within, CHUNK_BLOCK_BYTES)
        block = self._cache.get((extent.chunk, number, 0))
        if block is None:
            return None
        return memoryview(block)[skip : skip + count]

    def _read_ahead(self, record: SegmentRecord, index: int, offset: int, owner: Hashable) -> None:
        """Fetch the blocks that a sequential reader needs next, across chunks."""
        ahead = READ_AHEAD_BLOCKS
        number = (offset - record.extents[index].offset) // CHUNK_BLOCK_BYTES + 1
        while ahead and index < len(record.extents) and record.extents[index].chunk:
            extent = record.extents[index]
            while ahead and number * CHUNK_BLOCK_BYTES < extent.length:
                if len(self._fetches) >= READ_AHEAD_FETCHES:
                    return  # requested blocks come first
                location = extent.chunk, number, 0
                if location not in self._damaged and self._cache.get(location) is None:
                    self._start_block(extent, number, owner)
                number += 1
                ahead -= 1
            index, number = index + 1, 0

    async def _load(
        self, container: Container, record: SegmentRecord, offset: int, length: int, owner: Hashable
    ) -> Buffer | None:
        """Load one extent's bytes from where they are stored; return None if it was moved or truncated meanwhile.
        Raises DamagedDataError."""
        extent = record.extents[record.extent_index(offset)]
        within = offset - extent.offset
        count = min(extent.length - within, length, record.durable_length - offset)
        if extent.frame is not None:
            begin = 0
            location = location_in_log(container.number, extent)
            task = self._start(location, lambda: self._of_log(container, record, extent), self._of_logs, owner)
        else:
            begin = within // CHUNK_BLOCK_BYTES * CHUNK_BLOCK_BYTES
            task = self._start_block(extent, begin // CHUNK_BLOCK_BYTES, owner)
        fetched = await asyncio.shield(task)
        end = fetched.readable_to(within)
        if end > within:
            return memoryview(fetched.data)[within - begin : min(within + count, end) - begin]
        error = await self._damage(record, extent, within, fetched)
        if not _is_current(record, extent) or offset < record.start_offset:
            return None
        container.damage.note(error)
        raise error

    async def event_begins(self, extent: Extent) -> list[int]:
        """Return the offsets in an extent where events may begin, as far as known."""
        return [extent.offset + begin for begin in await event_begins(extent, self._chunks)]

    async def _next_event(self, container: Container, name: str, offset: int) -> int:
        """Return the first offset at or after `offset` where both an append and an event begin; else the segment's
        end."""
        record, _ = self.at_hand(container, name, offset, 0)
        end = record.durable_length
        if offset >= end:
            return offset
        for extent in record.extents[record.extent_index(offset) :]:
            for begin in await self.event_begins(extent):
                if offset <= begin < end:
                    return begin
        return end

    def _start_block(self, extent: Extent, number: int, owner: Hashable) -> asyncio.Task[Fetched]:
        begin = number * CHUNK_BLOCK_BYTES
        size = min(CHUNK_BLOCK_BYTES, extent.length - begin)
        fetch = partial(self._fetch_chunk, extent, begin, size)
        return self._start((extent.chunk, number, 0), fetch, self._of_chunks, owner)

    def _start(
        self,
        location: BlockLocation,
        fetch: Callable[[], Coroutine[None, None, Fetched]],
        places: FairQueue,
        owner: Hashable,
    ) -> asyncio.Task[Fetched]:
        """Fetch a block into the cache, in one of the owner's turns, unless a fetch is already in flight."""
        pending = self._fetches.get(location)
        if pending is None:
            ticket: Ticket = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._in_turn(ticket, fetch, places))
            task.add_done_callback(lambda done: self._fetched(location, done))
            pending = self._fetches[location] = _Fetch(task, ticket, set())
        if not pending.ticket.done() and owner not in pending.owners:  # its turn may come first
            pending.owners.add(owner)
            places.queue(owner, pending.ticket)
        return pending.task

    @staticmethod
    async def _in_turn(
        ticket: Ticket, fetch: Callable[[], Coroutine[None, None, Fetched]], places: FairQueue
    ) -> Fetched:
        try:
            await ticket
            return await fetch()
        finally:
            if ticket.done() and not ticket.cancelled():
                places.leave()

    def _fetched(self, location: BlockLocation, task: asyncio.Task[Fetched]) -> None:
        self._fetches.pop(location, None)
        if task.cancelled() or task.exception() is not None:
            return
        if task.result().damaged:
            self._damaged[location] = None
        else:
            self._damaged.pop(location, None)
            self._cache.put(location, task.result().data)

    async def _of_log(self, container: Container, record: SegmentRecord, extent: Extent) -> Fetched:
        """Fetch an extent of the log or a separate file; also cache the next extents of the log, for a sequential
        reader."""
        extents = [extent]
        if not extent.run and _is_current(record, extent):
            index = record.extent_index(extent.offset)
            extents = following(record.extents, index, self._has(container), AHEAD_BYTES, AHEAD_EXTENTS)
        results = await of_log(container, extents)
        for following_extent, fetched in zip(extents[1:], results[1:], strict=True):
            if not fetched.damaged:
                self._cache.put(location_in_log(container.number, following_extent), fetched.data)
        return results[0]

    def _has(self, container: Container) -> Callable[[Extent], bool]:
        return lambda extent: self._cache.peek(location_in_log(container.number, extent)) is not None

    async def _fetch_chunk(self, extent: Extent, begin: int, size: int) -> Fetched:
        """Fetch and verify part of a chunk, from a block's start on. ChunksUnavailableError: tier 2 is unavailable."""
        name, first = extent.chunk, begin // BLOCK_BYTES
        try:
            data, numbers = await self._chunks.read_checked(name, begin, size, extent.checksums)
        except errors.NotFoundError:
            missing = range(first, -(-(begin + size) // BLOCK_BYTES))
            return Fetched(b"", begin, size, dict.fromkeys(missing, f"chunk {name} is missing"), BLOCK_BYTES)
        except DiskReadError as error:
            if size <= BLOCK_BYTES:
                return Fetched(b"", begin, size, {first: str(error)}, BLOCK_BYTES)
            # one unreadable block fails the entire read: block by block, the others are recovered
            pieces = [
                await self._fetch_chunk(extent, at, min(BLOCK_BYTES, begin + size - at))
                for at in range(begin, begin + size, BLOCK_BYTES)
            ]
            damaged = {number: reason for piece in pieces for number, reason in piece.damaged.items()}
            joined = b"".join(bytes(piece.data).ljust(piece.size, b"\0") for piece in pieces)
            return Fetched(joined, begin, size, damaged, BLOCK_BYTES)
        except errors.UnavailableError as error:
            if not self._is_away:
                log.warning("tier 2 is unavailable, and reads are retried: %s", error)
            self._is_away = True
            raise errors.ChunksUnavailableError(
                "bytes no longer in the log can't be read now, as tier 2 doesn't answer: try again"
            ) from None
        self._is_away = False
        reason = f"chunk {name} is too short" if len(data) < size else f"chunk {name} has a wrong checksum"
        return Fetched(data, begin, size, dict.fromkeys(numbers, reason), BLOCK_BYTES)

    async def _damage(
        self, record: SegmentRecord, extent: Extent, within: int, fetched: Fetched
    ) -> errors.DamagedDataError:
        """Return the error for damage in an extent: from `within` to the next append that may be intact."""
        last = within // fetched.block_bytes
        reason = fetched.damaged[last]
        while last + 1 in fetched.damaged:
            last += 1
        end = extent.length
        if extent.chunk and (last + 1) * fetched.block_bytes < end:
            description = await self._chunks.describe(extent.chunk, extent.length)
            if description is not None:
                end = min(end, description.resume_at(last + 1))
        return errors.DamagedDataError(record.name, extent.offset + within, extent.offset + end, reason)

    async def verify(self, container: Container, record: SegmentRecord, extent: Extent) -> bool:
        """Read an extent where it is stored, bypassing the cache; raise DamagedDataError if it is damaged. Return False
        if all data is intact, but the chunk's description is damaged or missing."""
        try:
            await self.read_exactly(container, record, [extent], past_cache=True)
            return not extent.chunk or await self._chunks.description(extent.chunk, extent.length) is not None
        except errors.NotFoundError:
            return True  # moved, compacted or truncated meanwhile

    async def read_exactly(
        self, container: Container, record: SegmentRecord, extents: list[Extent], *, past_cache: bool = False
    ) -> list[Buffer]:
        """Return all bytes of some of the segment's extents in parts, each verified; those of the log from the cache,
        if present, unless `past_cache`. Raises DamagedDataError; NotFoundError if they no longer belong to the
        segment."""
        parts: list[Buffer] = []
        together: dict[int, Fetched] = {}  # fetched from the log, by offset
        is_at_hand = self._has(container) if not past_cache else lambda extent: False
        for number, extent in enumerate(extents):
            if number % _EXTENTS_A_TURN == 0:
                await asyncio.sleep(0)
            block = None
            if extent.frame is not None and not past_cache:
                block = self._cache.peek(location_in_log(container.number, extent))
            if block is not None:
                parts.append(block if len(block) == extent.length else memoryview(block)[: extent.length])
                continue
            if extent.offset in together:
                fetched = together.pop(extent.offset)
            elif extent.frame is None:
                fetched = await self._fetch_chunk(extent, 0, extent.length)
            else:
                group = [extent]
                if not extent.run:
                    group = following(extents, number, is_at_hand, TOGETHER_BYTES, TOGETHER_EXTENTS)
                results = await of_log(container, group)
                together.update(zip((each.offset for each in group[1:]), results[1:], strict=True))
                fetched = results[0]
            if fetched.damaged:
                error = await self._damage(record, extent, min(fetched.damaged) * fetched.block_bytes, fetched)
                if not _is_current(record, extent):
                    raise errors.NotFoundError(f"the bytes of {record.name} were moved or truncated")
                container.damage.note(error)
                raise error
            parts.append(fetched.data)
        return parts


class _Fetch(NamedTuple):
    """A fetch in flight, or waiting for a turn of one of its owners."""

    task: asyncio.Task[Fetched]
    ticket: Ticket
    owners: set[Hashable]


def _bounded(length: int) -> int:
    return min(READ_REPLY_MAX_BYTES, max(8, length))


def _is_current(record: SegmentRecord, extent: Extent) -> bool:
    if record.deleted or not record.extents or extent.offset < record.extents[0].offset:
        return False
    return record.extents[record.extent_index(extent.offset)] is extent
