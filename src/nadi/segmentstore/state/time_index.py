"""The time index of a stream segment: maps times to offsets, so that the segment can be read from any time on.

It has clocks. ARRIVAL is the server's clock: an entry (moment, offset) means that all bytes before `offset` were
appended before that moment. `note` adds an entry at the start of bytes that arrive together, a run of appends or a
merge, if the last entry is old enough and enough bytes were added since (`TIME_INDEX_*` in `limits`). The same
operations call it live and in replay, so both create the same index.

An event's moment is the clock's time when its append was accepted, or its transaction merged; if the clock went back,
the latest earlier moment in its segment. For a past moment, `locate` returns an event boundary that skips no data of
that moment or later. Older data after the boundary arrived less than `TIME_INDEX_MS` earlier, or has less than
`TIME_INDEX_BYTES` and arrived less than `TIME_INDEX_MOST_MS` earlier. Later appends don't change the offset, so slices
between moments follow each other without gaps or overlaps. For a future moment it is the segment's current end.

Every other clock indexes a time in the events themselves: a program that can decode them adds entries range by range
from the segment's start (`indexed`); an attribute of the segment stores the end of the indexed part. An entry (time,
offset) of an even clock, LATEST, means that all events before `offset` have earlier times. An entry of the next, odd
clock, EARLIEST, means that an event of that time ends at `offset`, and all later events have later times. So a late
event deletes the entries of EARLIEST that aren't earlier, and `locate_event` finds either end of the events of any
time, however disordered: it misses none, and includes at most one range too many. Events without such a time are
ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, takewhile

from nadi.limits import EVENT_TIME_MAX, EVENT_TIME_MIN, TIME_INDEX_BYTES, TIME_INDEX_MOST_MS, TIME_INDEX_MS
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.operations import AddIndexTimes
from nadi.segmentstore.state.records import SegmentKind, SegmentRecord
from nadi.wire.time_index import ARRIVAL, indexed_attribute, is_earliest

Entry = tuple[int, int]  # time, offset
_STREAM = int(SegmentKind.STREAM)
_EARLIEST, _LATEST = -(1 << 63), (1 << 63) - 1


def note(record: SegmentRecord, at_ms: int) -> None:
    """Record that bytes accepted at that time are about to be appended."""
    if record.kind != _STREAM:
        return
    if at_ms < record.appended_ms:  # the clock may have been set back
        at_ms = record.appended_ms
    if record.length > record.entered_offset:
        due_ms = _due_ms(record)
        if at_ms >= due_ms:
            record.times.of(ARRIVAL)[max(due_ms, record.appended_ms + 1)] = record.length
            record.entered_ms, record.entered_offset = at_ms, record.length
    record.appended_ms = at_ms


def _due_ms(record: SegmentRecord) -> int:
    """Return the time from which on new bytes create an entry."""
    added = record.length - record.entered_offset
    return record.entered_ms + (TIME_INDEX_MS if added >= TIME_INDEX_BYTES else TIME_INDEX_MOST_MS)


def trim(record: SegmentRecord) -> None:
    """Forget the entries up to the new start offset. Later checkpoints remove those on disk."""
    for entries in record.times.entries.values():
        for time in [time for time, offset in entries.items() if offset <= record.start_offset]:
            del entries[time]


def sealed_before(record: SegmentRecord, at_ms: int) -> bool:
    """Return whether the segment had been sealed before that moment."""
    return record.sealed and at_ms > max(record.modified_ms, record.appended_ms)


def locate(metadata: ContainerMetadata, record: SegmentRecord, at_ms: int, now_ms: int) -> int:
    if at_ms > record.appended_ms and (at_ms >= _due_ms(record) or at_ms > now_ms or sealed_before(record, at_ms)):
        return record.length  # the next bytes create an entry, or none will arrive
    entry = _last(metadata, record, ARRIVAL, at_ms) if at_ms > 0 else None
    return max(record.start_offset, entry[1] if entry is not None else 0)


def _last(metadata: ContainerMetadata, record: SegmentRecord, clock: int, time: int) -> Entry | None:
    last: Entry | None = None
    for entry in record.times.of(clock).items():  # in order, and later than all entries on disk
        if entry[0] > time:
            break
        last = entry
    return last or metadata.last_time(record.id, clock, min(time, record.times.valid_to(clock)))


def indexed_to(metadata: ContainerMetadata, record: SegmentRecord, clock: int) -> int:
    """Return the offset up to which the events' times are indexed."""
    attribute = indexed_attribute(clock)
    offset = record.attributes.get(attribute)
    if offset is None and not record.attributes_loaded:
        offset = metadata.attribute(record.id, attribute)
    return max(record.start_offset, offset or 0)


def indexed(
    metadata: ContainerMetadata, record: SegmentRecord, clock: int, stretches: Sequence[tuple[int, int, int]]
) -> AddIndexTimes:
    """Return the operation that indexes the next ranges, each (end, earliest time, latest time)."""
    last = _last(metadata, record, clock, _LATEST)
    latest, earliest = dict[int, int](), dict[int, int]()
    top = last[0] if last is not None else _EARLIEST
    cut = _LATEST
    for end, first_time, last_time in stretches:
        if first_time > last_time:  # its events have no times
            continue
        top = max(top, last_time + 1)
        latest[top] = end
        while earliest and next(reversed(earliest)) >= first_time:
            earliest.popitem()
        earliest[first_time] = end
        cut = min(cut, first_time)
    return AddIndexTimes(record.id, clock, stretches[-1][0], list(latest.items()), list(earliest.items()), cut)


def apply_indexed(record: SegmentRecord, operation: AddIndexTimes) -> None:
    times, earliest = record.times, operation.clock + 1
    times.of(operation.clock).update(operation.latest)
    entries = times.of(earliest)
    while entries and next(reversed(entries)) >= operation.cut:
        entries.popitem()
    times.cut[earliest] = min(operation.cut, times.cut.get(earliest, operation.cut))
    entries.update(operation.earliest)
    attribute = indexed_attribute(operation.clock)
    record.attributes[attribute] = operation.until
    record.changed_attributes.add(attribute)


def locate_event(metadata: ContainerMetadata, record: SegmentRecord, clock: int, time: int) -> int:
    """LATEST: return an offset before which all events are earlier than `time`. EARLIEST: return an offset after which
    no event is earlier, or the segment's end if it isn't fully indexed."""
    if is_earliest(clock):
        if indexed_to(metadata, record, clock - 1) < record.length:
            return record.length
        entry = _last(metadata, record, clock, max(time - 1, _EARLIEST))
    else:
        entry = _last(metadata, record, clock, time)
        if entry == _last(metadata, record, clock, _LATEST):  # all indexed events are earlier, or have no time
            return indexed_to(metadata, record, clock)
    return min(max(record.start_offset, entry[1] if entry is not None else 0), record.length)


def entries(
    metadata: ContainerMetadata, record: SegmentRecord, clock: int, start: int, end: int, most: int
) -> tuple[list[Entry], bool]:
    """Return the clock's entries from the first after `start` to the first at or after `end`, at most `most`, and
    whether these are all. ARRIVAL's moment is 0 for bytes older than the index."""
    if start >= end:
        return [], True
    low, high = (0, record.appended_ms + 1) if clock == ARRIVAL else (EVENT_TIME_MIN - 1, EVENT_TIME_MAX + 2)
    valid_to = record.times.valid_to(clock)
    while high - low > 1:  # `low` is before the result, as offsets grow with moments
        middle = (low + high) // 2
        on_disk = metadata.last_time(record.id, clock, min(middle, valid_to))
        offset_on_disk = on_disk[1] if on_disk is not None else None
        low, high = (low, middle) if offset_on_disk is not None and offset_on_disk > start else (middle, high)
    stored = takewhile(lambda entry: entry[0] <= valid_to, metadata.times(record.id, clock, low))
    selected: list[Entry] = []
    for moment, offset in chain(stored, record.times.of(clock).items()):
        if offset <= start or (selected and offset <= selected[-1][1]):  # a checkpoint may just have stored it
            continue
        if selected and moment <= selected[-1][0]:  # moved since it was stored, as later events have that time too
            selected.pop()
        if len(selected) == most:
            return selected, False
        selected.append((moment if clock != ARRIVAL or moment > record.created_ms else 0, offset))
        if offset >= end:
            break
    return selected, True
