"""Scrubs a store: reads everything stored once a week, so that damage is found while copies exist to repair it.

One task goes over the containers: first the records of their states and the snapshots of these; then the bytes of their
segments, bypassing the cache. A damaged state is restored from its snapshot and the log; a damaged snapshot is
recreated from the state. If the next start needs a damaged part of the log, a new snapshot removes that need. Chunks
with a damaged description are stored again. The position is saved in a file, so that a restart costs seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import lmdb
import msgspec

from nadi import limits
from nadi.errors import DamagedDataError, DataFolderError, NadiError, StorageFullError, UnavailableError
from nadi.model.scrub import ScrubPass
from nadi.object_log.checksummed_lines import line_of, value_of
from nadi.runtime import Runtime
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.container_registry import ContainerRegistry
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.state.commit import row_length
from nadi.segmentstore.state.records import Extent, SegmentRecord
from nadi.segmentstore.state.stored import TABLES
from nadi.segmentstore.storage_writer import StorageWriter
from nadi.segmentstore.tier1.disk import replace_file

log = logging.getLogger(__name__)

_RETRY_S = 10.0  # between attempts while a container recovers, or the disk fails
_CHECK_S = 600.0  # between checks whether a pass is due: the clock may be set


class ScrubCursor(msgspec.Struct):
    """The position at which a pass resumes: after `key` in a table of a container's state, then at `offset` of a
    segment."""

    container: int = 0
    table: int = 0  # in TABLES; len(TABLES): the state is done, and its snapshot follows
    key: bytes = b""
    is_data: bool = False  # all states and snapshots are done
    segment: int = 0
    offset: int = 0

    def check(self, containers: int) -> None:
        """Raise ValueError if a store of that many containers has no such position."""
        is_there = 0 <= self.container < containers and 0 <= self.table <= len(TABLES)
        if not (is_there and 0 <= self.segment < 1 << 63 and self.offset >= 0):
            raise ValueError("its position doesn't exist in this store")


class ScrubRecord(msgspec.Struct):
    """The scrub's file. since_ms: the time the folder was first served, from which the first week counts."""

    since_ms: int
    running: ScrubPass | None = None
    last: ScrubPass | None = None
    place: ScrubCursor = msgspec.field(default_factory=ScrubCursor)


class Scrubber:
    """The scrub of one store. file: stores the position. registry: the store's containers, unchanged from `start` to
    `stop`. writers: their storage writers, by container number."""

    def __init__(
        self,
        file: Path,
        registry: ContainerRegistry,
        reader: SegmentReader,
        writers: Mapping[int, StorageWriter],
        runtime: Runtime,
    ) -> None:
        self._file, self._registry, self._reader = file, registry, reader
        self._writers, self._runtime = writers, runtime
        self._record, self._is_loaded, self._saved_at = ScrubRecord(runtime.now_ms()), False, 0.0
        self._requested, self._unyielded = asyncio.Event(), 0  # bytes read since the last check for waiting appends
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._free_at = 0.0  # when the rate limit allows the next read

    @property
    def running(self) -> ScrubPass | None:
        return self._record.running

    @property
    def last(self) -> ScrubPass | None:
        return self._record.last

    @property
    def since_ms(self) -> int:
        """The time at which the last pass ended, or the folder was first served."""
        return self.last.ended_ms if self.last is not None else self._record.since_ms

    @property
    def started(self) -> bool:
        return self._task is not None

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    def begin(self) -> None:
        """Start a pass now, replacing a weekly one that is running; a requested one continues."""
        if self.running is None or not self.running.requested:
            self._record.running, self._record.place = ScrubPass(self._runtime.now_ms(), requested=True), ScrubCursor()
            self._saved_at = 0.0  # so that a restart resumes it
            self._requested.set()

    def start(self) -> None:
        if not self._is_loaded:
            self._load()
            self._is_loaded = True
        self._task = asyncio.create_task(self._run(), name="scrub")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self._writing is not None:
                await asyncio.wait([self._writing])
            self._save()

    async def _run(self) -> None:
        while True:
            try:
                await self._until_due()
                await self._pass()
            except NadiError as error:
                log.warning("the scrub waits, and will retry: %s", error)
                await asyncio.sleep(_RETRY_S)
            except Exception:  # a bug: log it loudly, but keep scrubbing
                log.exception("the scrub failed; it resumes at its position: report this bug")
                await asyncio.sleep(_RETRY_S)

    async def _until_due(self) -> None:
        while self.running is None:
            self._requested.clear()
            left_s = limits.SCRUB_EVERY_S - (self._runtime.now_ms() - self.since_ms) / 1000
            if not 0 < left_s <= limits.SCRUB_EVERY_S:  # or the clock has been set back
                self._record.running, self._record.place = ScrubPass(self._runtime.now_ms()), ScrubCursor()
                return
            try:
                async with asyncio.timeout(min(left_s, _CHECK_S)):
                    await self._requested.wait()
            except TimeoutError:
                pass

    async def _pass(self) -> None:
        """Continue the current pass to its end, unless a new one replaces it."""
        scrub_pass = self.running
        assert scrub_pass is not None
        await self._states(scrub_pass)
        if self.running is scrub_pass:
            await self._segments(scrub_pass)
        if self.running is not scrub_pass:
            return
        scrub_pass.ended_ms, scrub_pass.total_bytes = self._runtime.now_ms(), scrub_pass.read_bytes
        self._record.last, self._record.running = scrub_pass, None
        self._save()
        log.log(
            logging.ERROR if scrub_pass.damages else logging.INFO,
            "the scrub read %d bytes, %d records, %d bytes of snapshots in %.0f s; damaged ranges: %d",
            scrub_pass.read_bytes,
            scrub_pass.records,
            scrub_pass.snapshot_bytes,
            (scrub_pass.ended_ms - scrub_pass.started_ms) / 1000,
            scrub_pass.damages,
        )

    async def _states(self, scrub_pass: ScrubPass) -> None:
        """Read all containers' states and snapshots; the extents in the records give the total size."""
        cursor = self._record.place
        while not cursor.is_data and (container := self._next(cursor)) is not None:
            size = 0
            if cursor.table < len(TABLES):
                size = self._read_records(container, cursor, scrub_pass)
            else:
                await self._snapshot(container, scrub_pass)
                await self._log(self._up(container), scrub_pass)
                if self.running is not scrub_pass:
                    return
                cursor.container, cursor.table, cursor.key = cursor.container + 1, 0, b""
                if self._registry.following(cursor.container) is None:
                    self._record.place = cursor = ScrubCursor(is_data=True)
            await self._pause(size, scrub_pass)
            if self.running is not scrub_pass:
                return
        if not cursor.is_data:
            self._record.place = ScrubCursor(is_data=True)

    async def _snapshot(self, container: Container, scrub_pass: ScrubPass) -> None:
        async def pause(size_bytes: int) -> None:
            scrub_pass.snapshot_bytes += size_bytes
            await self._pause(size_bytes, scrub_pass)

        if damage := await container.parts.snapshots.verify(pause):
            self._note(scrub_pass, f"the snapshot of container {container.number}, which is being replaced: {damage}")

    async def _log(self, container: Container, scrub_pass: ScrubPass) -> None:
        """Check the frames that a state restored from the snapshot needs. Their data is read with the segments."""
        async for heads in container.log.read_heads(container.parts.snapshots.sequence):
            for error in heads.damages:
                text = f"the log of container {container.number}, replaced by a new snapshot"
                self._note(scrub_pass, f"{text}: {error.what}, at byte {error.offset:,} of {error.file}")
            if heads.damages:
                container.parts.snapshots.hasten()
            await self._pause(heads.read_bytes, scrub_pass)
            if self.running is not scrub_pass:
                return

    def _read_records(self, container: Container, cursor: ScrubCursor, scrub_pass: ScrubPass) -> int:
        table = TABLES[cursor.table]
        try:
            records = container.metadata.page(table, cursor.key, limits.SCRUB_STATE_RECORDS)
            if table == "extents":
                scrub_pass.total_bytes += sum(row_length(value) for _, value in records)
        except (DataFolderError, lmdb.Error) as error:
            # the container restores it
            self._note(scrub_pass, f"the state of container {container.number}: {error}")
            cursor.table = len(TABLES)
            return 0
        scrub_pass.records += len(records)
        if len(records) < limits.SCRUB_STATE_RECORDS:
            cursor.table, cursor.key = cursor.table + 1, b""
        else:
            cursor.key = records[-1][0]
        size_bytes = sum(len(key) + len(value) for key, value in records)
        scrub_pass.state_bytes += size_bytes
        return size_bytes

    async def _segments(self, scrub_pass: ScrubPass) -> None:
        """Read the bytes of all segments in the last checkpoint; newer ones were written just now."""
        while (container := self._next(cursor := self._record.place)) is not None:
            before = (cursor.segment - 1).to_bytes(8, "big") if cursor.segment else b""
            page = container.metadata.page("segments", before, 1)
            if not page:
                cursor.container, cursor.segment, cursor.offset = cursor.container + 1, 0, 0
                continue
            segment = int.from_bytes(page[0][0], "big")
            if segment != cursor.segment:
                cursor.segment, cursor.offset = segment, 0
            await self._segment(container, segment, scrub_pass)
            if self.running is not scrub_pass:
                return
            cursor.segment, cursor.offset = segment + 1, 0

    def _next(self, cursor: ScrubCursor) -> Container | None:
        """Return the container at the position, or the next one, if another store now owns that."""
        container = self._registry.following(cursor.container)
        if container is None:
            return None
        if container.number != cursor.container:
            cursor.container, cursor.table, cursor.key, cursor.segment, cursor.offset = container.number, 0, b"", 0, 0
        return self._up(container)

    async def _segment(self, container: Container, segment: int, scrub_pass: ScrubPass) -> None:
        state, cursor = container.state, self._record.place
        record = state.by_id(segment)
        if record is None:
            return
        state.record_cache.hold(record)
        try:
            end = record.durable_length
            while record.extents and not record.deleted:
                extent = record.extents[max(record.extent_index(cursor.offset), 0)]
                if extent.end <= cursor.offset or extent.offset >= end:
                    break
                if extent.frame is not None and extent.frame.address is None:
                    return  # being written to the log
                try:
                    is_described = await self._reader.verify(container, record, extent)
                except DamagedDataError as error:
                    self._note(scrub_pass, str(error))
                except OSError as error:
                    self._note(
                        scrub_pass, f"bytes {extent.offset:,} to {extent.end:,} of segment {record.name}: {error}"
                    )
                else:
                    if not is_described:
                        await self._renew(container, record, extent, scrub_pass)
                scrub_pass.read_bytes += extent.length
                if self.running is not scrub_pass:
                    return
                cursor.offset = extent.end
                await self._pause(extent.length, scrub_pass)
                if self.running is not scrub_pass:
                    return
                self._up(container)
            if container.state is not state:
                raise UnavailableError(f"container {container.number} has recovered meanwhile")
        finally:
            state.record_cache.release(record)
            container.evict_idle()

    async def _renew(self, container: Container, record: SegmentRecord, extent: Extent, scrub_pass: ScrubPass) -> None:
        outcome = "was stored again"
        try:
            if await self._writers[container.number].rewrite(record, extent):
                scrub_pass.rewritten_bytes += extent.length
            else:
                outcome = "no longer belongs to the segment, or is retried by the next pass"
        except StorageFullError as error:
            outcome = f"is retried by the next pass: {error}"
        problem = f"the description of chunk {extent.chunk} is damaged or missing, but all its data is intact"
        log.warning("the scrub found damage without data loss: %s; the chunk %s", problem, outcome)
        scrub_pass.renewals += 1
        if len(scrub_pass.renewed) < limits.SCRUB_DAMAGES_REPORTED:
            scrub_pass.renewed.append(f"{problem}; the chunk {outcome}")

    def _note(self, scrub_pass: ScrubPass, text: str) -> None:
        log.error("the scrub found damage: %s", text)
        scrub_pass.damages += 1
        if len(scrub_pass.damaged) < limits.SCRUB_DAMAGES_REPORTED:
            scrub_pass.damaged.append(text)

    @staticmethod
    def _up(container: Container) -> Container:
        if container.failure is not None:
            raise UnavailableError(f"container {container.number} is recovering: {container.failure}")
        return container

    async def _pause(self, size_bytes: int, scrub_pass: ScrubPass) -> None:
        """Pause between two reads to keep the rate limit, and slightly longer while appends wait."""
        now = self._runtime.monotonic()
        pace = limits.SCRUB_REQUESTED_BYTES_PER_S if scrub_pass.requested else limits.SCRUB_BYTES_PER_S
        self._free_at = max(self._free_at, now - 0.1) + size_bytes / pace
        await asyncio.sleep(max(self._free_at - now, 0.0))
        self._unyielded += size_bytes
        if self._unyielded >= limits.SCRUB_YIELD_BYTES:
            self._unyielded = 0
            if any(container.queue.size_bytes for container in self._registry.all()):
                await asyncio.sleep(limits.SCRUB_YIELD_S)
        if self._runtime.monotonic() - self._saved_at >= limits.SCRUB_KEEP_S:
            self._writing = self._runtime.in_thread(_write, self._file, msgspec.json.encode(self._record))
            await asyncio.shield(self._writing)
            self._saved_at = self._runtime.monotonic()

    def _load(self) -> None:
        """Load the position. If the file is damaged or another store's, a pass starts over: a wrong position would skip
        data and report it as undamaged."""
        try:
            raw = value_of(self._file.read_bytes())
            if raw is None:
                raise ValueError("its checksum is wrong or missing")
            self._record = msgspec.json.decode(raw, type=ScrubRecord)
            if self._record.running is not None:  # else the position is unused
                self._record.place.check(self._registry.count)
        except FileNotFoundError:
            self._save()
        except (OSError, ValueError) as error:
            log.warning("the scrub's position can't be read, so it starts over: %s", error)
            self._record = ScrubRecord(self._record.since_ms, ScrubPass(self._runtime.now_ms()))

    def _save(self) -> None:
        _write(self._file, msgspec.json.encode(self._record))


def _write(file: Path, kept: bytes) -> None:
    """Write the file completely or not at all; on a full disk, log a warning and leave it to the next call."""
    try:
        replace_file(file, line_of(kept))
    except OSError as error:
        log.warning("the scrub's position can't be saved: %s; free space on its disk", error)
