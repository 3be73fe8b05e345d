"""Commands on table segments that one turn in the segment's container answers: a function each, as in `segments`."""

from __future__ import annotations

from nadi.errors import InvalidArgumentError, NotEmptyError
from nadi.limits import TABLE_FIXED_KEY_MAX_BYTES
from nadi.segmentstore.container import table_segments
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.doors.segments import Answer, create, delete, find
from nadi.segmentstore.state.records import Kind
from nadi.segmentstore.tier1.log import ALL
from nadi.wire import commands as wire
from nadi.wire.fields import TableEntry, TableKey


def _info(command: wire.GetTableSegmentInfo, frame: FrameBuilder) -> wire.Command:
    r = find(frame.state, command.segment, Kind.TABLE)
    return wire.TableSegmentInfo(command.request_id, r.name, 0, r.table_length, r.entry_count, r.key_length)


def _create(command: wire.CreateTableSegment, frame: FrameBuilder) -> wire.Command:
    key_length = command.key_length
    if not 0 <= key_length <= TABLE_FIXED_KEY_MAX_BYTES:
        raise InvalidArgumentError(f"a table's key length is 0 to {TABLE_FIXED_KEY_MAX_BYTES}, not {key_length}")
    rollover_bytes = command.rollover_size_bytes
    create(frame, command.segment, Kind.TABLE, key_length=key_length, rollover_bytes=rollover_bytes)
    return wire.SegmentCreated(command.request_id, command.segment)


def _delete(command: wire.DeleteTableSegment, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, Kind.TABLE)
    if command.must_be_empty and record.entry_count:
        raise NotEmptyError(f"table {command.segment} has {record.entry_count} entries")
    delete(frame, command.segment)
    return wire.SegmentDeleted(command.request_id, command.segment)


def _update(command: wire.UpdateTableEntries, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, Kind.TABLE)
    versions = table_segments.update(frame, record, command.entries, command.table_segment_offset)
    return wire.TableEntriesUpdated(command.request_id, tuple(versions))


def _update_to_free_room(command: wire.UpdateTableToFreeRoom, frame: FrameBuilder) -> wire.Command:
    if command.make_table and frame.state.find(command.segment) is None:
        create(frame, command.segment, Kind.TABLE, ALL)
    record = find(frame.state, command.segment, Kind.TABLE)
    versions = table_segments.update(frame, record, command.entries, -1, ALL)
    return wire.TableEntriesUpdated(command.request_id, tuple(versions))


def _remove(command: wire.RemoveTableKeys, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, Kind.TABLE)
    table_segments.remove(frame, record, command.keys, command.table_segment_offset)
    return wire.TableKeysRemoved(command.request_id, command.segment)


def _keys(command: wire.ReadTableKeys, frame: FrameBuilder) -> wire.Command:
    entries, token = _page(command, frame)
    keys = tuple(TableKey(entry.key, entry.version) for entry in entries)
    return wire.TableKeysRead(command.request_id, command.segment, keys, token)


def _entries(command: wire.ReadTableEntries, frame: FrameBuilder) -> wire.Command:
    entries, token = _page(command, frame)
    return wire.TableEntriesRead(command.request_id, command.segment, tuple(entries), token)


def _page(command: wire.ReadTableKeys | wire.ReadTableEntries, frame: FrameBuilder) -> tuple[list[TableEntry], bytes]:
    record = find(frame.state, command.segment, Kind.TABLE)
    return table_segments.page(frame.state, record, command.suggested_count, *command.range)


def _delta(command: wire.ReadTableEntriesDelta, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, Kind.TABLE)
    found = table_segments.delta(frame.state, record, command.from_position, command.suggested_count)
    entries, reached_end, position = found
    return wire.TableEntriesDeltaRead(command.request_id, command.segment, tuple(entries), False, reached_end, position)


ANSWERS: dict[type[wire.Command], Answer] = {
    wire.GetTableSegmentInfo: _info,
    wire.CreateTableSegment: _create,
    wire.DeleteTableSegment: _delete,
    wire.UpdateTableEntries: _update,
    wire.UpdateTableToFreeRoom: _update_to_free_room,
    wire.RemoveTableKeys: _remove,
    wire.ReadTableKeys: _keys,
    wire.ReadTableEntries: _entries,
    wire.ReadTableEntriesDelta: _delta,
}
