"""Skips unreadable frames of a log: applies later frames, and names the missing data.

An append includes its offset in the segment. So if frames are missing, the next append to a segment shows which bytes
are lost: they become an extent of a nonexistent chunk, and readers get an error for exactly that range. The resulting
state has everything that the log still has.

A frame may contain more than appends. If later frames show that a change is missing that readers wouldn't detect, to a
table's entries or the creation of a segment, the log is cut before the missing frames: then the state is consistent,
and later frames are discarded. Undetectable losses are described as such.

`repair_container` replaces such a log by a snapshot of that state.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from nadi.errors import DamagedStateError
from nadi.limits import FRAME_MAX_REQUESTS
from nadi.segmentstore import reserve
from nadi.segmentstore.chain.log import ChainStart
from nadi.segmentstore.recovery import snapshots
from nadi.segmentstore.recovery.snapshots import restored
from nadi.segmentstore.recovery.storage import STATE, apply_frame
from nadi.segmentstore.repair.offline_store import DiscardedContent, ReadableFrame, StoppedLog, describe_segment
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.records import Extent, FrameRef, SegmentRecord
from nadi.segmentstore.tier1.blob_files import BlobReader
from nadi.segmentstore.tier1.disk import aside_name
from nadi.segmentstore.tier1.files import FileLog
from nadi.segmentstore.tier1.layout import FRAME_HEADER_BYTES
from nadi.segmentstore.tier1.log import LogAddress
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import SnapshotManifest

LOST_CHUNK = "given-up-by-a-repair"  # a nonexistent chunk: readers of its bytes get an error


@dataclass(slots=True)
class SkippedFrames:
    """The result of skipping. frames: skipped ranges. lost: known losses; reading their bytes raises an error. unsafe:
    losses that readers wouldn't detect. later_frames: number of frames after them. ends: the first frame of the
    discarded or missing end of the log, 0 if none. discarded: the contents of readable discarded frames. unnamed: the
    names of chunks that the state doesn't refer to."""

    frames: list[tuple[int, int]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unsafe: list[str] = field(default_factory=list)
    later_frames: int = 0
    ends: int = 0
    discarded: DiscardedContent = field(default_factory=DiscardedContent)
    unnamed: list[str] = field(default_factory=list)

    def in_words(self) -> str:
        """
        >>> SkippedFrames([(7, 7), (9, 1200)]).in_words()
        'frames 7, 9 to 1,200'
        """
        spans = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in self.frames]
        is_single = len(self.frames) == 1 and self.frames[0][0] == self.frames[0][1]
        return ("frame " if is_single else "frames ") + ", ".join(spans)


async def repair_container(folder: Path, number: int, chunks: ChunkStore) -> str:
    """Skip unreadable frames of a container's log: store a snapshot of the result, and restart the log after it. Return
    the folder in tier 2 to which unreferenced chunks were moved, or "". It can be interrupted at any point, and
    repeated. SnapshotError, DamagedRecordError: there is no snapshot to start from. DamagedStateError: the readable
    frames contradict each other. StorageFullError: the disk is full; nothing in use was changed. UnavailableError,
    OSError: the folder, or tier 2, can't be used."""
    with reserve.mapped_errors(folder):
        records = await chunks.records()
        record = (await records.read(number)).record
        metadata, _ = await restored(chunks, number, record.snapshot, folder / STATE)
        file = chunks.sealing.hidden(folder / "snapshot.tmp")
        try:
            skipped = await skip_frames(metadata, folder, number, chunks)
            sequence = metadata.state().sequence
            await asyncio.to_thread(metadata.copy, file)
        finally:
            metadata.close()
        # first: once the snapshot is published, a server deletes unreferenced files
        if skipped.frames or skipped.ends:
            await asyncio.to_thread(BlobReader(folder / "log").set_aside)
        former = f"container-{number}"
        aside = aside_name(former)
        for name in skipped.unnamed:  # renaming a chunk back restores it
            await chunks.rename(name, aside + name.removeprefix(former))
        base = await snapshots.put_base(chunks, number, sequence, file)
        file.unlink()
        head = op.encode_head([], chunks.sealing, sequence + 1)
        await FileLog.begin(folder / "log", head, sequence, name=folder.name)
        await records.set_snapshot(number, record.epoch, SnapshotManifest(number, sequence, base, ()), ChainStart())
        return aside if skipped.unnamed else ""


async def skip_frames(metadata: ContainerMetadata, folder: Path, container: int, chunks: ChunkStore) -> SkippedFrames:
    """Bring a state, not open elsewhere, to the last readable frame of the container's log. DamagedStateError: later
    frames contradict it. UnavailableError: tier 2 can't be read. OSError: a folder can't be used."""
    log = StoppedLog(folder / "log")
    try:
        fold = await asyncio.to_thread(_fold, metadata, log)
        if fold.skipped.frames or fold.skipped.ends:
            fold.state.planned.clear()  # so that they are moved aside: a server would delete them
        await asyncio.to_thread(_write, metadata, fold.state)
        named = {chunk for _, _, _, chunk in metadata.chunks()} | {*fold.state.garbage, *fold.state.planned}
    finally:
        await log.close()
    skipped = fold.skipped
    skipped.unnamed = [name for name in await chunks.listed(f"container-{container}") if name not in named]
    return skipped


def _fold(metadata: ContainerMetadata, log: StoppedLog) -> _Fold:
    """Apply all readable frames, or only those before the first gap, if the log is cut there."""
    fold = _Fold(StateMachine(metadata, time.monotonic()))
    former = fold.state.sequence
    for _ in log.replay(former):  # to find the damage
        pass
    frames = log.readable(0)
    later = [frame for frame in frames if frame.header.sequence > former]
    try:
        for frame in later:
            fold.take(frame)
        fold.finish()
    except DamagedStateError as error:
        if not fold.skipped.frames:
            raise
        fold.skipped.unsafe.append(f"{error.what}, and {error.why_not}")
    if fold.skipped.unsafe and log.first_sequence <= former + 1:  # else the log would be empty
        unsafe, gap = fold.skipped.unsafe, fold.skipped.frames[0][0]
        fold = _Fold(StateMachine(metadata, time.monotonic()))
        for frame in later:
            if frame.header.sequence < gap:
                fold.take(frame)
            else:
                fold.give_up(frame)
        fold.skipped.ends, fold.skipped.unsafe = gap, unsafe
    elif log.has_lost_its_end(frames, former):
        fold.skipped.ends = fold.state.sequence + 1
        fold.skipped.lost.append(
            f"from frame {fold.skipped.ends:,} on: the end of the log is missing, with an unknown number of frames; "
            "everything in them is lost"
        )
    return fold


def _write(metadata: ContainerMetadata, state: StateMachine) -> None:
    checkpoint = state.checkpoint()
    while True:
        try:
            metadata.commit(*checkpoint.to_commit())
        except lmdb.MapFullError:
            metadata.grow()
        else:
            return


class _Fold:
    """The fold over the readable frames of a log."""

    def __init__(self, state: StateMachine) -> None:
        self.state = state
        self.skipped = SkippedFrames()
        self._lengths: set[int] = set()  # segments with a certain length, since the last gap
        self._unknown: dict[int, int] = {}  # segments created in a gap: bytes appended to them later
        self._tables: dict[int, int] = {}  # missing bytes of tables' changes

    def take(self, readable: ReadableFrame) -> None:
        state, header = self.state, readable.header
        if header.sequence > state.sequence + 1:
            self.skipped.frames.append((state.sequence + 1, header.sequence - 1))
            self._lengths.clear()
            self._pass_over(header.sequence - 1)
        self.skipped.later_frames += bool(self.skipped.frames)
        address = LogAddress(header.sequence, header.number, header.offset + FRAME_HEADER_BYTES)
        frame = FrameRef(header.sequence, address, time.monotonic())
        apply_frame(state, frame, readable.head(), readable.check, self._prepare_operation)

    def give_up(self, readable: ReadableFrame) -> None:
        """Count a frame as discarded; its number isn't reused."""
        self.skipped.discarded.take(readable, self.state.sealing)
        self._pass_over(readable.header.sequence)

    def _pass_over(self, sequence: int) -> None:
        """Skip the segment ids that frames up to that one may have used."""
        self.state.next_segment += FRAME_MAX_REQUESTS * (sequence - self.state.sequence)
        self.state.sequence = sequence

    def _prepare_operation(self, operation: op.AnyOperation) -> bool:
        """Substitute missing data before the operation; return whether it can then be applied."""
        if not self.skipped.frames:
            return True
        match operation:
            case op.Create():
                self._lengths.add(operation.segment)
                former = self.state.find(operation.name)
                if former is not None:
                    self.skipped.lost.append(
                        f"{describe_segment(former.name)}: all that it had before it was recreated"
                    )
                    self._remove(former)
            case op.Append():
                return self._prepare_append(operation)
            case op.Merge():
                return self._prepare_merge(operation)
            case op.TableUpdate():
                return self._prepare_update(operation)
            case op.ChunkStored():
                record = self.state.by_id(operation.segment)
                if record is not None:
                    _make_fit(self.state, record, operation.offset, operation.offset + operation.length)
                # else it would become garbage, and be deleted, because of the missing frames
                return record is not None and record.extents_exactly(operation.offset, operation.length) is not None
            case op.Truncate():
                record = self.state.by_id(operation.segment)
                if record is not None and operation.offset > record.length:
                    _lose(self.state, record, operation.offset)
                return record is not None
            case op.Delete():
                self._unknown.pop(operation.segment, None)
                return self.state.by_id(operation.segment) is not None
            case op.Seal() | op.Attributes() | op.SetPolicy() | op.AddIndexTimes():
                return self.state.by_id(operation.segment) is not None
        return True

    def _prepare_append(self, operation: op.Append) -> bool:
        record = self.state.by_id(operation.segment)
        if record is None:
            self._unknown[operation.segment] = self._unknown.get(operation.segment, 0) + operation.length
            return False
        if operation.offset < record.length:
            problem = f"a later frame appends at {operation.offset:,} of {describe_segment(record.name)}"
            raise DamagedStateError(
                str(self.state.metadata.folder), problem, f"it has {record.length:,} bytes without the missing ones"
            )
        if operation.offset > record.length:
            _lose(self.state, record, operation.offset)
        self._lengths.add(record.id)
        return True

    def _prepare_merge(self, operation: op.Merge) -> bool:
        """Apply a merge only if its offset, which isn't in the log, is certain; else the merged data counts as lost."""
        target, source = self.state.by_id(operation.target), self.state.by_id(operation.source)
        self._unknown.pop(operation.source, None)
        if target is not None and source is not None and target.id in self._lengths:
            if source.id not in self._lengths:
                self._lengths.discard(target.id)
            return True
        if target is not None:
            self._lengths.discard(target.id)
        elif operation.target in self._unknown and source is not None:
            self._unknown[operation.target] += source.length - source.start_offset
        if source is not None:
            place = "" if target is None else f" to {describe_segment(target.name)}"
            size = source.length - source.start_offset
            self.skipped.lost.append(f"{describe_segment(source.name)}: {size:,} bytes that were merged{place}")
            self._remove(source)
        return False

    def _prepare_update(self, operation: op.TableUpdate) -> bool:
        record = self.state.by_id(operation.segment)
        if record is None:
            self._unknown.setdefault(operation.segment, 0)
            return False
        if operation.entries and operation.entries[0][1] > record.table_length:
            missing = operation.entries[0][1] - record.table_length
            self._tables[record.id] = self._tables.get(record.id, 0) + missing
        return True

    def _remove(self, record: SegmentRecord) -> None:
        self.state.apply(op.Delete(record.id), FrameRef(0, None, time.monotonic()))

    def finish(self) -> None:
        """Describe the missing data, except bytes of segments, for which reads raise errors."""
        skipped = self.skipped
        self.state.garbage.pop(LOST_CHUNK, None)
        for segment, size in self._tables.items():
            record = self.state.by_id(segment)
            if record is not None:
                skipped.unsafe.append(
                    f"{describe_segment(record.name)}: {size:,} bytes of changes to its entries; "
                    "some keys have older values"
                )
        for segment, size in self._unknown.items():
            skipped.unsafe.append(
                f"segment number {segment}: entirely, as it was created there; {size:,} bytes were appended later"
            )
        if skipped.frames:
            skipped.lost.append(
                f"{skipped.in_words()} of the log: possible further losses are unknown: bytes at the end of segments "
                "without later appends; creations, seals, truncations and deletions; entries of tables without later "
                "changes; writers' numbers, so that a writer that repeats itself may store events twice"
            )


def _lose(state: StateMachine, record: SegmentRecord, end: int) -> None:
    """Extend the segment to `end`: the bytes after its previous length are lost."""
    extent = _lost(record, record.length, end)
    record.extents.append(extent)
    record.changed_extents[extent.offset] = extent
    record.length = end
    state.mark(record)


def _make_fit(state: StateMachine, record: SegmentRecord, offset: int, end: int) -> None:
    """Split the segment's lost extents at the edges of a chunk that has some of their bytes."""
    if record.length < end:
        _lose(state, record, end)
    for place in (offset, end):
        if record.extents and record.extents[0].offset < place < record.length:
            index = record.extent_index(place)
            first = record.extents[index]
            if first.chunk == LOST_CHUNK and first.offset < place:
                second = _lost(record, place, first.end)
                first.length = place - first.offset
                record.extents.insert(index + 1, second)
                record.changed_extents |= {first.offset: first, place: second}
                state.mark(record)


def _lost(record: SegmentRecord, offset: int, end: int) -> Extent:
    return Extent(offset, end - offset, None, 0, LOST_CHUNK, continues=record.continues_at(offset))
