"""The storage writer of a container: moves bytes from the log to chunks, compacts, collects garbage.

The contents of a separate file become a chunk without being copied. Other bytes are verified as they are read; a
damaged extent is set aside: it stays in the log, is listed in the container's damage, and blocks nothing else. A
chunk's name is logged as planned before the object is written, and as stored once the object is durable; so after a
crash each object either belongs to a segment or is known garbage.
"""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from nadi.backoff import Backoff
from nadi.errors import DamagedDataError, NadiError, NotFoundError, StorageFullError
from nadi.limits import (
    CHUNK_FLUSH_AGE_S,
    CHUNK_FLUSH_BYTES,
    CHUNK_GARBAGE_DELAY_S,
    CHUNK_MAX_BYTES,
    STORAGE_WRITER_RUNS,
    STORAGE_WRITER_TICK_S,
)
from nadi.observe.logs import about
from nadi.runtime import Runtime
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.reading.boundaries import event_begins
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.state.operations import ChunkPlanned, ChunksDeleted, ChunksDropped, ChunkStored
from nadi.segmentstore.state.records import Extent, SegmentRecord
from nadi.segmentstore.tier1.blob_files import BlobFile, BlobFiles
from nadi.segmentstore.tier1.log import ALL
from nadi.segmentstore.tier2.checksums import ChunkDescription, boundaries_of, checksums_of, seeded
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.throttled_log import ProblemLog
from nadi.wire.fields import Buffer

log = logging.getLogger(__name__)

COMPACT_FROM = 8  # number of consecutive small chunks that are merged
SMALL_BYTES = CHUNK_FLUSH_BYTES // 2
GARBAGE_AT_ONCE = 1_000
FULL_PAUSE_S = 1.0  # the longest between two attempts on a full disk
_LONGEST_PAUSE_S = 10.0
FRAMES_EXAMINED = 100
FLUSH_ROUND_S = 5.0  # then compaction and garbage collection get a turn


class Move(NamedTuple):
    """Consecutive extents of a segment that become one chunk. file: the file with all of them; None: they are
    copied."""

    extents: list[Extent]
    size_bytes: int
    file: BlobFile | None = None

    @property
    def is_large(self) -> bool:
        return self.file is not None or self.size_bytes >= CHUNK_FLUSH_BYTES


def next_move(
    record: SegmentRecord,
    moving: Mapping[Extent, tuple[int, Extent]],
    runs: BlobFiles | None,
    most_bytes: int,
    due_before: float,
    *,
    adopts: bool = True,
) -> Move | None:
    """Return the segment's first consecutive extents that can be moved; at most `most_bytes` are copied. moving:
    extents in flight, thousands, each with the last of its move: the search continues there. due_before: files
    started earlier, by the monotonic clock, are closed, so that they can be moved; others wait until they are full.
    adopts: whether tier 2 takes a file as it is; otherwise its extents are copied and verified, once nothing is written
    to it."""
    copied: list[Extent] = []
    size, index, extents = 0, 0, record.extents
    while index < len(extents):
        extent = extents[index]
        if extent in moving:
            if copied:
                break
            index = max(index + 1, bisect_left(extents, moving[extent][1].end, key=attrgetter("offset")))
            continue
        file = runs.written(extent.run) if runs is not None and extent.run and not extent.position else None
        if file is not None:
            assert runs is not None
            assert extent.frame is not None
            end, is_whole = of_file(extents, index, file)
            if extent.frame.at < due_before and not file.closed:
                runs.close_file(file)
            if is_whole or not file.closed:
                file_extents = extents[index:end]
                if copied:
                    break
                if file.is_settled and not adopts:
                    runs.forget(file)
                    continue
                if file.is_settled and all(_is_movable(each, moving) for each in file_extents):
                    return Move(file_extents, file.length, file)
                index = end
                continue
        if not _is_movable(extent, moving) or (copied and size + extent.length > most_bytes):
            if copied:
                break
        else:
            copied.append(extent)
            size += extent.length
        index += 1
    return Move(copied, size) if copied else None


def of_file(extents: list[Extent], first: int, file: BlobFile) -> tuple[int, bool]:
    """Return the index after the extents of the file that starts at `first`, and whether they cover the whole file. An
    extent in another location shows that a truncation or a merge came between; a damaged extent stays in the log."""
    begin = extents[first].offset
    end, index = begin + file.length, first
    while index < len(extents) and extents[index].offset < end:
        extent = extents[index]
        place = extent.run, extent.position
        if extent.frame is None or extent.aside or (extent.run and place != (file.number, extent.offset - begin)):
            return index, False
        index += 1
    return index, extents[index - 1].end == end


def _is_movable(extent: Extent, moving: Collection[Extent]) -> bool:
    is_durable = extent.frame is not None and extent.frame.address is not None
    return is_durable and not extent.aside and extent not in moving


class StorageWriter:
    """One task that moves pending data; errors are logged and retried with growing pauses. at_once: limits the moves in
    flight, each entirely in memory; shared by all storage writers of a store."""

    def __init__(
        self,
        container: Container,
        chunks: ChunkStore,
        reader: SegmentReader,
        at_once: asyncio.Semaphore,
        runtime: Runtime,
    ) -> None:
        self._container = container
        self._chunks = chunks
        self._reader = reader
        self._at_once = at_once
        self._runtime = runtime
        self._moving: dict[Extent, tuple[int, Extent]] = {}  # being moved: its segment, and the last of its move
        self._task: asyncio.Task[None] | None = None
        self.turns = asyncio.Lock()  # held during a round; holding it elsewhere blocks the task
        self._planned_here: set[str] = set()
        self._fresh: set[int] = set()  # segments with a new chunk, perhaps due for compaction
        self.error: Exception | None = None  # error of the last round, if it failed
        self._problems = ProblemLog(log, "storage writer %s waits and will retry")

    def start(self) -> None:
        with about(container=self.number):
            self._task = asyncio.create_task(self._run(), name=f"storage-writer-{self.number}")

    @property
    def number(self) -> int:
        return self._container.number

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
        number = str(self._container.number)
        backoff = Backoff(first_s=2 * STORAGE_WRITER_TICK_S, longest_s=_LONGEST_PAUSE_S)
        pause = STORAGE_WRITER_TICK_S
        while True:
            await asyncio.sleep(pause)
            try:
                async with self.turns:
                    await self._drop_lost_plans()
                    await self._collect_garbage()  # first: on a full disk the other steps need the space
                    await self._flush()
                    await self._compact_once()
                pause = STORAGE_WRITER_TICK_S
                backoff.reset()
                self.error = None
                self._problems.settled(number)
            except Exception as error:
                self.error = error
                self._container.counts.tier2_errors += 1
                if isinstance(error, StorageFullError):
                    backoff.at_most(FULL_PAUSE_S)
                pause = backoff.take()
                if isinstance(error, NadiError):
                    self._problems.report(number, error)
                else:  # a bug: without this task the log fills up
                    log.exception("storage writer %s failed: report this bug; next attempt in %.1f s", number, pause)

    async def _flush(self) -> None:
        """Move due data, several chunks in parallel, for a limited time; raise an error after all have ended."""
        ends_at = self._runtime.monotonic() + FLUSH_ROUND_S

        async def one_after_another() -> None:
            while (began := self._runtime.monotonic()) < ends_at:
                if await self.flush_once():
                    container, most_bytes = self._container, self._container.log_max_bytes // 4
                    if container.failure is None and not container.log.is_full and container.logged_bytes < most_bytes:
                        # yield to frames, unless the log needs the space
                        await asyncio.sleep(container.throttle.pause("tiering", self._runtime.monotonic() - began))
                elif self._moving:
                    await asyncio.sleep(STORAGE_WRITER_TICK_S)
                else:
                    return

        outcomes = await asyncio.gather(
            *(one_after_another() for _ in range(STORAGE_WRITER_RUNS)), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def move_everything(self, sequence: float = math.inf) -> None:
        """Move the log's data up to that frame, as far as possible; the caller holds `turns`."""
        is_done = False
        while not is_done:
            moved = await asyncio.gather(*(self.flush_once(everything=True) for _ in range(STORAGE_WRITER_RUNS)))
            oldest = next((frame.sequence for frame in self._container.state.to_move()), math.inf)
            is_done = not any(moved) or oldest > sequence

    async def flush_once(self, *, everything: bool = False) -> bool:
        """Move one run of extents to a chunk, if one is due; return whether one was moved."""
        async with self._at_once:
            if self._container.failure is not None:
                return False
            urgent = self._most_urgent(everything)
            if urgent is None:
                return False
            record, move = urgent
            self._moving |= dict.fromkeys(move.extents, (record.id, move.extents[-1]))
            try:
                await self._store(record, move.extents, move.file)
            finally:
                for extent in move.extents:
                    del self._moving[extent]
            return True

    def _most_urgent(self, everything: bool) -> tuple[SegmentRecord, Move] | None:
        moving = {segment for segment, _ in self._moving.values()}
        most_bytes = min(CHUNK_MAX_BYTES, self._chunks.free_bytes())  # a nearly full disk still accepts small chunks
        runs = self._container.runs
        for record, due_before in self._due(everything):
            move = next_move(record, self._moving, runs, most_bytes, due_before, adopts=self._chunks.is_here)
            if move is not None and (move.is_large or (due_before and record.id not in moving)):
                return record, move
        return None

    def _due(self, everything: bool) -> Iterator[tuple[SegmentRecord, float]]:
        """Yield segments with bytes in the log's oldest frames, if those are due, with the time before which they are;
        then segments with enough bytes for a chunk, with 0."""
        state = self._container.state
        pressed = everything or self._container.logged_bytes > self._container.log_max_bytes // 2
        old = math.inf if pressed else self._runtime.monotonic() - CHUNK_FLUSH_AGE_S
        seen: set[int] = set()
        for frame in islice(state.to_move(), FRAMES_EXAMINED):
            if frame.at >= old:
                break
            record = state.logged_in(frame)
            if record.id not in seen:
                seen.add(record.id)
                yield record, old
        for record in state.largest():
            yield record, 0.0

    async def rewrite(self, record: SegmentRecord, extent: Extent) -> bool:
        """Store a chunk again, under another name; return False if that isn't possible (now). StorageFullError: no
        space for it. UnavailableError: tier 2 or the container is unavailable."""
        async with self._at_once:
            return await self._store(record, [extent])

    async def _store(self, record: SegmentRecord, extents: list[Extent], file: BlobFile | None = None) -> bool:
        """Combine the extents in one chunk, verified byte by byte. file: a separate file with all of them, which
        becomes the chunk. Return False if they can't be read or no longer belong to the segment, or if the file can't
        become a chunk."""
        parts: list[Buffer] = []
        if file is None:
            self._chunks.check_free_space(sum(extent.length for extent in extents))
            blocks = await self._read(record, extents)
            if blocks is None:
                return False
            parts = blocks
        container, segment, name_of_segment = self._container.number, record.id, record.name
        offset, length = extents[0].offset, extents[-1].end - extents[0].offset
        name = f"container-{container}/{segment:012x}/{offset:016x}-{self._runtime.unique()}"
        begins = await self._begins(extents)
        if file is None:
            checksums = await self._runtime.in_thread(checksums_of, name, parts)
        else:
            carried, plain = file.finish()
            checksums = seeded(name, plain, length)
        boundaries = boundaries_of(begins, length)
        self._planned_here.add(name)
        try:

            def plan(frame: FrameBuilder) -> int:
                frame.emit(ChunkPlanned(name))
                return frame.ref.sequence

            sequence = await self._container.call(plan, own=True)
            described = ChunkDescription(
                container, segment, name_of_segment, offset, length, checksums, boundaries, sequence
            ).encode(name, self._chunks.sealing)
            if file is None:
                stored_parts = await self._sealed(name, parts)
                parts.clear()
                await self._chunks.put(name, [*stored_parts, described])
            elif not await self._adopt(name, file, [carried, described]):
                return False
            stored = ChunkStored(segment, offset, length, name, checksums)
            await self._container.call(lambda frame: self._record_stored(frame, stored), own=True)
            self._container.cache.drop(container, [extent for extent in extents if extent.frame is not None])
            self._fresh.add(segment)
            self._container.counts.count_move(length, was_in_log=extents[0].frame is not None)
            return True
        finally:
            self._planned_here.discard(name)

    async def _sealed(self, name: str, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        sealing = self._chunks.sealing
        if not sealing.overhead:
            return list(parts)
        return await self._runtime.in_thread(sealing.seal_parts, parts, name.encode())

    async def _adopt(self, name: str, file: BlobFile, tail: list[Buffer]) -> bool:
        """Turn the file into the chunk of that name; if that fails, its extents are copied next time."""
        is_left = False
        try:
            return await self._chunks.adopt(name, file.path, partial(file.complete, tail))
        except StorageFullError:  # a copy would need more space
            is_left = True
            raise
        except NotFoundError:  # its data isn't needed any more
            return False
        finally:
            if not is_left and self._container.runs is not None:
                self._container.runs.forget(file)

    async def _read(self, record: SegmentRecord, extents: list[Extent]) -> list[Buffer] | None:
        """Return the extents' verified bytes; None if they can't be moved (now). Set aside damaged extents."""
        state = self._container.state
        state.record_cache.hold(record)
        try:
            return await self._reader.read_exactly(self._container, record, extents)
        except NotFoundError:
            return None  # moved or truncated meanwhile
        except DamagedDataError as error:
            for extent in extents:
                if extent.offset <= error.offset < extent.end:
                    state.set_aside(extent)
                    if extent.chunk:  # its neighbours can still be compacted
                        self._fresh.add(record.id)
            return None
        finally:
            state.record_cache.release(record)

    async def _begins(self, extents: list[Extent]) -> list[int]:
        """Return the positions, in the concatenated extents, where events may begin."""
        begins, position = [], 0
        for extent in extents:  # there may be many from the log
            if extent.chunk:
                begins += [position + begin for begin in await event_begins(extent, self._chunks)]
            elif not extent.continues:
                begins.append(position)
            position += extent.length
        return begins

    def _record_stored(self, frame: FrameBuilder, stored: ChunkStored) -> None:
        record = self._container.state.by_id(stored.segment)  # look it up again: it may have been evicted meanwhile
        frame.emit(stored, *([record] if record is not None else []), of_reserve=ALL)  # this frees the log

    async def _drop_lost_plans(self) -> None:
        """Drop the plans of an earlier process, or of a failed attempt."""
        if self._container.failure is not None:
            return
        lost = [name for name in self._container.state.planned if name not in self._planned_here]
        if lost:
            await self._container.call(lambda frame: frame.emit(ChunksDropped(lost), of_reserve=ALL), own=True)

    async def _compact_once(self) -> None:
        """Merge consecutive small chunks into one, in a segment that recently got a new chunk."""
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
                if size + extent.length > CHUNK_MAX_BYTES:
                    break
                run.append(extent)
                size += extent.length
            if record is not None and len(run) >= COMPACT_FROM:
                await self._store(record, run)
                return

    async def _collect_garbage(self) -> None:
        if self._container.failure is not None:
            return
        is_full = self._container.waits_for_space or isinstance(self.error, StorageFullError)
        oldest_kept = self._runtime.monotonic() - (0.0 if is_full else CHUNK_GARBAGE_DELAY_S)
        oldest = islice(self._container.state.garbage.items(), GARBAGE_AT_ONCE)
        due = [name for name, since in oldest if since <= oldest_kept]
        if not due:
            return
        # State runs ahead of the log: if the log fails now, these chunks may belong to a segment again.
        await self._container.call(lambda frame: None, own=True)
        await self._chunks.check_ours()
        for name in due:
            if self._container.is_lost:
                return
            await self._chunks.delete(name)
            self._container.counts.deleted_chunks += 1
        await self._container.call(lambda frame: frame.emit(ChunksDeleted(due), of_reserve=ALL), own=True)
