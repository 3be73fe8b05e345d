"""The scrub: once a week everything that is stored is read, so that damage is found while there are copies to mend it.

One task of the store goes over the containers: first their states, the file and then its records, and the snapshots of
these; then the bytes of their segments, extent by extent, wherever each lies, past the cache. Whatever reads them
checks them; what is wrong is counted, told in words, and logged. A damaged state is made anew from its snapshot and the
log, a damaged snapshot from the state; where what that needs of the log is damaged, a new snapshot makes it needless,
for the state in use has what it said. Chunks of earlier versions, which have no checksums, are stored anew with them,
and so are chunks whose description is damaged.

It reads at a bounded pace, slower while appends wait, and keeps its place in a file, so that a restart costs seconds of
it. `begin` starts a pass now, at a quicker pace, for somebody who waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import lmdb
import msgspec
from crc32c import crc32c

from nadi.errors import DamagedDataError, DataFolderError, NadiError, StorageFullError, UnavailableError
from nadi.limits import (
    SCRUB_ASKED_BYTES_PER_S,
    SCRUB_BYTES_PER_S,
    SCRUB_DAMAGES_TOLD,
    SCRUB_EVERY_S,
    SCRUB_KEEP_S,
    SCRUB_STATE_RECORDS,
    SCRUB_YIELD_BYTES,
    SCRUB_YIELD_S,
)
from nadi.model.scrub import ScrubPass, ScrubReport
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.reading.reads import SegmentReader
from nadi.segmentstore.state.checked import TABLES
from nadi.segmentstore.state.metadata import extent_length
from nadi.segmentstore.state.records import Extent, SegmentRecord
from nadi.segmentstore.storage_writer import StorageWriter
from nadi.segmentstore.tier1.disk import replace_file

log = logging.getLogger(__name__)

_RETRY_S = 10.0  # while a container recovers, or the disk fails
_LOOK_S = 600.0  # how often it is looked whether a pass is due: the clock may be set


class _Place(msgspec.Struct):
    """Where a pass goes on: behind `key` in a table of a container's state, then at `offset` of a segment."""

    container: int = 0
    table: int = 0  # in TABLES; behind the last one the state was read, and its snapshot follows
    key: bytes = b""
    is_data: bool = False  # all states and snapshots were read
    segment: int = 0
    offset: int = 0

    def check(self, containers: int) -> None:
        """ValueError where a store of so many containers has no such place."""
        is_there = 0 <= self.container < containers and 0 <= self.table <= len(TABLES)
        if not (is_there and 0 <= self.segment < 1 << 63 and self.offset >= 0):
            raise ValueError("it tells of a place that isn't there")


class _Kept(msgspec.Struct):
    """The file: `since_ms` is when the folder was first served, from which the first week counts."""

    since_ms: int
    running: ScrubPass | None = None
    last: ScrubPass | None = None
    place: _Place = msgspec.field(default_factory=_Place)


def _encode(kept: _Kept) -> bytes:
    """One line: JSON, and its checksum behind a space."""
    raw = msgspec.json.encode(kept)
    return b"%b %08x\n" % (raw, crc32c(raw))


def _decode(data: bytes) -> _Kept:
    """ValueError where it isn't what was kept, or an earlier version kept it, which had no checksum: else a damaged
    place would let the pass skip what lies before it, and find that nothing is damaged."""
    raw, _, crc = data.rpartition(b" ")
    if crc != b"%08x\n" % crc32c(raw):
        raise ValueError("its checksum is wrong or missing")
    return msgspec.json.decode(raw, type=_Kept)


class Scrub:
    """Of one store. file: where it keeps its place. writers: of the containers. now_ms: the wall clock."""

    def __init__(
        self,
        file: Path,
        containers: Sequence[Container],
        reader: SegmentReader,
        writers: Sequence[StorageWriter],
        now_ms: Callable[[], int],
    ) -> None:
        self._file, self._containers, self._reader, self._now_ms = file, containers, reader, now_ms
        self._writers = writers
        self._kept = _Kept(now_ms())
        self._kept_at = 0.0
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._free_at = 0.0  # when the pace lets it read again
        self._unyielded = 0  # bytes since it last looked whether appends wait

    # --- what others see ------------------------------------------------------------------------------

    @property
    def running(self) -> ScrubPass | None:
        return self._kept.running

    @property
    def last(self) -> ScrubPass | None:
        return self._kept.last

    def report(self) -> ScrubReport:
        return ScrubReport(self.running, self.last)

    @property
    def started(self) -> bool:
        return self._task is not None

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    def begin(self) -> None:
        """Start a pass now, in place of the weekly one if that is under way; one that was asked for goes on."""
        if self.running is None or not self.running.asked:
            self._kept.running, self._kept.place = ScrubPass(self._now_ms(), asked=True), _Place()
            self._kept_at = 0.0  # so that a restart goes on with it
            self._asked.set()

    # --- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._load()
        self._task = asyncio.create_task(self._run(), name="scrub")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            if self._writing is not None:
                await asyncio.wait([self._writing])
            self._keep()

    async def _run(self) -> None:
        while True:
            try:
                await self._until_due()
                await self._pass()
            except NadiError as error:
                log.warning("the scrub waits: %s", error)
                await asyncio.sleep(_RETRY_S)
            except Exception:  # ours: said loudly, and no reason never to look again
                log.exception("the scrub failed; it goes on where it was")
                await asyncio.sleep(_RETRY_S)

    async def _until_due(self) -> None:
        while self.running is None:
            self._asked.clear()
            left_s = SCRUB_EVERY_S - (self._now_ms() - self._since_ms()) / 1000
            if left_s <= 0:
                self._kept.running, self._kept.place = ScrubPass(self._now_ms()), _Place()
                return
            try:
                async with asyncio.timeout(min(left_s, _LOOK_S)):
                    await self._asked.wait()
            except TimeoutError:
                pass

    def _since_ms(self) -> int:
        """When the last pass ended, or the folder was first served: now, from now on, if the clock was ahead then."""
        now_ms, last = self._now_ms(), self.last
        since_ms = last.ended_ms if last is not None else self._kept.since_ms
        ahead_ms = since_ms - now_ms
        if ahead_ms <= 0:
            return since_ms
        if last is not None:
            last.begun_ms, last.ended_ms = last.begun_ms - ahead_ms, now_ms
        self._kept.since_ms = min(self._kept.since_ms, now_ms)
        self._keep()  # else each restart would begin a week of its own
        return now_ms

    async def _pass(self) -> None:
        """Go on with the pass under way to its end; one that is begun meanwhile takes its place."""
        found = self.running
        assert found is not None
        for step in (self._states, self._segments):
            await step(found)
            if self.running is not found:
                return
        found.ended_ms = self._now_ms()
        found.total_bytes = found.read_bytes
        self._kept.last, self._kept.running = found, None
        self._keep()
        log.log(
            logging.ERROR if found.damages else logging.INFO,
            "everything stored was read: %d bytes, %d records, %d bytes of snapshots in %.0f s; damaged places: %d",
            found.read_bytes,
            found.records,
            found.snapshot_bytes,
            (found.ended_ms - found.begun_ms) / 1000,
            found.damages,
        )

    # --- reading --------------------------------------------------------------------------------------

    async def _states(self, found: ScrubPass) -> None:
        """All containers' states and snapshots; the extents among the records tell how much there is to read."""
        place = self._kept.place
        while not place.is_data:
            container, size = self._up(self._containers[place.container]), 0
            if place.table == 0 and not place.key:
                size = await self._walk(container, place, found)
            if place.table < len(TABLES):
                size += self._read_records(self._up(container), place, found)
            else:
                await self._snapshot(container, found)
                await self._log(self._up(container), found)
                if self.running is not found:
                    return
                place.container, place.table, place.key = place.container + 1, 0, b""
                if place.container >= len(self._containers):
                    self._kept.place = place = _Place(is_data=True)
            await self._pause(size, found)
            if self.running is not found:
                return

    async def _walk(self, container: Container, place: _Place, found: ScrubPass) -> int:
        """The state's file, page by page, which also tells what LMDB doesn't look at; its size."""
        damage, size_bytes = await container.inspect_state()
        if damage:  # the container makes it anew
            self._note(found, f"the state of container {container.number}: {damage}")
            place.table = len(TABLES)
        found.state_bytes += size_bytes
        return size_bytes

    async def _snapshot(self, container: Container, found: ScrubPass) -> None:
        read_bytes = 0

        async def pause(size_bytes: int) -> None:
            nonlocal read_bytes
            read_bytes += size_bytes
            await self._pause(size_bytes, found)

        snapshots = container.snapshots
        before = snapshots.renewed
        damage = await snapshots.verify(pause)
        found.snapshot_bytes += read_bytes
        if damage:
            self._note(found, f"the snapshot of container {container.number}, in place of which one is made: {damage}")
        elif snapshots.renewed != before:
            text = f"one manifest of the snapshot of container {container.number} was stored anew: {snapshots.renewed}"
            self._note_renewal(found, text)

    async def _log(self, container: Container, found: ScrubPass) -> None:
        """What a state made of the snapshot needs of the log. Its data is read with the segments."""
        async for heads in container.log.read_heads(container.snapshots.sequence):
            for error in heads.damages:
                text = f"the log of container {container.number}, in place of which a snapshot is made"
                self._note(found, f"{text}: {error.what}, at byte {error.offset:,} of {error.file}")
            if heads.damages:
                container.snapshots.hasten()
            await self._pause(heads.read_bytes, found)
            if self.running is not found:
                return

    def _read_records(self, container: Container, place: _Place, found: ScrubPass) -> int:
        """Some records, or a table's end; their size."""
        table = TABLES[place.table]
        try:
            records = container.metadata.page(table, place.key, SCRUB_STATE_RECORDS)
            if table == "extents":
                found.total_bytes += sum(extent_length(value) for _, value in records)
        except (DataFolderError, lmdb.Error) as error:
            # the container looks at the whole of it when it recovers from this
            self._note(found, f"the state of container {container.number}: {error}")
            place.table = len(TABLES)
            return 0
        found.records += len(records)
        if len(records) < SCRUB_STATE_RECORDS:
            place.table, place.key = place.table + 1, b""
        else:
            place.key = records[-1][0]
        return sum(len(key) + len(value) for key, value in records)

    async def _segments(self, found: ScrubPass) -> None:
        """The bytes of all segments that a checkpoint knows of; newer ones were written just now."""
        while (place := self._kept.place).container < len(self._containers):
            container = self._up(self._containers[place.container])
            segment = self._next_segment(container, place.segment)
            if segment is None:
                place.container, place.segment, place.offset = place.container + 1, 0, 0
                continue
            if segment != place.segment:
                place.segment, place.offset = segment, 0
            await self._segment(container, segment, found)
            if self.running is not found:
                return
            place.segment, place.offset = segment + 1, 0

    @staticmethod
    def _next_segment(container: Container, first: int) -> int | None:
        before = (first - 1).to_bytes(8, "big") if first else b""
        found = container.metadata.page("segments", before, 1)
        return int.from_bytes(found[0][0], "big") if found else None

    async def _segment(self, container: Container, segment: int, found: ScrubPass) -> None:
        state, place = container.state, self._kept.place
        record = state.by_id(segment)
        if record is None:
            return
        state.residents.hold(record)
        try:
            end = record.durable_length
            while (extent := _extent_at(record, place.offset)) is not None and extent.offset < end:
                if extent.frame is not None and extent.frame.address is None:
                    return  # under way into the log
                try:
                    is_described = await self._reader.verify(container, record, extent)
                except DamagedDataError as error:
                    self._note(found, str(error))
                except OSError as error:
                    self._note(found, f"bytes {extent.offset:,} to {extent.end:,} of segment {record.name}: {error}")
                else:
                    await self._renew(container, record, extent, found, is_described=is_described)
                found.read_bytes += extent.length
                if self.running is not found:
                    return
                place.offset = extent.end
                await self._pause(extent.length, found)
                if self.running is not found:
                    return
                self._up(container)
            if container.state is not state:
                raise UnavailableError(f"container {container.number} has recovered meanwhile")
        finally:
            state.residents.release(record)
            container.make_room()

    async def _renew(
        self, container: Container, record: SegmentRecord, extent: Extent, found: ScrubPass, *, is_described: bool
    ) -> None:
        """Store a chunk anew that lacks checksums, or a whole description."""
        if not extent.chunk or (extent.checksums and is_described):
            return
        writer = self._writers[self._containers.index(container)]
        outcome = "is stored anew"
        try:
            if await writer.rewrite(record, extent):
                found.rewritten_bytes += extent.length
            else:
                outcome = "is the segment's no more, or waits for the next pass"
        except StorageFullError as error:
            outcome = f"stays as it is until the next pass: {error}"
            if not extent.checksums:
                log.info("chunk %s without checksums %s", extent.chunk, outcome)
        if extent.checksums:
            what = f"the description of chunk {extent.chunk} is damaged or missing, and all its data right"
            self._note_renewal(found, f"{what}; the chunk {outcome}")

    def _note(self, found: ScrubPass, text: str) -> None:
        log.error("the scrub found damage: %s", text)
        found.damages += 1
        if len(found.damaged) < SCRUB_DAMAGES_TOLD:
            found.damaged.append(text)

    def _note_renewal(self, found: ScrubPass, text: str) -> None:
        log.warning("the scrub found damage by which nothing is lost: %s", text)
        found.renewals += 1
        if len(found.renewed) < SCRUB_DAMAGES_TOLD:
            found.renewed.append(text)

    @staticmethod
    def _up(container: Container) -> Container:
        if container.failure is not None:
            raise UnavailableError(f"container {container.number} recovers: {container.failure}")
        return container

    # --- pace -----------------------------------------------------------------------------------------

    async def _pause(self, size_bytes: int, found: ScrubPass) -> None:
        """Between two reads: so long that the pace is kept, and a little longer while appends wait."""
        now = time.monotonic()
        pace = SCRUB_ASKED_BYTES_PER_S if found.asked else SCRUB_BYTES_PER_S
        self._free_at = max(self._free_at, now - 0.1) + size_bytes / pace
        await asyncio.sleep(max(self._free_at - now, 0.0))
        self._unyielded += size_bytes
        if self._unyielded >= SCRUB_YIELD_BYTES:
            self._unyielded = 0
            if any(container.queue_bytes for container in self._containers):
                await asyncio.sleep(SCRUB_YIELD_S)
        if time.monotonic() - self._kept_at >= SCRUB_KEEP_S:
            data = _encode(self._kept)
            self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, data)
            await asyncio.shield(self._writing)
            self._kept_at = time.monotonic()

    # --- its file -------------------------------------------------------------------------------------

    def _load(self) -> None:
        try:
            kept = _decode(self._file.read_bytes())
            if kept.running is not None:  # else it is where the last pass ended
                kept.place.check(len(self._containers))
        except FileNotFoundError:
            self._keep()
        except (OSError, ValueError) as error:
            log.warning("where the scrub was can't be read, so it starts over: %s", error)
            self._kept.running = ScrubPass(self._now_ms())
        else:
            self._kept = kept

    def _keep(self) -> None:
        self._write(_encode(self._kept))

    def _write(self, data: bytes) -> None:
        """Whole or not at all; what a full disk has no room for is written the next time."""
        try:
            replace_file(self._file, data)
        except OSError as error:
            log.warning("where the scrub is can't be kept: %s", error)


def _extent_at(record: SegmentRecord, offset: int) -> Extent | None:
    """The first extent that ends behind `offset`."""
    if record.deleted or not record.extents:
        return None
    extent = record.extents[max(record.extent_index(offset), 0)]
    return extent if extent.end > offset else None
