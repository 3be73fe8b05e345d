"""The time index of a stream segment: how long it was at which moment, so that it can be read from any moment on.

An entry (moment, offset) says that all bytes before `offset` were appended before that moment. `note` makes one where
bytes begin that come together, a run of appends or a merge, if the last entry is old enough and enough came since
(`TIME_INDEX_*` in `limits`); its moment is the first at which it could have been made. The same operations call it
live and in replay, so both make the same index. New entries stay with the record until a checkpoint has written them.

The moment of an event is the clock's when its append was taken, or its transaction merged; where the clock went back,
the latest before it in its segment. What `locate` gives for a moment that has come

- loses nothing: each event of that moment or later lies at or behind the offset;
- is near: what lies behind it and is older came less than `TIME_INDEX_MS` before the moment, or is less than
  `TIME_INDEX_BYTES` in all and came less than `TIME_INDEX_MOST_MS` before it;
- stays: asked at any time, and however much is appended later, it is the same. That is why it may lie before the
  segment's end though nothing was appended since: a later append might not make an entry there. So slices between
  moments follow each other without a gap and without overlap;
- never lies before the start offset, to which a truncation may move it;
- is a boundary between events, for appends and merges bring whole ones.

For a moment still to come it is the segment's end of now.
"""

from __future__ import annotations

from nadi.limits import TIME_INDEX_BYTES, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.records import Kind, SegmentRecord


def note(record: SegmentRecord, at_ms: int) -> None:
    """Bytes that were taken at that time are about to follow what the segment has."""
    if record.kind != Kind.STREAM:
        return
    at_ms = max(at_ms, record.appended_ms)  # the clock may have gone back
    if record.length > record.entered_offset:
        due_ms = _due_ms(record)
        if at_ms >= due_ms:
            record.moments[max(due_ms, record.appended_ms + 1)] = record.length
            record.entered_ms, record.entered_offset = at_ms, record.length
    record.appended_ms = at_ms


def _due_ms(record: SegmentRecord) -> int:
    """From when on bytes that come make an entry."""
    added = record.length - record.entered_offset
    return record.entered_ms + (TIME_INDEX_MS if added >= TIME_INDEX_BYTES else TIME_INDEX_MOST_MS)


def trim(record: SegmentRecord) -> None:
    """The start offset moved: forget the entries up to it. Those on disk go with the checkpoints to come."""
    for moment in [moment for moment, offset in record.moments.items() if offset <= record.start_offset]:
        del record.moments[moment]


def sealed_before(record: SegmentRecord, at_ms: int) -> bool:
    """Whether the segment took nothing any more at that moment."""
    return record.sealed and at_ms > max(record.modified_ms, record.appended_ms)


def locate(metadata: Metadata, record: SegmentRecord, at_ms: int, now_ms: int) -> int:
    """The offset for a moment; see above."""
    if at_ms > record.appended_ms and (at_ms >= _due_ms(record) or at_ms > now_ms or sealed_before(record, at_ms)):
        return record.length  # where the next bytes make an entry, or there are none to come
    found: int | None = None
    for moment, offset in record.moments.items():  # in order, and later than all on disk
        if moment > at_ms:
            break
        found = offset
    if found is None and at_ms > 0:
        found = metadata.moment(record.id, at_ms)
    return max(record.start_offset, found or 0)
