"""Going on behind frames of a log that can't be read: what later ones tell is kept, and what is missing is named.

An append says where in its segment it goes. So once frames are missing, the next append to a segment shows what it
lost: that becomes an extent of a chunk there is none of, and readers are told of just that range. What was moved to
tier 2 meanwhile is taken from there. The state that comes of it has all that the log still tells, and is sealed so.

A frame may hold more than appends. Where later ones show that a change is missing which readers would not be told of, a
table's entries or the creation of a segment, `unsafe` says so: then ending the log there is the choice that fits
together. What nothing shows is named as such.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from nadi.errors import DamagedStateError
from nadi.limits import FRAME_MAX_REQUESTS
from nadi.segmentstore import operations as op
from nadi.segmentstore import rebuild, statecheck
from nadi.segmentstore.metadata import Metadata
from nadi.segmentstore.records import Extent, FrameRef, SegmentRecord
from nadi.segmentstore.remains import LOST_CHUNK, Described, described_chunks
from nadi.segmentstore.state import StateMachine
from nadi.segmentstore.stopped import ReadableFrame, StoppedLog, in_words
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES
from nadi.segmentstore.tier1.log import LogAddress
from nadi.segmentstore.tier2.chunks import ChunkStore


@dataclass(slots=True)
class LeftOut:
    """What was left out. frames: from and to. lost: what is known to be missing; readers are told of its bytes.

    unsafe: what is missing unseen by readers. kept: how many later frames there are.
    """

    frames: list[tuple[int, int]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unsafe: list[str] = field(default_factory=list)
    kept: int = 0

    def count(self) -> int:
        return sum(last - first + 1 for first, last in self.frames)

    def in_words(self) -> str:
        """
        >>> LeftOut([(7, 7), (9, 1200)]).in_words()
        'frames 7, 9 to 1,200'
        """
        spans = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in self.frames]
        return ("frames " if self.count() > 1 else "frame ") + ", ".join(spans)


async def leave_out(state: Path, folder: Path, container: int, chunks: ChunkStore) -> LeftOut:
    """Bring the state in `state`, a copy, to the last frame of the container's log that can be read.

    Raises:
        DamagedStateError: what follows doesn't fit what there is.
        UnavailableError: tier 2 can't be read.
        OSError: a folder can't be used.
    """
    described = await described_chunks(chunks, container)
    return await asyncio.to_thread(_leave_out, state, folder, container, described)


def _leave_out(state: Path, folder: Path, container: int, described: Described) -> LeftOut:
    (state / statecheck.SEAL_FILE).unlink(missing_ok=True)
    metadata = Metadata(state, container)
    try:
        rest = _Rest(StateMachine(metadata))
        for frame in StoppedLog(folder / "log").readable(rest.state.sequence):
            rest.take(frame)
        rest.take_chunks(described)
        rest.finish()
        _write(metadata, rest.state)
    finally:
        metadata.close()
    statecheck.seal(state, rebuild.last_epoch(folder))
    return rest.found


def _write(metadata: Metadata, state: StateMachine) -> None:
    checkpoint = state.checkpoint()
    entries = [(record.id, overlay) for record, overlay in checkpoint.entries]
    moments = [(record.id, entered, start) for record, entered, start in checkpoint.moments]
    while True:
        try:
            metadata.commit(checkpoint.changes, checkpoint.deleted, checkpoint.extents, entries, moments)
        except lmdb.MapFullError:
            metadata.grow()
        else:
            return


class _Rest:
    """The fold over what is left of a log."""

    def __init__(self, state: StateMachine) -> None:
        self.state = state
        self.found = LeftOut()
        self._lengths: set[int] = set()  # segments whose length is certain, since the last gap
        self._unknown: dict[int, int] = {}  # segments that were created in a gap: bytes appended to them later
        self._tables: dict[int, int] = {}  # bytes of tables' changes that are missing

    def take(self, readable: ReadableFrame) -> None:
        """Apply the next frame."""
        state, header, check = self.state, readable.header, readable.check
        if header.sequence > state.sequence + 1:
            self.found.frames.append((state.sequence + 1, header.sequence - 1))
            self._lengths.clear()
            # what was created there has an id, which must not be given again
            state.next_segment += FRAME_MAX_REQUESTS * (header.sequence - 1 - state.sequence)
        self.found.kept += bool(self.found.frames)
        operations, data_at = op.decode_frame(readable.head())
        address = LogAddress(header.sequence, header.number, header.offset + header.header_bytes)
        frame = FrameRef(header.sequence, address, time.monotonic())
        part = 0
        for operation in operations:
            checksum, number = b"", part
            if isinstance(operation, op.Append) and operation.length:
                checksum = check.checksums[part * CHECKSUM_BYTES :][:CHECKSUM_BYTES]
                part += 1
            if self._goes(operation):
                state.apply(operation, frame, data_at, checksum)
                if isinstance(operation, op.Append) and operation.length and number in check.damaged_parts:
                    state.set_aside(state.must(operation.segment).extents[-1])
        if frame.live_bytes:
            state.frames[frame.sequence] = frame
        state.sequence = frame.sequence

    def _goes(self, operation: op.AnyOperation) -> bool:
        """Make up for what is missing before the operation; whether it can be applied then."""
        if not self.found.frames:
            return True
        match operation:
            case op.Create():
                self._lengths.add(operation.segment)
                former = self.state.find(operation.name)
                if former is not None:
                    self.found.lost.append(f"{in_words(former.name)}: all that it had before it was made again")
                    self._remove(former)
            case op.Append():
                return self._append_goes(operation)
            case op.Merge():
                return self._merge_goes(operation)
            case op.TableUpdate():
                return self._update_goes(operation)
            case op.ChunkStored():
                record = self.state.by_id(operation.segment)
                if record is not None:
                    self._make_fit(record, operation.offset, operation.offset + operation.length)
            case op.Truncate():
                record = self.state.by_id(operation.segment)
                if record is not None and operation.offset > record.length:
                    self._lose(record, operation.offset)
                return record is not None
            case op.Delete():
                self._unknown.pop(operation.segment, None)
                return self.state.by_id(operation.segment) is not None
            case op.Seal() | op.Attributes() | op.Policy():
                return self.state.by_id(operation.segment) is not None
        return True

    def _append_goes(self, operation: op.Append) -> bool:
        record = self.state.by_id(operation.segment)
        if record is None:
            self._unknown[operation.segment] = self._unknown.get(operation.segment, 0) + operation.length
            return False
        if operation.offset < record.length:
            what = f"a later frame appends at {operation.offset:,} of {in_words(record.name)}"
            raise DamagedStateError(
                self.state.metadata.where, what, f"it has {record.length:,} bytes without those that are missing"
            )
        if operation.offset > record.length:
            self._lose(record, operation.offset)
        self._lengths.add(record.id)
        return True

    def _merge_goes(self, operation: op.Merge) -> bool:
        """A merge doesn't say where to: if that isn't certain, what is merged counts as lost with what is before it."""
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
            place = "" if target is None else f" to {in_words(target.name)}"
            size = source.length - source.start_offset
            self.found.lost.append(f"{in_words(source.name)}: {size:,} bytes that were merged{place}")
            self._remove(source)
        return False

    def _update_goes(self, operation: op.TableUpdate) -> bool:
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

    def _lose(self, record: SegmentRecord, end: int) -> None:
        """The segment goes on at `end`; what is before it is lost."""
        extent = _lost(record, record.length, end)
        record.extents.append(extent)
        record.changed_extents[extent.offset] = extent
        record.length = end
        self.state.mark(record)

    def _make_fit(self, record: SegmentRecord, offset: int, end: int) -> None:
        """Let what is lost of the segment begin and end where a chunk does, which has some of it."""
        if offset <= record.length < end and (offset == record.length or _begins(record, offset)):
            self._lose(record, end)
        for place in (offset, end):
            if record.extents and record.extents[0].offset < place < record.length:
                index = record.extent_index(place)
                whole = record.extents[index]
                if whole.chunk == LOST_CHUNK and whole.offset < place:
                    rest = _lost(record, place, whole.end)
                    whole.length = place - whole.offset
                    record.extents.insert(index + 1, rest)
                    record.changed_extents |= {whole.offset: whole, place: rest}
                    self.state.mark(record)

    def take_chunks(self, described: Described) -> None:
        """What was moved to tier 2, or was to be, when a missing frame told of it."""
        there = {name for parts in described.values() for name, _ in parts}
        for segment, parts in described.items() if self.found.frames else ():
            record = self.state.by_id(segment)
            for name, part in parts:
                if record is None or name in self.state.garbage or any(e.chunk == name for e in record.extents):
                    continue
                self._make_fit(record, part.offset, part.offset + part.length)
                span = self.state.extents_exactly(record, part.offset, part.length)
                if span is None or all(e.chunk in there for e in record.extents[slice(*span)]):
                    continue
                stored = op.ChunkStored(segment, part.offset, part.length, name, part.checksums)
                self.state.apply(stored, FrameRef(0, None, time.monotonic()))
            if record is not None:
                self._mark(record, {name for name, part in parts if part.continues})

    def _mark(self, record: SegmentRecord, continuing: set[str]) -> None:
        """Chunks say themselves that they begin within an event; what was lost in their place could not."""
        for extent in record.extents:
            if extent.chunk in continuing and not extent.continues:
                extent.continues = True
                record.changed_extents[extent.offset] = extent
                self.state.mark(record)

    def finish(self) -> None:
        """Name what is missing; the bytes of segments are found by whoever reads them."""
        found = self.found
        self.state.garbage.pop(LOST_CHUNK, None)
        for segment, size in self._tables.items():
            record = self.state.by_id(segment)
            if record is not None:
                found.unsafe.append(
                    f"{in_words(record.name)}: {size:,} bytes of changes of its entries; some keys have older values"
                )
        for segment, size in self._unknown.items():
            found.unsafe.append(
                f"segment number {segment}: all of it, {size:,} bytes were appended later; it was created there"
            )
        if found.frames:
            found.lost.append(
                f"{found.in_words()} of the log: what else it said can't be told: bytes at the end of segments that "
                "nothing was appended to later; creations, seals, truncations and deletions; entries of tables that "
                "nothing was changed in later; writers' numbers, so that one that repeats itself may store events twice"
            )


def _lost(record: SegmentRecord, offset: int, end: int) -> Extent:
    return Extent(offset, end - offset, None, 0, LOST_CHUNK, continues=record.continues_at(offset))


def _begins(record: SegmentRecord, offset: int) -> bool:
    return any(extent.offset == offset for extent in record.extents)
