"""Bytes of segments that no state names any more, and that the log still holds: found by what its appends say.

A record of a state names up to 42 extents of the log (`state.extent_rows`), so much goes with one that is damaged; but
the log is kept for as long as it has the only copy of anything. An append says where in its segment it goes. A merge
doesn't: what was merged is found if the frames from the target's last append on, and all of the source, are there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from nadi.segmentstore.repair.remains import LOST_CHUNK
from nadi.segmentstore.repair.stopped import ReadableFrame, StoppedLog
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state.appended import extents_of
from nadi.segmentstore.state.extent_rows import EVERYWHERE
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.records import Extent, FrameRef, Kind, SegmentRecord
from nadi.segmentstore.state.stored import record_changes
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES, FRAME_HEADER_BYTES
from nadi.segmentstore.tier1.log import LogAddress

Places = dict[int, list[tuple[int, int]]]  # by segment: from offset to offset, in order


def have_back(state: Path, container: int, folder: Path, last_sequence: int) -> None:
    """Let a state that nobody has open name what the log in `folder` has, up to the last frame that the state reflects,
    of the bytes that it calls lost; blocking.

    Raises:
        DamagedStateError: the state can't be read.
        OSError: the log can't be.
    """
    metadata = Metadata(state, container)
    try:
        places: Places = defaultdict(list)
        for segment, offset, length, chunk in metadata.chunks():
            if chunk == LOST_CHUNK:
                places[segment].append((offset, offset + length))
        if places:
            _search(metadata, StoppedLog(folder), last_sequence, places)
    finally:
        metadata.close()


def _search(metadata: Metadata, log: StoppedLog, last_sequence: int, places: Places) -> None:
    records = {segment: record for segment in places if (record := metadata.load(segment, {})) is not None}
    for segment, record in records.items():
        some = _joined(places[segment])
        if record.extents[0].offset == some[0][0]:
            some[0] = 0, some[0][1]  # it may begin within an extent, of which the first part was truncated
        places[segment] = some
    runs = {0, *log.runs.numbers()}
    for segment, found in extents_in(log.readable(0), last_sequence, places).items():
        if segment in records:
            record = records[segment]
            _take(record, [each for each in found if each.end > record.start_offset and each.run in runs])
            metadata.commit(record_changes(record), extents=[(segment, record.changed_extents, EVERYWHERE)])


def _joined(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """
    >>> _joined([(0, 10), (10, 20), (30, 40)])
    [(0, 20), (30, 40)]
    """
    joined: list[tuple[int, int]] = []
    for begin, end in places:
        if joined and joined[-1][1] == begin:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((begin, end))
    return joined


def _take(record: SegmentRecord, found: list[Extent]) -> None:
    """Put extents in place of what is lost; what is left of that stays as it was."""
    lost = [extent for extent in record.extents if extent.chunk == LOST_CHUNK]
    extents = [extent for extent in record.extents if extent.chunk != LOST_CHUNK] + found
    for piece in lost:
        record.changed_extents[piece.offset] = None
        for begin, end in _left(piece, found):
            continues = piece.continues if begin == piece.offset else record.continues_at(begin)
            rest = Extent(begin, end - begin, None, 0, LOST_CHUNK, continues=continues)
            record.changed_extents[begin] = rest
            extents.append(rest)
    record.changed_extents |= {extent.offset: extent for extent in found}
    record.extents[:] = sorted(extents, key=lambda extent: extent.offset)
    record.log_bytes += sum(extent.length for extent in found)


def _left(piece: Extent, found: list[Extent]) -> Iterator[tuple[int, int]]:
    """What others, in order, don't cover of it."""
    position = piece.offset
    for extent in found[bisect_right(found, position, key=lambda extent: extent.end) :]:
        if extent.offset >= piece.end:
            break
        if extent.offset > position:
            yield position, extent.offset
        position = extent.end
    if position < piece.end:
        yield position, piece.end


def extents_in(frames: Sequence[ReadableFrame], last_sequence: int, places: Places) -> dict[int, list[Extent]]:
    """What a log's frames up to that one have of these places of segments, in order; blocking."""
    reflected = [frame for frame in frames if frame.header.sequence <= last_sequence]
    reading = _Reading(places)
    for frame in reflected:
        reading.look_at(frame)
    for frame in reflected:
        reading.take(frame)
    return {segment: _apart(some) for segment, some in reading.found.items()}


def _apart(extents: dict[int, Extent]) -> list[Extent]:
    """Those by offset, in order; none if any overlap, as those of one past don't."""
    in_order = [extent for _, extent in sorted(extents.items())]
    return [] if overlap(in_order) else in_order


def overlap(extents: Sequence[Extent]) -> bool:
    """Whether any of them do; they are in order."""
    return any(extent.end > after.offset for extent, after in pairwise(extents))


class _Reading:
    """Twice over the frames, first only for what was merged, so that no more is held than that and what is found."""

    def __init__(self, places: Places) -> None:
        self.found: dict[int, dict[int, Extent]] = defaultdict(dict)  # by segment and offset
        self._places = places
        self._merged: set[int] = set()  # into those segments
        self._in_pieces: set[int] = set()  # segments that take large events in pieces
        self._last = 0
        self._lengths: dict[int, int] = {}  # of segments, as far as consecutive frames show them
        self._sources: dict[int, list[Extent]] = {}  # all that was appended to what will be merged

    def look_at(self, readable: ReadableFrame) -> None:
        for operation in op.decode_frame(readable.head())[0]:
            match operation:
                case op.Merge() if operation.target in self._places:
                    self._merged.add(operation.source)
                case op.Create() if operation.kind == Kind.TRANSIENT:
                    self._in_pieces.add(operation.segment)

    def take(self, readable: ReadableFrame) -> None:
        header, checksums = readable.header, readable.check.checksums
        if header.sequence != self._last + 1:
            self._lengths.clear()
            self._sources.clear()
        self._last = header.sequence
        address = LogAddress(header.sequence, header.number, header.offset + FRAME_HEADER_BYTES)
        frame = FrameRef(header.sequence, address, 0.0)
        operations, data_at = op.decode_frame(readable.head())
        part = 0
        for operation in operations:
            match operation:
                case op.Append():
                    checksum = checksums[part * CHECKSUM_BYTES :][:CHECKSUM_BYTES]
                    in_pieces = operation.segment in self._in_pieces
                    self._append(operation, extents_of(operation, frame, data_at, checksum, in_pieces=in_pieces))
                    part += bool(operation.logged_bytes)
                case op.Create():
                    self._lengths[operation.segment] = 0
                    if operation.segment in self._merged:
                        self._sources[operation.segment] = []
                case op.Merge():
                    self._merge(operation)
                case op.Truncate():  # such a one isn't merged
                    self._sources.pop(operation.segment, None)

    def _append(self, operation: op.Append, extents: list[Extent]) -> None:
        segment = operation.segment
        self._lengths[segment] = operation.offset + operation.length
        if segment in self._sources:
            self._sources[segment] += extents
        self._take_in(segment, extents)

    def _merge(self, operation: op.Merge) -> None:
        extents, length = self._sources.pop(operation.source, None), self._lengths.pop(operation.source, None)
        before = self._lengths.pop(operation.target, None)
        if extents is not None and length is not None and before is not None:  # else it isn't known what, or where to
            self._lengths[operation.target] = before + length
            moved = [msgspec.structs.replace(extent, offset=before + extent.offset) for extent in extents]
            self._take_in(operation.target, moved)

    def _take_in(self, segment: int, extents: list[Extent]) -> None:
        """Note those that lie within one of the places."""
        places = self._places.get(segment)
        for extent in extents if places else ():
            assert places
            at = bisect_right(places, extent.offset, key=lambda place: place[0]) - 1
            if at >= 0 and extent.end <= places[at][1]:
                self.found[segment][extent.offset] = extent
