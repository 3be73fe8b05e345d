"""Chunks in tier 2 that a state doesn't name, because the frames of the log that mentioned them are missing.

Such a chunk has what is missing with those frames, if it belongs to the same past: when the end of a log was given up,
its chunks stayed, and other bytes may have been acknowledged at their offsets since. So `of_one_past` keeps only those
whose frame fits the ones in the log, and `TakeBack` takes a chunk only for bytes that are missing, or after the end
of its segment: everything else in its range must be identical. What isn't taken is set aside (`set_aside`), so
that no later repair can mistake it for what was written since.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

from nadi.errors import CorruptLogError, NotFoundError
from nadi.segmentstore.repair.remains import LOST_CHUNK, Described
from nadi.segmentstore.repair.stopped import StoppedLog
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.records import Extent, FrameRef, SegmentRecord
from nadi.segmentstore.tier1.disk import aside_name
from nadi.segmentstore.tier2.checksums import damaged_blocks
from nadi.segmentstore.tier2.chunks import ChunkStore, DiskReadError
from nadi.segmentstore.tier2.description import ChunkDescription


def of_one_past(described: Described, frames: Sequence[tuple[int, int]]) -> Described:
    """Return the chunks without those planned in a past that the log has given up.

    frames: sequence and epoch of the log's frames, in order. In one past neither ever decreases. Chunks of
    earlier versions don't say when they were planned, and stay.
    """

    def goes(part: ChunkDescription) -> bool:
        after = bisect_right(frames, part.sequence, key=itemgetter(0))
        if after and (frames[after - 1][0] == part.sequence or frames[after - 1][1] > part.epoch):
            return frames[after - 1] == (part.sequence, part.epoch)
        return after == len(frames) or part.epoch <= frames[after][1]

    kept = {
        segment: [(name, part) for name, part in parts if not part.sequence or goes(part)]
        for segment, parts in described.items()
    }
    return {segment: parts for segment, parts in kept.items() if parts}


class TakeBack:
    """Puts chunks into a state in place of what is missing there. had_back: what they recovered, by segment: from
    offset to offset."""

    def __init__(self, state: StateMachine, log: StoppedLog, chunks: ChunkStore) -> None:
        self.had_back: dict[int, list[tuple[int, int]]] = {}
        self._state = state
        self._log = log
        self._chunks = chunks

    async def take(self, described: Described) -> None:
        """Take the chunks that have what is missing, which a missing frame mentioned as stored or planned.

        Raises:
            UnavailableError, OSError: tier 2, or the log, can't be read.
        """
        for segment, parts in described.items():
            record = self._state.by_id(segment)
            if record is None:
                continue
            for name, part in parts:
                is_known = name in self._state.garbage or any(extent.chunk == name for extent in record.extents)
                if not is_known and await self._is_wanted(record, name, part):
                    make_fit(self._state, record, part.offset, part.offset + part.length)
                    stored = op.ChunkStored(segment, part.offset, part.length, name, part.checksums)
                    self._state.apply(stored, FrameRef(0, None, time.monotonic()))
            self._mark(record, {name for name, part in parts if part.continues})

    async def _is_wanted(self, record: SegmentRecord, name: str, part: ChunkDescription) -> bool:
        """Whether the chunk has anything that is missing, and otherwise the very bytes that are there."""
        end = part.offset + part.length
        begin = record.extents[0].offset if record.extents else record.length
        if not begin <= part.offset <= record.length or (record.sealed and end > record.length):
            return False
        missing = [(record.length, end)] if end > record.length else []
        there: list[Extent] = []
        for extent in record.extents:
            if extent.end <= part.offset or extent.offset >= end:
                continue
            if extent.chunk == LOST_CHUNK:
                missing.append((max(extent.offset, part.offset), min(extent.end, end)))
            elif extent.offset < part.offset or extent.end > end:
                return False
            else:
                there.append(extent)
        for extent in there:
            known = await self._read(extent)
            if known is None:
                missing.append((extent.offset, extent.end))
            elif known != await self._part(name, extent.offset - part.offset, extent.length):
                return False
        if missing:
            self.had_back.setdefault(record.id, []).extend(missing)
        return bool(missing)

    async def _part(self, name: str, position: int, length: int) -> memoryview | None:
        try:
            return await self._chunks.read(name, position, length)
        except (NotFoundError, DiskReadError):
            return None

    async def _read(self, extent: Extent) -> bytes | memoryview | None:
        """The extent's bytes; None if it is damaged or gone."""
        try:
            if extent.frame is None:
                data = await self._chunks.read(extent.chunk, 0, extent.length)
                is_damaged = damaged_blocks(extent.chunk, extent.checksums, 0, data, extent.length)
                return None if is_damaged else data
            assert extent.frame.address is not None, "the log was read"
            if extent.run:
                return await self._log.runs.read_at(extent.run, extent.position, extent.length, extent.checksums)
            return await self._log.read_at(extent.frame.address, extent.position, extent.length, extent.checksums)
        except (NotFoundError, DiskReadError, CorruptLogError):
            return None

    def _mark(self, record: SegmentRecord, continuing: set[str]) -> None:
        """Note which extents start within an event, as their chunks say; what stood for lost bytes couldn't know."""
        for extent in record.extents:
            if extent.chunk in continuing and not extent.continues:
                extent.continues = True
                record.changed_extents[extent.offset] = extent
                self._state.mark(record)


def lose(state: StateMachine, record: SegmentRecord, end: int) -> None:
    """Make the segment continue at `end`: what lies between its length and there is lost."""
    extent = _lost(record, record.length, end)
    record.extents.append(extent)
    record.changed_extents[extent.offset] = extent
    record.length = end
    state.mark(record)


def make_fit(state: StateMachine, record: SegmentRecord, offset: int, end: int) -> None:
    """Split what is lost of the segment where a chunk that has some of it starts and ends."""
    if record.length < end:
        lose(state, record, end)
    for place in (offset, end):
        if record.extents and record.extents[0].offset < place < record.length:
            index = record.extent_index(place)
            whole = record.extents[index]
            if whole.chunk == LOST_CHUNK and whole.offset < place:
                rest = _lost(record, place, whole.end)
                whole.length = place - whole.offset
                record.extents.insert(index + 1, rest)
                record.changed_extents |= {whole.offset: whole, place: rest}
                state.mark(record)


def _lost(record: SegmentRecord, offset: int, end: int) -> Extent:
    return Extent(offset, end - offset, None, 0, LOST_CHUNK, continues=record.continues_at(offset))


async def set_aside(container: int, names: Sequence[str], chunks: ChunkStore) -> str:
    """Rename chunks so that they are no longer the container's; return where they are now, "" if there were none.

    Nothing is deleted: moved back under its former name, a chunk is what it was.

    Raises:
        UnavailableError: tier 2 can't do that.
    """
    former = f"container-{container}"
    folder = aside_name(former)
    for name in names:
        await chunks.rename(name, folder + name.removeprefix(former))
    return folder if names else ""
