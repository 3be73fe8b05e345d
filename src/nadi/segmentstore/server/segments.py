"""Answers commands on segments that take one turn in the segment's container: a function each, from command to reply.
The reply is sent once the frame with the change is durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from nadi import errors, limits
from nadi.segmentstore.container import table_segments
from nadi.segmentstore.container.frame import FrameBuilder
from nadi.segmentstore.state import operations as op
from nadi.segmentstore.state import time_index
from nadi.segmentstore.state.machine import StateMachine
from nadi.segmentstore.state.records import SegmentKind, SegmentRecord
from nadi.segmentstore.tier1.log import ALL, HALF, NOTHING
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, WireTableEntry, WireTableKey
from nadi.wire.time_index import ARRIVAL, NO_TIMES, check_clock, is_earliest, packed_moments, stretches_in

Answer = Callable[[Any, FrameBuilder], wire.Command]


class WrongKindError(errors.InvalidArgumentError):
    """A table command on a stream segment, or the reverse."""


def find(state: StateMachine, name: str, kind: SegmentKind | None = None) -> SegmentRecord:
    record = state.find(name)
    if record is None:
        raise errors.SegmentNotFoundError(name)
    if kind is SegmentKind.TABLE and record.kind != SegmentKind.TABLE:
        raise WrongKindError(f"{name} is not a table segment")
    if kind is SegmentKind.STREAM and record.kind == SegmentKind.TABLE:
        raise WrongKindError(f"{name} is a table segment")
    return record


def create(frame: FrameBuilder, name: str, kind: SegmentKind, of_reserve: float = NOTHING, **fields: int) -> None:
    if not name:
        raise errors.InvalidArgumentError("a segment needs a name")
    if frame.state.find(name) is not None:
        raise errors.AlreadyExistsError("segment", name)
    frame.emit(op.Create(frame.state.next_segment, name, kind, frame.now_ms, **fields), of_reserve=of_reserve)
    record = frame.state.find(name)
    assert record is not None
    frame.touched[record.id] = record


def delete(frame: FrameBuilder, name: str) -> None:
    record = find(frame.state, name)
    frame.emit(op.Delete(record.id), record, of_reserve=ALL)


def _info(command: wire.GetStreamSegmentInfo, frame: FrameBuilder) -> wire.Command:
    r = find(frame.state, command.segment)
    length = r.table_length if r.kind == SegmentKind.TABLE else r.length
    return wire.StreamSegmentInfo(
        command.request_id, r.name, True, r.sealed, False, r.modified_ms, length, r.start_offset
    )


def _create(command: wire.CreateSegment, frame: FrameBuilder) -> wire.Command:
    create(
        frame,
        command.segment,
        SegmentKind.STREAM,
        scale_type=command.scale_type,
        target_rate=command.target_rate,
        rollover_bytes=command.rollover_size_bytes,
    )
    return wire.SegmentCreated(command.request_id, command.segment)


def _seal(command: wire.SealSegment, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment)
    if record.sealed:
        raise errors.StreamSealedError(command.segment)
    frame.emit(op.Seal(record.id, frame.now_ms), record, of_reserve=ALL)
    return wire.SegmentSealed(command.request_id, command.segment)


def _delete(command: wire.DeleteSegment, frame: FrameBuilder) -> wire.Command:
    delete(frame, command.segment)
    return wire.SegmentDeleted(command.request_id, command.segment)


def _update_policy(command: wire.UpdateSegmentPolicy, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment)
    frame.emit(op.SetPolicy(record.id, command.scale_type, command.target_rate), record, of_reserve=HALF)
    return wire.SegmentPolicyUpdated(command.request_id, command.segment)


def _get_attribute(command: wire.GetSegmentAttribute, frame: FrameBuilder) -> wire.Command:
    value = _attribute(frame.state, find(frame.state, command.segment), command.attribute_id)
    return wire.SegmentAttribute(command.request_id, value)


def _update_attribute(command: wire.UpdateSegmentAttribute, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment)
    if record.sealed:
        raise errors.StreamSealedError(command.segment)
    is_met = _attribute(frame.state, record, command.attribute_id) == command.expected_value
    if is_met:
        frame.emit(op.Attributes(record.id, {command.attribute_id: command.new_value}), record, of_reserve=HALF)
    return wire.SegmentAttributeUpdated(command.request_id, is_met)


def _truncate(command: wire.TruncateSegment, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, SegmentKind.STREAM)
    if not record.start_offset <= command.truncation_offset <= record.length:
        raise errors.TruncatedError(command.segment, command.truncation_offset, record.start_offset)
    if command.truncation_offset > record.start_offset:
        frame.emit(op.Truncate(record.id, command.truncation_offset), record, of_reserve=ALL)
    return wire.SegmentTruncated(command.request_id, command.segment)


def _locate_moment(command: wire.LocateMoment, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, SegmentKind.STREAM)
    if command.clock == ARRIVAL:
        offset = time_index.locate(frame.state.metadata, record, command.at, frame.now_ms)
        sealed = time_index.sealed_before(record, command.at)
    else:
        check_clock(command.clock)
        offset = time_index.locate_event(frame.state.metadata, record, command.clock, command.at)
        sealed = record.sealed and offset == record.length
    return wire.MomentLocated(command.request_id, command.segment, offset, sealed)


def _list_moments(command: wire.ListMoments, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, SegmentKind.STREAM)
    if command.clock != ARRIVAL:
        check_clock(command.clock)
    start = max(command.start, record.start_offset)
    moments, is_last = time_index.entries(
        frame.state.metadata, record, command.clock, start, command.end, limits.MOMENTS_AT_ONCE
    )
    return wire.MomentsListed(
        command.request_id, command.segment, packed_moments(moments), is_last, record.appended_ms, record.start_offset
    )


def _index_times(command: wire.IndexTimes, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, SegmentKind.STREAM)
    check_clock(command.clock)
    if command.clock == ARRIVAL or is_earliest(command.clock):
        raise errors.InvalidArgumentError(f"event times need a LATEST clock, which {command.clock} isn't")
    until = time_index.indexed_to(frame.state.metadata, record, command.clock)
    if command.stretches and command.start == until:
        stretches = _stretches(command, record)
        frame.emit(time_index.indexed(frame.state.metadata, record, command.clock, stretches), record)
        until = stretches[-1][0]
    return wire.TimesIndexed(command.request_id, command.segment, until)


def _stretches(command: wire.IndexTimes, record: SegmentRecord) -> list[tuple[int, int, int]]:
    """Decode and check the command's ranges; InvalidArgumentError if they don't fit the segment."""
    try:
        stretches = stretches_in(command.stretches)
    except ValueError as error:
        raise errors.InvalidArgumentError(f"the times for the index of {record.name} are malformed: {error}") from None
    if len(stretches) > limits.TIMES_INDEXED_AT_ONCE:
        raise errors.InvalidArgumentError(
            f"{len(stretches):,} ranges at once are too many for the index of {record.name}"
        )
    before = command.start
    for end, earliest, latest in stretches:
        are_times = (
            limits.EVENT_TIME_MIN <= earliest <= latest <= limits.EVENT_TIME_MAX or (earliest, latest) == NO_TIMES
        )
        if not (before < end <= record.length and are_times):
            raise errors.InvalidArgumentError(
                f"invalid index range of {record.name}: offsets {before:,} to {end:,}, times {earliest} to {latest}"
            )
        before = end
    return stretches


def _merge(command: wire.MergeSegments, frame: FrameBuilder) -> wire.Command:
    source = find(frame.state, command.source, SegmentKind.STREAM)
    target = frame.state.find(command.target)
    if target is None:
        raise errors.SegmentNotFoundError(command.source)
    _check_merge(target, source)
    if target.sealed:
        raise errors.StreamSealedError(command.source)
    values: dict[bytes, int] = {}
    for update in command.attribute_updates:
        current = values.get(update.attribute)
        if current is None:
            current = _attribute(frame.state, target, update.attribute)
        value = _updated(current, update.kind, update.value, update.expected)
        if value is None:
            return wire.SegmentAttributeUpdated(command.request_id, False)
        values[update.attribute] = value
    changes: list[op.AnyOperation] = [op.Merge(target.id, source.id, frame.now_ms)]
    if values:
        changes.append(op.Attributes(target.id, values))
    frame.emit_all(changes, target, source, of_reserve=HALF)
    return wire.SegmentsMerged(command.request_id, command.target, command.source, target.length)


def _merge_batch(command: wire.MergeSegmentsBatch, frame: FrameBuilder) -> wire.Command:
    target = find(frame.state, command.target, SegmentKind.STREAM)
    if target.sealed:
        raise errors.StreamSealedError(command.target)
    merged: list[tuple[str, int]] = []
    sources: dict[int, SegmentRecord] = {}
    length = target.length
    for name in command.sources:
        source = frame.state.find(name)
        if source is not None and source.id not in sources:  # a missing source has already been merged
            _check_merge(target, source)
            sources[source.id] = source
            length += source.length
        merged.append((name, length))
    if sources:
        changes = [op.Merge(target.id, segment, frame.now_ms) for segment in sources]
        frame.emit_all(changes, target, *sources.values(), of_reserve=HALF)
    return wire.SegmentsBatchMerged(command.request_id, command.target, tuple(merged))


def _check_merge(target: SegmentRecord, source: SegmentRecord) -> None:
    """Raise InvalidArgumentError if the merge is invalid, or would lose data."""
    if SegmentKind.TABLE in (target.kind, source.kind):
        raise WrongKindError(f"{source.name} can't be merged into {target.name}: one of them is a table segment")
    if source is target:
        raise errors.InvalidArgumentError(f"{target.name} can't be merged into itself")
    if source.start_offset > 0:
        raise errors.InvalidArgumentError(f"{source.name} was truncated, so it can't be merged into another segment")


def _attribute(state: StateMachine, record: SegmentRecord, attribute: bytes) -> int:
    value = state.attribute(record, attribute)
    return NO_VERSION if value is None else value


def _updated(value: int, kind: int, new: int, expected: int) -> int | None:
    """Return the attribute's value after an update of that kind; None if its condition fails."""
    match kind:
        case 0 | 1:
            return new
        case 2:
            return new if new > value else None
        case 3:  # a 64-bit integer that wraps around, as in Java
            return new if value == NO_VERSION else (value + new + (1 << 63)) % (1 << 64) - (1 << 63)
        case 4:
            return new if value == expected else None
    raise errors.InvalidArgumentError(f"unknown kind of attribute update: {kind}")


def _table_info(command: wire.GetTableSegmentInfo, frame: FrameBuilder) -> wire.Command:
    r = find(frame.state, command.segment, SegmentKind.TABLE)
    return wire.TableSegmentInfo(command.request_id, r.name, 0, r.table_length, r.entry_count, r.key_length)


def _table_create(command: wire.CreateTableSegment, frame: FrameBuilder) -> wire.Command:
    key_length = command.key_length
    if not 0 <= key_length <= limits.TABLE_FIXED_KEY_MAX_BYTES:
        raise errors.InvalidArgumentError(
            f"a table's key length is 0 to {limits.TABLE_FIXED_KEY_MAX_BYTES}, not {key_length}"
        )
    rollover_bytes = command.rollover_size_bytes
    create(frame, command.segment, SegmentKind.TABLE, key_length=key_length, rollover_bytes=rollover_bytes)
    return wire.SegmentCreated(command.request_id, command.segment)


def _table_delete(command: wire.DeleteTableSegment, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, SegmentKind.TABLE)
    if command.must_be_empty and record.entry_count:
        raise errors.NotEmptyError(f"table {command.segment} has {record.entry_count} entries")
    delete(frame, command.segment)
    return wire.SegmentDeleted(command.request_id, command.segment)


def _table_update(command: wire.UpdateTableEntries, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, SegmentKind.TABLE)
    versions = table_segments.update(frame, record, command.entries, command.table_segment_offset)
    return wire.TableEntriesUpdated(command.request_id, tuple(versions))


def _table_update_to_free_space(command: wire.UpdateTableToFreeSpace, frame: FrameBuilder) -> wire.Command:
    if command.make_table and frame.state.find(command.segment) is None:
        create(frame, command.segment, SegmentKind.TABLE, ALL)
    record = find(frame.state, command.segment, SegmentKind.TABLE)
    versions = table_segments.update(frame, record, command.entries, -1, ALL)
    return wire.TableEntriesUpdated(command.request_id, tuple(versions))


def _table_remove(command: wire.RemoveTableKeys, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, SegmentKind.TABLE)
    table_segments.remove(frame, record, command.keys, command.table_segment_offset)
    return wire.TableKeysRemoved(command.request_id, command.segment)


def _table_keys(command: wire.ReadTableKeys, frame: FrameBuilder) -> wire.Command:
    entries, token = _table_page(command, frame)
    keys = tuple(WireTableKey(entry.key, entry.version) for entry in entries)
    return wire.TableKeysRead(command.request_id, command.segment, keys, token)


def _table_entries(command: wire.ReadTableEntries, frame: FrameBuilder) -> wire.Command:
    entries, token = _table_page(command, frame)
    return wire.TableEntriesRead(command.request_id, command.segment, tuple(entries), token)


def _table_page(
    command: wire.ReadTableKeys | wire.ReadTableEntries, frame: FrameBuilder
) -> tuple[list[WireTableEntry], bytes]:
    record = find(frame.state, command.segment, SegmentKind.TABLE)
    return table_segments.page(frame.state, record, command.suggested_count, *command.range)


def _table_delta(command: wire.ReadTableEntriesDelta, frame: FrameBuilder) -> wire.Command:
    record = find(frame.state, command.segment, SegmentKind.TABLE)
    page = table_segments.delta(frame.state, record, command.from_position, command.suggested_count)
    entries, reached_end, position = page
    return wire.TableEntriesDeltaRead(command.request_id, command.segment, tuple(entries), False, reached_end, position)


_EACH: tuple[Answer, ...] = (  # by the type of their `command` parameter
    _info, _create, _seal, _delete, _update_policy, _get_attribute, _update_attribute, _truncate, _locate_moment,
    _list_moments, _index_times, _merge, _merge_batch, _table_info, _table_create, _table_delete, _table_update,
    _table_update_to_free_space, _table_remove, _table_keys, _table_entries, _table_delta,
)  # fmt: skip
ANSWERS: dict[type[wire.Command], Answer] = {get_type_hints(answer)["command"]: answer for answer in _EACH}
