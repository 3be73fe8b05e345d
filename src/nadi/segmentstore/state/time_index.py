"""The time index of a stream segment: how long it was at which moment, so that it can be read from any moment on.

An entry (moment, offset) says that all bytes before `offset` were appended before that moment. `note` makes an entry
at the start of bytes that arrive together, a run of appends or a merge, if the last entry is old enough and enough was
added since (`TIME_INDEX_*` in `limits`); its moment is the first at which it could have been made. The same operations
call it live and in replay, so both make the same index. A new entry stays with the record until a checkpoint stores it.

An event's moment is the clock's time when its append was taken, or its transaction merged; if the clock went back,
the latest earlier moment in its segment. The offset that `locate` returns for a moment in the past

- loses nothing: each event of that moment or later lies at or after it;
- is close: older data after it arrived less than `TIME_INDEX_MS` before the moment, or is less than
  `TIME_INDEX_BYTES` in all and arrived less than `TIME_INDEX_MOST_MS` before it;
- is stable: it is the same whenever asked for, however much is appended later. So it may lie before the segment's
  end although nothing was appended since: a later append might not make an entry there. Thus slices between
  moments follow each other without gaps or overlaps;
- never lies before the start offset, to which a truncation may move it;
- is a boundary between events, as appends and merges consist of whole events.

For a moment in the future it is the segment's current end.
"""

from __future__ import annotations

from itertools import chain

from nadi.limits import TIME_INDEX_BYTES, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.segmentstore.state.metadata import Metadata
from nadi.segmentstore.state.records import Kind, SegmentRecord

Entry = tuple[int, int]  # moment, offset
_STREAM = int(Kind.STREAM)


def note(record: SegmentRecord, at_ms: int) -> None:
    """Note that bytes taken at that time are about to be added to the segment."""
    if record.kind != _STREAM:
        return
    if at_ms < record.appended_ms:  # the clock may have gone back
        at_ms = record.appended_ms
    if record.length > record.entered_offset:
        due_ms = _due_ms(record)
        if at_ms >= due_ms:
            record.moments[max(due_ms, record.appended_ms + 1)] = record.length
            record.entered_ms, record.entered_offset = at_ms, record.length
    record.appended_ms = at_ms


def _due_ms(record: SegmentRecord) -> int:
    """The time from which on new bytes make an entry."""
    added = record.length - record.entered_offset
    return record.entered_ms + (TIME_INDEX_MS if added >= TIME_INDEX_BYTES else TIME_INDEX_MOST_MS)


def trim(record: SegmentRecord) -> None:
    """Forget the entries up to the start offset, which has moved. Later checkpoints remove those on disk."""
    for moment in [moment for moment, offset in record.moments.items() if offset <= record.start_offset]:
        del record.moments[moment]


def sealed_before(record: SegmentRecord, at_ms: int) -> bool:
    """Return whether the segment no longer took anything at that moment."""
    return record.sealed and at_ms > max(record.modified_ms, record.appended_ms)


def locate(metadata: Metadata, record: SegmentRecord, at_ms: int, now_ms: int) -> int:
    """Return the offset for a moment; see above."""
    if at_ms > record.appended_ms and (at_ms >= _due_ms(record) or at_ms > now_ms or sealed_before(record, at_ms)):
        return record.length  # where the next bytes make an entry, or no more will come
    found: int | None = None
    for moment, offset in record.moments.items():  # in order, and later than all those on disk
        if moment > at_ms:
            break
        found = offset
    if found is None and at_ms > 0:
        found = metadata.moment(record.id, at_ms)
    return max(record.start_offset, found or 0)


def entries(metadata: Metadata, record: SegmentRecord, start: int, end: int, most: int) -> tuple[list[Entry], bool]:
    """The entries from the first behind `start` to the first at `end` or behind it, at most so many; and whether
    these are all. The moment is 0 where bytes came before there was an index."""
    if start >= end:
        return [], True
    low, high = 0, record.appended_ms + 1  # the first is before those that are wanted, as offsets grow with moments
    while high - low > 1:
        middle = (low + high) // 2
        found = metadata.moment(record.id, middle)
        low, high = (low, middle) if found is not None and found > start else (middle, high)
    later = chain(metadata.moments(record.id, low), record.moments.items())
    taken: list[Entry] = []
    for moment, offset in later:
        if offset <= start or (taken and moment <= taken[-1][0]):  # or a checkpoint has just stored it
            continue
        if len(taken) == most:
            return taken, False
        taken.append((moment if moment > record.created_ms else 0, offset))
        if offset >= end:
            break
    return taken, True
