"""Continuing after frames of a log that can't be read: what later ones say is kept, and what is missing is named.

An append says where in its segment it goes. So if frames are missing, the next append to a segment shows what the
segment lost: that becomes an extent of a chunk that doesn't exist, and readers get an error for just that range. What
was moved to tier 2 meanwhile is taken from there (`unnamed`). The resulting state has all that the log still says, and
is sealed so.

A frame may hold more than appends. If later frames show that a change is missing that readers wouldn't learn of, a
table's entries or the creation of a segment, `unsafe` says so: then ending the log there is the consistent choice.
What nothing shows is named as such.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from nadi.errors import DamagedStateError
from nadi.limits import FRAME_MAX_REQUESTS
from nadi.segmentstore.recovery import rebuild
from nadi.segmentstore.recovery.replay import apply_frame
from nadi.segmentstore.repair.remains import LOST_CHUNK, Described, described_chunks
from nadi.segmentstore.repair.stopped import ReadableFrame, StoppedLog, in_words
from nadi.segmentstore.repair.unnamed import TakeBack, lose, make_fit, of_one_past
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state.file import check as statecheck
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.records import FrameRef, SegmentRecord
from nadi.segmentstore.tier1.layout import FRAME_HEADER_BYTES
from nadi.segmentstore.tier1.log import LogAddress
from nadi.segmentstore.tier2.chunks import ChunkStore


@dataclass(slots=True)
class LeftOut:
    """What was left out. frames: from and to. lost: what is known to be missing; reading its bytes raises an error.

    unsafe: what is missing without readers noticing. kept: how many later frames there are. ends: the first frame at
    the end of the log that may be missing, 0 if none. had_back: what chunks had of what is missing. runs: files beside
    the log that the state mentions. unnamed: chunks that it doesn't, with their sizes in bytes.
    """

    frames: list[tuple[int, int]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unsafe: list[str] = field(default_factory=list)
    kept: int = 0
    ends: int = 0
    had_back: list[str] = field(default_factory=list)
    runs: set[int] = field(default_factory=set)
    unnamed: dict[str, int] = field(default_factory=dict)

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
    (state / statecheck.SEAL_FILE).unlink(missing_ok=True)
    described = await described_chunks(chunks, container)
    log = StoppedLog(folder / "log")
    metadata = await asyncio.to_thread(Metadata, state, container)
    try:
        rest, frames = await asyncio.to_thread(_fold, metadata, log)
        described = of_one_past(described, frames)
        parts = [part for some in described.values() for _, part in some]
        rest.ends_before(max((part.sequence for part in parts), default=0), is_cut=log.is_cut)
        if rest.found.frames or rest.found.ends or log.is_cut:
            await _take_back(rest, log, chunks, described)
            rest.state.planned.clear()  # so that they are set aside: a server would delete them
        rest.finish()
        await asyncio.to_thread(_write, metadata, rest.state)
        rest.found.runs = set(rest.state.runs.bytes_of)
        named = {chunk for _, _, _, chunk in metadata.chunks()} | {*rest.state.garbage, *rest.state.planned}
    finally:
        metadata.close()
        await log.close()
    listed = await chunks.listed(f"container-{container}")
    rest.found.unnamed = {name: size for name, size in listed.items() if name not in named}
    last_epoch = await asyncio.to_thread(rebuild.last_epoch, folder)
    epoch = max([1, last_epoch, *(part.epoch for part in parts)])  # 0 would mean that it may lack something
    await asyncio.to_thread(statecheck.seal, state, epoch, given_up_from=rest.found.ends)
    return rest.found


def _fold(metadata: Metadata, log: StoppedLog) -> tuple[_Rest, list[tuple[int, int]]]:
    """Apply all that can be read; also return the sequence and epoch of each frame there is."""
    rest = _Rest(StateMachine(metadata, time.monotonic()))
    former = rest.state.sequence
    for _ in log.replay(former):  # it finds what is wrong
        pass
    frames = log.readable(0)
    for frame in frames:
        if frame.header.sequence > former:
            rest.take(frame)
    if log.has_lost_its_end(frames, former):
        rest.found.ends = rest.state.sequence + 1
    return rest, [(frame.header.sequence, frame.header.epoch) for frame in frames]


async def _take_back(rest: _Rest, log: StoppedLog, chunks: ChunkStore, described: Described) -> None:
    taking = TakeBack(rest.state, log, chunks)
    await taking.take(described)
    for segment, places in taking.had_back.items():
        for begin, end in places:
            record = rest.state.must(segment)
            rest.found.had_back.append(f"{in_words(record.name)}: bytes {begin:,} to {end:,}")


def _write(metadata: Metadata, state: StateMachine) -> None:
    checkpoint = state.checkpoint()
    entries = [(record.id, overlay) for record, overlay in checkpoint.entries]
    times = [(record.id, stored) for record, stored in checkpoint.times]
    while True:
        try:
            metadata.commit(checkpoint.changes, checkpoint.deleted, checkpoint.extents, entries, times)
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
        state, header = self.state, readable.header
        if header.sequence > state.sequence + 1:
            self.found.frames.append((state.sequence + 1, header.sequence - 1))
            self._lengths.clear()
            # what was created there has an id, which must not be given again
            state.next_segment += FRAME_MAX_REQUESTS * (header.sequence - 1 - state.sequence)
        self.found.kept += bool(self.found.frames)
        address = LogAddress(header.sequence, header.number, header.offset + FRAME_HEADER_BYTES)
        frame = FrameRef(header.sequence, address, time.monotonic())
        apply_frame(state, frame, readable.head(), readable.check, self._goes)

    def _goes(self, operation: op.AnyOperation) -> bool:
        """Make up for what is missing before the operation; return whether it can then be applied."""
        if not self.found.frames:
            return True
        match operation:
            case op.Create():
                self._lengths.add(operation.segment)
                former = self.state.find(operation.name)
                if former is not None:
                    self.found.lost.append(f"{in_words(former.name)}: all that it had before it was recreated")
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
                    make_fit(self.state, record, operation.offset, operation.offset + operation.length)
                # else it would be garbage, and be deleted, for what is missing here
                return record is not None and record.extents_exactly(operation.offset, operation.length) is not None
            case op.Truncate():
                record = self.state.by_id(operation.segment)
                if record is not None and operation.offset > record.length:
                    lose(self.state, record, operation.offset)
                return record is not None
            case op.Delete():
                self._unknown.pop(operation.segment, None)
                return self.state.by_id(operation.segment) is not None
            case op.Seal() | op.Attributes() | op.Policy() | op.TimesIndexed():
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
            lose(self.state, record, operation.offset)
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

    def ends_before(self, sequence: int, *, is_cut: bool) -> None:
        """A chunk was planned in that frame: the log had it once, and no later one may have its number."""
        if sequence > self.state.sequence:
            if not is_cut and not self.found.ends:
                self.found.ends = self.state.sequence + 1
            self.state.sequence = sequence

    def finish(self) -> None:
        """Name what is missing; the bytes of segments are found by whoever reads them."""
        found = self.found
        self.state.garbage.pop(LOST_CHUNK, None)
        for segment, size in self._tables.items():
            record = self.state.by_id(segment)
            if record is not None:
                found.unsafe.append(
                    f"{in_words(record.name)}: {size:,} bytes of changes to its entries; some keys have older values"
                )
        for segment, size in self._unknown.items():
            found.unsafe.append(
                f"segment number {segment}: all of it, as it was created there; {size:,} bytes were appended later"
            )
        if found.frames:
            found.lost.append(
                f"{found.in_words()} of the log: nothing shows what else was there: bytes at the end of segments "
                "without later appends; creations, seals, truncations and deletions; entries of tables without later "
                "changes; writers' numbers, so that a writer that repeats itself may store events twice"
            )
        if found.ends:
            found.lost.append(
                f"from frame {found.ends:,} on: the end of the log is gone, and nothing shows how many frames it had; "
                "everything in them is lost, except for what chunks have of it"
            )
