"""The storage writer of a container: moves bytes from the log to chunks, compacts, collects garbage.

Bytes are checked as they are read, so a chunk's own checksums are never made of damaged ones: what is damaged is set
aside, stays where it is and in the container's list, and holds up nothing else.

A chunk's name is planned in the log before the object is written, and stored in it after the object
is durable; so after a crash each object is either a segment's or known garbage.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator
from itertools import islice

from nadi.errors import DamagedDataError, NadiError, NotFoundError, StorageFullError
from nadi.limits import (
    CHUNK_FLUSH_AGE_S,
    CHUNK_FLUSH_BYTES,
    CHUNK_GARBAGE_DELAY_S,
    CHUNK_MAX_BYTES,
    LOG_MAX_BYTES,
    STORAGE_WRITER_RUNS,
    STORAGE_WRITER_TICK_S,
)
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.reading.boundaries import event_begins
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.state.operations import ChunkPlanned, ChunksDeleted, ChunksDropped, ChunkStored
from nadi.segmentstore.state.records import Extent, SegmentRecord
from nadi.segmentstore.tier1.log import ALL
from nadi.segmentstore.tier2.checksums import BLOCK_BYTES, checksums_of
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.description import ChunkDescription, boundaries_of
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)

COMPACT_FROM = 8  # this many small chunks in a row become one
FLUSH_MAX_BYTES = CHUNK_MAX_BYTES // 4  # what one chunk takes in memory while it is built
SMALL_BYTES = CHUNK_FLUSH_BYTES // 2
GARBAGE_AT_ONCE = 1_000
FULL_PAUSE_S = 1.0  # the longest between two tries on a full disk
FRAMES_LOOKED_AT = 100
FLUSH_ROUND_S = 5.0  # then compaction and garbage have a turn, however much there is to move


class StorageWriter:
    """One task that works through what waits; errors are logged and tried again with a growing pause.

    at_once: how many runs may be on their way, each in memory as a whole; shared by all storage writers of a store.
    """

    def __init__(
        self, container: Container, chunks: ChunkStore, reader: SegmentReader, at_once: asyncio.Semaphore
    ) -> None:
        self._container = container
        self._chunks = chunks
        self._reader = reader
        self._at_once = at_once
        self._moving: dict[Extent, int] = {}  # the extents on their way, with their segments
        self._task: asyncio.Task[None] | None = None
        self._planned_here: set[str] = set()
        self._fresh: set[int] = set()  # segments with a new chunk
        self.error: NadiError | None = None  # why the last round failed

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"storage-writer-{self._container.number}")

    @property
    def started(self) -> bool:
        return self._task is not None

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause = STORAGE_WRITER_TICK_S
        while True:
            await asyncio.sleep(pause)
            try:
                await self._drop_lost_plans()
                await self._collect_garbage()  # first: on a full disk the others need the room
                await self._flush()
                await self._compact_once()
                pause = STORAGE_WRITER_TICK_S
                self.error = None
            except NadiError as error:
                known, self.error = str(self.error) == str(error), error
                pause = min(FULL_PAUSE_S if isinstance(error, StorageFullError) else 10.0, pause * 2)
                if not known:
                    log.warning("storage writer %d waits, and tries again: %s", self._container.number, error)
            except Exception:  # ours: said loudly, for without this task the log fills up
                pause = 10.0
                log.exception("storage writer %d failed; next try in %.1f s", self._container.number, pause)

    # --- from the log to chunks -----------------------------------------------------------------------

    async def _flush(self) -> None:
        """Move what is due, several runs at a time, for a while; a failure is told once the others have ended."""
        ends_at = time.monotonic() + FLUSH_ROUND_S

        async def one_after_another() -> None:
            while time.monotonic() < ends_at:
                if not await self.flush_once():
                    if not self._moving:
                        return
                    await asyncio.sleep(STORAGE_WRITER_TICK_S)

        outcomes = await asyncio.gather(
            *(one_after_another() for _ in range(STORAGE_WRITER_RUNS)), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def flush_once(self, *, everything: bool = False) -> bool:
        """Move one run of the log to a chunk, if one is due; whether it did."""
        async with self._at_once:
            if self._container.failure is not None:
                return False
            found = self._most_urgent(everything)
            if found is None:
                return False
            record, extents = found
            self._moving |= dict.fromkeys(extents, record.id)
            try:
                await self._store(record, extents)
            finally:
                for extent in extents:
                    del self._moving[extent]
            return True

    def _most_urgent(self, everything: bool) -> tuple[SegmentRecord, list[Extent]] | None:
        """The first run that is due."""
        moving = set(self._moving.values())
        most_bytes = min(FLUSH_MAX_BYTES, self._chunks.room_bytes())  # a short disk takes small chunks at least
        for record in self._due(everything):
            run, size = self._next_run(record, most_bytes)
            if run and (record.id not in moving or size >= CHUNK_FLUSH_BYTES):
                return record, run
        return None

    def _due(self, everything: bool) -> Iterator[SegmentRecord]:
        """Segments that have bytes in the log's oldest frames, if those are due; else those that fill a chunk."""
        state = self._container.state
        pressed = everything or self._container.log.size_bytes > LOG_MAX_BYTES // 2
        old = time.monotonic() - CHUNK_FLUSH_AGE_S
        seen: set[int] = set()
        for frame in islice(state.to_move(), FRAMES_LOOKED_AT):
            if not pressed and frame.at >= old:
                break
            record = state.logged_in(frame)
            if record.id not in seen:
                seen.add(record.id)
                yield record
        yield from state.largest()

    def _next_run(self, record: SegmentRecord, most_bytes: int) -> tuple[list[Extent], int]:
        """The segment's first extents in a row that can be moved, and their size."""
        run: list[Extent] = []
        size = 0
        for extent in record.extents:
            is_durable = extent.frame is not None and extent.frame.address is not None and not extent.aside
            if not is_durable or extent in self._moving or (run and size + extent.length > most_bytes):
                if run:
                    break
                continue
            run.append(extent)
            size += extent.length
        return run, size

    async def rewrite(self, record: SegmentRecord, extent: Extent) -> bool:
        """Store the chunk of an earlier version anew, with checksums; False if that can't be done (now).

        Raises:
            StorageFullError: there is no room for it.
            UnavailableError: tier 2 or the container can't.
        """
        async with self._at_once:
            return await self._store(record, [extent])

    async def _store(self, record: SegmentRecord, extents: list[Extent]) -> bool:
        """Put the extents together in one chunk; only bytes that are those that were appended get there.

        False: they can't be read, or are the segment's no more.
        """
        self._chunks.check_room(sum(extent.length for extent in extents))
        parts = await self._read(record, extents)
        if parts is None:
            return False
        container, segment, name_of_segment = self._container.number, record.id, record.name
        offset, length = extents[0].offset, sum(map(len, parts))
        name = f"container-{container}/{segment:012x}/{offset:016x}-{uuid.uuid4().hex}"
        begins = await self._begins(extents)
        checksums = await asyncio.get_running_loop().run_in_executor(None, checksums_of, name, parts)
        boundaries = boundaries_of(begins, length)
        self._planned_here.add(name)
        try:
            planned = await self._container.call(lambda frame: self._plan(frame, name))
            described = ChunkDescription(
                1, container, segment, name_of_segment, offset, length, BLOCK_BYTES, checksums, boundaries, *planned
            )
            await self._chunks.put(name, [*parts, described.encode(name)])
            del parts
            stored = ChunkStored(segment, offset, length, name, checksums)
            await self._container.call(lambda frame: self._stored(frame, stored))
            self._fresh.add(segment)
            return True
        finally:
            self._planned_here.discard(name)

    async def _read(self, record: SegmentRecord, extents: list[Extent]) -> list[Buffer] | None:
        """All their bytes, checked; None if they can't be moved (now). What is damaged is set aside."""
        state = self._container.state
        state.residents.hold(record)
        try:
            return await self._reader.read_exactly(self._container, record, extents)
        except NotFoundError:
            return None  # moved or truncated meanwhile
        except DamagedDataError as error:
            for extent in extents:
                if extent.offset <= error.offset < extent.end:
                    state.set_aside(extent)
                    if extent.chunk:  # its neighbours can be compacted
                        self._fresh.add(record.id)
            return None
        finally:
            state.residents.release(record)

    async def _begins(self, extents: list[Extent]) -> list[int]:
        """Where events may begin in the extents put end to end."""
        begins, position = [], 0
        for extent in extents:  # of the log there may be many
            if extent.chunk:
                begins += [position + begin for begin in await event_begins(extent, self._chunks)]
            elif not extent.continues:
                begins.append(position)
            position += extent.length
        return begins

    def _plan(self, frame: FrameBuilder, name: str) -> tuple[int, int]:
        """The log's epoch, and the frame that says so."""
        frame.emit(ChunkPlanned(name))
        return self._container.log.epoch, frame.ref.sequence

    def _stored(self, frame: FrameBuilder, stored: ChunkStored) -> None:
        record = self._container.state.by_id(stored.segment)  # again: it may have left memory meanwhile
        frame.emit(stored, *([record] if record is not None else []), of_kept=ALL)  # it empties the log

    async def _drop_lost_plans(self) -> None:
        """Plans of a former life, or of a try that failed."""
        if self._container.failure is not None:
            return
        lost = [name for name in self._container.state.planned if name not in self._planned_here]
        if lost:
            await self._container.call(lambda frame: frame.emit(ChunksDropped(lost), of_kept=ALL))

    # --- compaction and garbage -------------------------------------------------------------------------

    async def _compact_once(self) -> None:
        """Make one chunk of many small ones in a row, in a segment that got a new chunk lately."""
        while self._fresh and self._container.failure is None:
            record = self._container.state.by_id(self._fresh.pop())
            run: list[Extent] = []
            size = 0
            for extent in record.extents if record is not None else []:
                if not extent.chunk or extent.aside or extent.length > SMALL_BYTES:
                    if len(run) >= COMPACT_FROM:
                        break
                    run, size = [], 0
                    continue
                if size + extent.length > FLUSH_MAX_BYTES:
                    break
                run.append(extent)
                size += extent.length
            if record is not None and len(run) >= COMPACT_FROM:
                await self._store(record, run)
                return

    async def _collect_garbage(self) -> None:
        if self._container.failure is not None:
            return
        is_full = self._container.waits_for_room or isinstance(self.error, StorageFullError)
        oldest_kept = time.monotonic() - (0.0 if is_full else CHUNK_GARBAGE_DELAY_S)
        oldest = islice(self._container.state.garbage.items(), GARBAGE_AT_ONCE)
        due = [name for name, since in oldest if since <= oldest_kept]
        if not due:
            return
        # State runs ahead of the log: if the log fails now, these chunks may be a segment's again.
        await self._container.call(lambda frame: None)
        for name in due:
            await self._chunks.delete(name)
        await self._container.call(lambda frame: frame.emit(ChunksDeleted(due), of_kept=ALL))
