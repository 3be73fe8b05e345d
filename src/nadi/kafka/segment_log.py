"""The offsets of a segment's records, by partition.

A partition's offsets count its records through its chain of segments. They follow from the stored events alone, so any
door computes the same ones. A `SegmentLog` counts as it scans its segment; a row per some MiB records how far each
partition had come at an event boundary (`Row`). Rows are in memory, and some of them in the scope's table, where a
later door begins. Chunks, the batches between two rows, are cached.

The first row is at the segment's head. Once the segment is truncated, the offsets there are counted back from the next
row. If there is none, they are ones that no door can have given to any record, and doors that counted further adopt
them.

What a door writes itself is counted from the acknowledgement, without being read back.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import msgspec
from cachetools import LRUCache

from nadi.client.segments.assemble import EventAssembler
from nadi.client.segments.info import segment_info
from nadi.client.segments.segment_input import read_bytes
from nadi.client.segments.stores import SegmentStores
from nadi.client.tables.catalog import entries_of
from nadi.client.tables.table import ABSENT, Table
from nadi.errors import ConditionFailedError
from nadi.kafka.batches import NO_TIME, Batch, event_batch
from nadi.limits import KAFKA_CHUNK_BYTES, KAFKA_ROW_BYTES, KAFKA_ROW_S, KAFKA_ROWS
from nadi.model.event import EventBlock
from nadi.model.framing import HEADER_BYTES
from nadi.model.segments import SegmentRange
from nadi.naming import segment_name

_SKIPPED = 1 << 16  # offsets to skip for a byte that was truncated before it was counted: no batch has more
_UNCOUNTED = KAFKA_ROW_BYTES * _SKIPPED  # above the rows' offsets: a door gives higher ones only after it stored a row
_UNKNOWN_OFFSET = -1  # of a record that was truncated before it was counted
_OWN_FIRST_S = 0.005  # wait for own acknowledgements before reading what others wrote


class PlacedBatch(NamedTuple):
    """A batch with its first record's offset, and its event's position in the segment."""

    offset: int
    position: int
    batch: Batch

    @property
    def end(self) -> int:
        return self.offset + self.batch.count


@dataclass(slots=True)
class Chunk:
    """The batches of consecutive events, by partition."""

    start: int
    batches: dict[int, list[PlacedBatch]] = field(default_factory=dict)
    size: int = 0

    @property
    def end(self) -> int:
        return self.start + self.size

    def add(self, placed: PlacedBatch) -> None:
        self.batches.setdefault(placed.batch.partition, []).append(placed)
        self.size += HEADER_BYTES + len(placed.batch.data)

    def from_offset(self, partition: int, offset: int) -> list[PlacedBatch]:
        """Return the partition's batches that end after `offset`."""
        batches = self.batches.get(partition, [])
        return batches[bisect_right(batches, offset, key=attrgetter("end")) :]


@dataclass(frozen=True, slots=True)
class Row:
    """State at an event boundary: the next offset, and the latest timestamp so far, of each partition."""

    position: int
    offsets: tuple[int, ...]
    times: tuple[int, ...]

    def is_above(self, later: Row) -> bool:
        """Return whether any offset is higher than at a later position: then these rows have not been counted alike."""
        return any(offset > other for offset, other in zip(self.offsets, later.offsets, strict=True))


class ChunkCache(LRUCache[tuple[str, int], Chunk]):
    """The cached chunks of a door, by segment and position, up to a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(most_bytes, lambda chunk: chunk.size)


class LogStorage(NamedTuple):
    """What the logs of a topic share. prefix: of the topic's rows in the table."""

    stores: SegmentStores
    scope: str
    stream: str
    table: Table
    prefix: str
    chunks: ChunkCache


async def unused_offsets(storage: LogStorage, partitions: Sequence[int]) -> list[int]:
    """Return an offset for each partition that no door has given to a record; 0 if no door has counted it."""
    highest: dict[int, int] = {}
    async for entry in entries_of(storage.stores, storage.scope, storage.table, storage.prefix.encode()):
        if b"/" in entry.key:  # a row
            for partition, (offset, _) in _states_in(entry.value).items():
                highest[partition] = max(offset, highest.get(partition, 0))
    return [highest[partition] + _UNCOUNTED if partition in highest else 0 for partition in partitions]


def _states_in(value: bytes) -> dict[int, tuple[int, int]]:
    """Return the next offset and the latest timestamp of each partition in a stored row."""
    return msgspec.msgpack.decode(value, type=dict[int, tuple[int, int]])


class SegmentLog:
    """One segment: call `load` first. partitions: those whose keys it takes; `end_offset` and the like take one."""

    def __init__(self, storage: LogStorage, segment: SegmentRange, partitions: Sequence[int]) -> None:
        self.segment, self.partitions = segment, partitions
        self._index = {partition: at for at, partition in enumerate(partitions)}
        self.name = segment_name(storage.scope, storage.stream, segment.segment_id)
        self.is_complete = False  # sealed, and counted to its end
        self.version = 0  # grows with each change
        self._storage = storage
        self._prefix = f"{storage.prefix}{segment.segment_id:016x}/".encode()
        self._rows: list[Row] = []
        self._position = 0
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._tail = Chunk(0)
        self._scanning = asyncio.Lock()
        self._own: dict[int, list[Batch]] = {}  # acknowledged, behind bytes that are not counted yet
        self._placing: dict[int, asyncio.Future[int]] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._recorded = 0  # position of the last row in the table
        self._for_now: int | None = None  # position of another one, until a later one is stored
        self._timer: asyncio.TimerHandle | None = None

    # --- opening ------------------------------------------------------------------------------

    async def load(self) -> bool:
        """Read the rows; return False if there are none: then `begin` must follow."""
        self._rows = await self._stored_rows()
        if self._rows:
            self._resume(self._rows[-1])
        return bool(self._rows)

    async def _stored_rows(self) -> list[Row]:
        """Return the rows in the table, without those of doors that missed higher offsets."""
        rows: list[Row] = []
        entries = entries_of(self._storage.stores, self._storage.scope, self._storage.table, self._prefix)
        async for entry in entries:
            row = self._decoded(int(entry.key, 16), entry.value)
            if not rows or not rows[-1].is_above(row):
                rows.append(row)
        return rows

    async def begin(self, offsets: Sequence[int], times: Sequence[int]) -> None:
        """Set the partitions' state at the start of the segment: that of its predecessors at their ends."""
        row = await self._recorded_row(Row(0, tuple(offsets), tuple(times)))
        self._rows = [row]
        self._resume(row)

    def _resume(self, row: Row) -> None:
        self._position = self._recorded = row.position
        self._offsets, self._times = list(row.offsets), list(row.times)
        self._tail = Chunk(row.position)

    async def _recorded_row(self, row: Row) -> Row:
        """Store a row and return it, or the row that another door has stored there."""
        key = self._key(row.position)
        try:
            state = dict(zip(self.partitions, zip(row.offsets, row.times, strict=True), strict=True))
            await self._storage.table.put(key, msgspec.msgpack.encode(state), ABSENT)
        except ConditionFailedError:
            stored = await self._storage.table.get(key)
            return row if stored is None else self._decoded(row.position, stored.value)
        return row

    def _key(self, position: int) -> bytes:
        return self._prefix + b"%016x" % position

    def _decoded(self, position: int, value: bytes) -> Row:
        state = _states_in(value)
        pairs = [state.get(partition, (0, NO_TIME)) for partition in self.partitions]  # 0: a partition added since
        return Row(position, tuple(offset for offset, _ in pairs), tuple(time for _, time in pairs))

    # --- offsets ------------------------------------------------------------------------------

    @property
    def begin_position(self) -> int:
        """The segment's head, as far as it is known."""
        return self._rows[0].position

    def end_offset(self, partition: int) -> int:
        """Return the offset behind the partition's last record that was counted."""
        return self._offsets[self._index[partition]]

    def state(self, partition: int) -> tuple[int, int]:
        """Return `end_offset` and the latest timestamp."""
        return self.end_offset(partition), self._times[self._index[partition]]

    @property
    def position(self) -> int:
        """Where counting has come."""
        return self._position

    # --- counting -----------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Count to the segment's current end."""
        async with self._scanning:
            if self.is_complete:
                return
            info = await segment_info(self._storage.stores, self.name)
            await self._begin_at(info.start_offset)
            await self._scan(info.write_offset)
            self.is_complete = info.is_sealed and self._position == info.write_offset
            if self._position - self._recorded >= KAFKA_ROW_BYTES or (
                self.is_complete and self._recorded < self._position
            ):
                await self._record()
            self._record_soon()
            if self.is_complete:
                self._notify()

    async def _record(self) -> None:
        row = self._row()
        self._recorded = row.position
        await self._recorded_row(row)

    async def begin_at(self, head: int) -> None:
        """Continue without what precedes the segment's head, which was truncated."""
        if head > self.begin_position:
            async with self._scanning:
                await self._begin_at(head)

    async def _begin_at(self, head: int) -> None:
        if head <= self.begin_position:
            return
        stored = await self._stored_rows()
        known = [*self._rows, self._row()]
        if any(row.is_above(known[_index_at(known, row.position)]) for row in stored if row.position <= self._position):
            self._adopt(stored)  # another door began at a head that no row was behind
            known = stored
        rows = sorted({row.position: row for row in (*stored, *known)}.values(), key=attrgetter("position"))
        following = _index_at(rows, head)
        expected = await self._row_at(head, rows[max(following - 1, 0)], rows[following:])
        row = await self._recorded_row(expected)
        if following < len(rows):
            if row.is_above(expected):  # it was stored meanwhile
                await self._begin_at(head)
                return
            row = expected
        self._rows = [row, *(each for each in self._rows if each.position > head)]
        if self._position < head:
            self._resume(row)
            for start in [start for start in self._placing if start < head]:
                self._placing.pop(start).set_result(_UNKNOWN_OFFSET)

    def _adopt(self, rows: list[Row]) -> None:
        """Continue with the rows of other doors, after the last one."""
        self._rows, self.is_complete = rows, False
        self._resume(rows[-1])
        for key in [key for key in self._storage.chunks if key[0] == self.name]:
            del self._storage.chunks[key]

    async def _row_at(self, head: int, before: Row, following: Sequence[Row]) -> Row:
        """Return the row at the segment's head, between or behind others."""
        if not following:
            offsets = await unused_offsets(self._storage, self.partitions)
            skipped = (head - before.position) * _SKIPPED  # other doors may begin at other heads
            return Row(head, tuple(offset + skipped for offset in offsets), before.times)
        if following[0].position == head:
            return following[0]
        counts = [0] * len(self.partitions)
        async with aclosing(self._blocks(head, following[0].position)) as blocks:
            async for block in blocks:
                for event in block.events():
                    batch = self._batch_of(event)
                    if (at := self._index.get(batch.partition)) is not None:
                        counts[at] += batch.count
        offsets = [max(offset - count, 0) for offset, count in zip(following[0].offsets, counts, strict=True)]
        return Row(head, tuple(offsets), before.times)

    async def _blocks(self, start: int, end: int) -> AsyncGenerator[EventBlock, None]:
        """Yield the segment's events."""
        assembler = EventAssembler(start)
        async with aclosing(read_bytes(self._storage.stores, self.name, start, end, purpose=_PURPOSE)) as pieces:
            async for data in pieces:
                for block in assembler.feed(data):
                    yield block

    async def _scan(self, end: int) -> None:
        if self._position >= end:
            return
        async with aclosing(self._blocks(self._position, end)) as blocks:
            async for block in blocks:
                position = block.offset
                for event in block.events():
                    if position == self._position:  # otherwise counted from an acknowledgement meanwhile
                        self._place(self._batch_of(event))
                    position += HEADER_BYTES + len(event)
        self._notify()

    def _batch_of(self, event: bytes) -> Batch:
        return event_batch(event, self._index, self.partitions[0] if self.partitions else 0)

    def _place(self, batch: Batch) -> int:
        """Count the next event; return its first record's offset."""
        at = self._index.get(batch.partition)
        offset = 0 if at is None else self._offsets[at]
        placed = PlacedBatch(offset, self._position, batch)
        if self._tail.size >= KAFKA_CHUNK_BYTES:
            self._end_chunk()
        self._tail.add(placed)
        if at is not None:
            self._offsets[at] = placed.end
            self._times[at] = max(self._times[at], batch.max_ms)
        if (waiter := self._placing.pop(self._position, None)) is not None and not waiter.done():
            waiter.set_result(offset)
        self._position += HEADER_BYTES + len(batch.data)
        return offset

    def _end_chunk(self) -> None:
        self._keep(self._tail)
        if len(self._rows) >= KAFKA_ROWS:
            self._rows[: KAFKA_ROWS // 2] = self._rows[: KAFKA_ROWS // 2 : 2]
        self._rows.append(self._row())
        self._tail = Chunk(self._position)

    def _keep(self, chunk: Chunk) -> None:
        if chunk.size <= self._storage.chunks.maxsize:
            self._storage.chunks[self.name, chunk.start] = chunk

    def _row(self) -> Row:
        return Row(self._position, tuple(self._offsets), tuple(self._times))

    # --- own writes ---------------------------------------------------------------------------

    async def add(self, end: int, batches: list[Batch]) -> list[int]:
        """Count batches that this door has written, up to `end`; return their first records' offsets."""
        start = end - sum(HEADER_BYTES + len(batch.data) for batch in batches)
        if start == self._position and not self._scanning.locked():
            offsets = [self._place(batch) for batch in batches]
            self._take_own()
            self._notify()
            self._record_soon()
            return offsets
        if start < self._position:
            return await self._placed(start, batches)
        self._own[start] = batches
        waiter = self._placing.setdefault(start, asyncio.get_running_loop().create_future())
        await asyncio.wait([waiter], timeout=_OWN_FIRST_S)
        if not waiter.done():
            await self.refresh()
            if not waiter.done():
                self._take_own()
        return _consecutive(await waiter, batches)

    def _take_own(self) -> None:
        while (batches := self._own.pop(self._position, None)) is not None:
            for batch in batches:
                self._place(batch)
        for start in [start for start in self._own if start < self._position]:
            del self._own[start]

    async def _placed(self, start: int, batches: list[Batch]) -> list[int]:
        """Return the offsets of batches that were counted before."""
        chunk = self._tail if start >= self._tail.start else await self._chunk_at(start)
        entries = chunk.batches.get(batches[0].partition, [])
        at = bisect_left(entries, start, key=attrgetter("position"))
        return _consecutive(entries[at].offset, batches)

    def recent_offset(self, batch: Batch) -> int:
        """Return the offset of a batch that was stored lately; -1 if it isn't found."""
        for placed in reversed(self._tail.batches.get(batch.partition, [])):
            if placed.batch.repeats(batch):
                return placed.offset
        return -1

    async def record_at(self, position: int) -> None:
        """Store a row at an event's position, before what precedes it is truncated."""
        row = self._row() if position == self._position else self._row_before(position)
        if row.position != position:
            offsets = [await self.offset_at(partition, position) for partition in self.partitions]
            row = Row(position, tuple(offsets), row.times)  # what precedes it isn't looked for by time
        row = await self._recorded_row(row)
        if self._row_before(position).position != position:
            insort(self._rows, row, key=attrgetter("position"))

    def _record_soon(self) -> None:
        """Store a row now, if the last one is far, or else within some seconds, until the next such one."""
        if self._position - self._recorded >= KAFKA_ROW_BYTES:
            row, self._recorded = self._row(), self._position
            _start(self._recorded_row(row))
        elif self._timer is None and self._position > self._recorded:
            self._timer = asyncio.get_running_loop().call_later(KAFKA_ROW_S, lambda: _start(self._record_for_now()))

    async def _record_for_now(self) -> None:
        self._timer = None
        if self._position not in (self._recorded, self._for_now):
            before, self._for_now = self._for_now, self._position
            await self._recorded_row(self._row())
            if before is not None:
                await self._storage.table.remove(self._key(before))

    # --- reading ------------------------------------------------------------------------------

    async def batches_from(self, partition: int, offset: int) -> list[PlacedBatch]:
        """Return some of the partition's batches that end after `offset`; empty if this segment has none."""
        at = self._index[partition]
        while offset < self._offsets[at]:
            if (found := self._tail.from_offset(partition, offset)) and offset >= found[0].offset:
                return found
            index = bisect_right(self._rows, offset, key=lambda row: row.offsets[at]) - 1
            position = self._rows[max(index, 0)].position
            while position < self._tail.start:
                chunk = await self._chunk_at(position)
                if found := chunk.from_offset(partition, offset):
                    return found
                position = chunk.end
        return []

    async def batches_since(self, partition: int, time_ms: int) -> list[PlacedBatch]:
        """Return some batches of the partition, from the first one with a timestamp of `time_ms` or later."""
        at = self._index[partition]
        if self._times[at] < time_ms:
            return []
        index = bisect_left(self._rows, time_ms, key=lambda row: row.times[at])
        position = self._rows[max(index - 1, 0)].position
        while True:
            chunk = self._tail if position >= self._tail.start else await self._chunk_at(position)
            found = [placed for placed in chunk.batches.get(partition, []) if placed.batch.max_ms >= time_ms]
            if found or chunk is self._tail:
                return found
            position = chunk.end

    async def offset_at(self, partition: int, position: int) -> int:
        """Return the offset of the partition's first record at or behind a position of the segment."""
        position = max(position, self.begin_position)
        while position < self._position:
            row = self._row_before(position)
            if row.position == position:
                return row.offsets[self._index[partition]]
            start = row.position
            chunk = self._tail if start >= self._tail.start else await self._chunk_at(start)
            entries = chunk.batches.get(partition, [])
            at = bisect_left(entries, position, key=attrgetter("position"))
            if at < len(entries):
                return entries[at].offset
            if chunk is self._tail:
                break
            position = chunk.end
        return self.end_offset(partition)

    async def position_of(self, partition: int, offset: int) -> int:
        """Return the position of the event with a record's offset, or where the partition's next one will be."""
        batches = await self.batches_from(partition, offset)
        return batches[0].position if batches else self._position

    def _row_before(self, position: int) -> Row:
        return self._rows[max(bisect_right(self._rows, position, key=attrgetter("position")) - 1, 0)]

    async def _chunk_at(self, position: int) -> Chunk:
        """Return the chunk at or before a position; it ends at the next row, which is added if the next one is far."""
        row = self._row_before(position)
        if row.position >= self._tail.start:
            return self._tail
        chunk = self._storage.chunks.get((self.name, row.position))
        if chunk is not None:
            return chunk
        following = bisect_right(self._rows, row.position, key=attrgetter("position"))
        end = self._rows[following].position if following < len(self._rows) else self._tail.start
        return await self._read_chunk(row, end)

    async def _read_chunk(self, row: Row, end: int) -> Chunk:
        chunk, offsets, times = Chunk(row.position), list(row.offsets), list(row.times)
        async with aclosing(self._blocks(row.position, end)) as blocks:
            async for block in blocks:
                for event in block.events():
                    if chunk.size >= KAFKA_CHUNK_BYTES:
                        break
                    batch = self._batch_of(event)
                    at = self._index[batch.partition]
                    chunk.add(PlacedBatch(offsets[at], chunk.end, batch))
                    offsets[at] += batch.count
                    times[at] = max(times[at], batch.max_ms)
                if chunk.size >= KAFKA_CHUNK_BYTES:
                    break
        if self._row_before(row.position) is not row:
            return chunk  # the log begins behind it since
        self._keep(chunk)
        if chunk.end < end and self._row_before(chunk.end).position != chunk.end:
            insort(self._rows, Row(chunk.end, tuple(offsets), tuple(times)), key=attrgetter("position"))
        return chunk

    # --- waiting ------------------------------------------------------------------------------

    def notify(self, waiter: asyncio.Future[None]) -> None:
        """Resolve a future at the next change, from this door or others."""
        self._waiting.add(waiter)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name=f"watch {self.name}")
            self._watching.add_done_callback(self._unwatched)

    def forget(self, waiter: asyncio.Future[None]) -> None:
        self._waiting.discard(waiter)

    def _notify(self) -> None:
        self.version += 1
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def _watch(self) -> None:
        """Notice what others write, while anyone waits."""
        while self._waiting and not self.is_complete:
            position = self._position
            async with aclosing(
                read_bytes(self._storage.stores, self.name, position, position + HEADER_BYTES, purpose=_PURPOSE)
            ) as pieces:
                async for _ in pieces:
                    break
            if position == self._position:
                await asyncio.sleep(_OWN_FIRST_S)
            if position == self._position:
                await self.refresh()

    def _unwatched(self, task: asyncio.Task[None]) -> None:
        self._watching = None
        if not task.cancelled() and task.exception() is not None:
            self._notify()  # waiting fetches meet the error themselves

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()


_PURPOSE = "kafka"
_tasks: set[asyncio.Task[object]] = set()


def _start(storing: Coroutine[object, object, object]) -> None:
    task = asyncio.create_task(storing, name="store a row of offsets")
    _tasks.add(task)
    task.add_done_callback(_done)


def _done(task: asyncio.Task[object]) -> None:
    _tasks.discard(task)
    if not task.cancelled():
        task.exception()  # a later row will do


def _index_at(rows: Sequence[Row], position: int) -> int:
    """Return the index of the first row at or behind a position."""
    return bisect_left(rows, position, key=attrgetter("position"))


def _consecutive(first: int, batches: Sequence[Batch]) -> list[int]:
    if first == _UNKNOWN_OFFSET:
        return [_UNKNOWN_OFFSET] * len(batches)
    offsets = []
    for batch in batches:
        offsets.append(first)
        first += batch.count
    return offsets
