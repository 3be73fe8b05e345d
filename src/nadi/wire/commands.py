"""Every command of the wire protocol, as a frozen struct with its fields in wire order.

A field with a default is an optional trailing one: absent in frames of older peers, always sent by
us. `CODES` maps a type code to its class. Names and codes are Pravega's, but for nadi's own commands, whose
codes begin at 10,001: no client of Pravega's sends them, and to none of them they are sent. One trailing field is
nadi's own too: ConditionalBlockEnd's `after_event_number`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from nadi.wire.fields import (
    I8,
    I32,
    I64,
    NO_VERSION,
    Blob,
    Bool,
    Entries,
    I64s,
    KeyRange,
    Keys,
    Merged,
    Rest,
    Str,
    Strs,
    Updates,
    Uuid,
    View,
)


class Command(msgspec.Struct, frozen=True, gc=False):
    """One command; `code` is its type on the wire."""

    code: ClassVar[int] = 0


# --- connection and appends ------------------------------------------------------------------


class Hello(Command, frozen=True):
    code: ClassVar[int] = -127
    high_version: I32
    low_version: I32


class SetupAppend(Command, frozen=True):
    code: ClassVar[int] = 1
    request_id: I64
    writer_id: Uuid
    segment: Str
    token: Str


class AppendSetup(Command, frozen=True):
    code: ClassVar[int] = 2
    request_id: I64
    segment: Str
    writer_id: Uuid
    last_event_number: I64


class AppendBlock(Command, frozen=True):
    code: ClassVar[int] = 3
    writer_id: Uuid
    data: Rest


class AppendBlockEnd(Command, frozen=True):
    code: ClassVar[int] = 4
    writer_id: Uuid
    size_of_whole_events: I32
    data: View
    num_events: I32
    last_event_number: I64
    request_id: I64 = -1


class ConditionalAppend(Command, frozen=True):
    code: ClassVar[int] = 5
    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    event_type: I32
    data: View
    request_id: I64 = -1


class DataAppended(Command, frozen=True):
    code: ClassVar[int] = 7
    writer_id: Uuid
    event_number: I64
    previous_event_number: I64 = -1
    request_id: I64 = -1
    current_segment_write_offset: I64 = -1


class ConditionalCheckFailed(Command, frozen=True):
    code: ClassVar[int] = 8
    writer_id: Uuid
    event_number: I64
    request_id: I64 = -1


class InvalidEventNumber(Command, frozen=True):
    code: ClassVar[int] = 55
    writer_id: Uuid
    request_id: I64
    trace: Str = ""
    event_number: I64 = -1


class ConditionalBlockEnd(Command, frozen=True):
    """`after_event_number`: stored only if this is the writer's last stored number; NO_VERSION is no such condition.

    So one that was sent before its predecessor's answer never passes where the predecessor did not.
    """

    code: ClassVar[int] = 89
    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: View
    request_id: I64
    after_event_number: I64 = NO_VERSION


class KeepAlive(Command, frozen=True):
    code: ClassVar[int] = 100


# --- segments --------------------------------------------------------------------------------


class ReadSegment(Command, frozen=True):
    code: ClassVar[int] = 9
    segment: Str
    offset: I64
    suggested_length: I32
    token: Str
    request_id: I64 = -1


class SegmentRead(Command, frozen=True):
    code: ClassVar[int] = 10
    segment: Str
    offset: I64
    at_tail: Bool
    end_of_segment: Bool
    data: View
    request_id: I64 = -1


class GetStreamSegmentInfo(Command, frozen=True):
    code: ClassVar[int] = 11
    request_id: I64
    segment: Str
    token: Str


class StreamSegmentInfo(Command, frozen=True):
    code: ClassVar[int] = 12
    request_id: I64
    segment: Str
    exists: Bool
    is_sealed: Bool
    is_deleted: Bool
    last_modified_ms: I64
    write_offset: I64
    start_offset: I64 = 0


class CreateSegment(Command, frozen=True):
    code: ClassVar[int] = 20
    request_id: I64
    segment: Str
    target_rate: I32
    scale_type: I8
    token: Str
    rollover_size_bytes: I64 = 0


class SegmentCreated(Command, frozen=True):
    code: ClassVar[int] = 21
    request_id: I64
    segment: Str


class SealSegment(Command, frozen=True):
    code: ClassVar[int] = 28
    request_id: I64
    segment: Str
    token: Str


class SegmentSealed(Command, frozen=True):
    code: ClassVar[int] = 29
    request_id: I64
    segment: Str


class DeleteSegment(Command, frozen=True):
    code: ClassVar[int] = 30
    request_id: I64
    segment: Str
    token: Str


class SegmentDeleted(Command, frozen=True):
    code: ClassVar[int] = 31
    request_id: I64
    segment: Str


class UpdateSegmentPolicy(Command, frozen=True):
    code: ClassVar[int] = 32
    request_id: I64
    segment: Str
    target_rate: I32
    scale_type: I8
    token: Str


class SegmentPolicyUpdated(Command, frozen=True):
    code: ClassVar[int] = 33
    request_id: I64
    segment: Str


class GetSegmentAttribute(Command, frozen=True):
    code: ClassVar[int] = 34
    request_id: I64
    segment: Str
    attribute_id: Uuid
    token: Str


class SegmentAttribute(Command, frozen=True):
    code: ClassVar[int] = 35
    request_id: I64
    value: I64


class UpdateSegmentAttribute(Command, frozen=True):
    code: ClassVar[int] = 36
    request_id: I64
    segment: Str
    attribute_id: Uuid
    new_value: I64
    expected_value: I64
    token: Str


class SegmentAttributeUpdated(Command, frozen=True):
    code: ClassVar[int] = 37
    request_id: I64
    success: Bool


class TruncateSegment(Command, frozen=True):
    code: ClassVar[int] = 38
    request_id: I64
    segment: Str
    truncation_offset: I64
    token: Str


class SegmentTruncated(Command, frozen=True):
    code: ClassVar[int] = 39
    request_id: I64
    segment: Str


class CreateTransientSegment(Command, frozen=True):
    code: ClassVar[int] = 40
    request_id: I64
    writer_id: Uuid
    parent_segment: Str
    token: Str


class LocateOffset(Command, frozen=True):
    code: ClassVar[int] = 41
    request_id: I64
    segment: Str
    target_offset: I64
    token: Str


class OffsetLocated(Command, frozen=True):
    code: ClassVar[int] = 42
    request_id: I64
    segment: Str
    offset: I64


class MergeSegments(Command, frozen=True):
    code: ClassVar[int] = 58
    request_id: I64
    target: Str
    source: Str
    token: Str
    attribute_updates: Updates = ()


class SegmentsMerged(Command, frozen=True):
    code: ClassVar[int] = 59
    request_id: I64
    target: Str
    source: Str
    new_target_write_offset: I64 = -1


class MergeSegmentsBatch(Command, frozen=True):
    code: ClassVar[int] = 90
    request_id: I64
    target: Str
    sources: Strs
    token: Str


class SegmentsBatchMerged(Command, frozen=True):
    code: ClassVar[int] = 91
    request_id: I64
    target: Str
    merged: Merged


# --- tables ----------------------------------------------------------------------------------


class GetTableSegmentInfo(Command, frozen=True):
    code: ClassVar[int] = 68
    request_id: I64
    segment: Str
    token: Str


class TableSegmentInfo(Command, frozen=True):
    code: ClassVar[int] = 69
    request_id: I64
    segment: Str
    start_offset: I64
    length: I64
    entry_count: I64
    key_length: I32


class CreateTableSegment(Command, frozen=True):
    code: ClassVar[int] = 70
    request_id: I64
    segment: Str
    token: Str
    sorted: Bool = False
    key_length: I32 = 0
    rollover_size_bytes: I64 = 0


class DeleteTableSegment(Command, frozen=True):
    code: ClassVar[int] = 71
    request_id: I64
    segment: Str
    must_be_empty: Bool
    token: Str


class UpdateTableEntries(Command, frozen=True):
    code: ClassVar[int] = 74
    request_id: I64
    segment: Str
    token: Str
    entries: Entries
    table_segment_offset: I64 = -1


class TableEntriesUpdated(Command, frozen=True):
    code: ClassVar[int] = 75
    request_id: I64
    versions: I64s


class RemoveTableKeys(Command, frozen=True):
    code: ClassVar[int] = 76
    request_id: I64
    segment: Str
    token: Str
    keys: Keys
    table_segment_offset: I64 = -1


class TableKeysRemoved(Command, frozen=True):
    code: ClassVar[int] = 77
    request_id: I64
    segment: Str


class ReadTable(Command, frozen=True):
    code: ClassVar[int] = 78
    request_id: I64
    segment: Str
    token: Str
    keys: Keys


class TableRead(Command, frozen=True):
    code: ClassVar[int] = 79
    request_id: I64
    segment: Str
    entries: Entries


class TableSegmentNotEmpty(Command, frozen=True):
    code: ClassVar[int] = 80
    request_id: I64
    segment: Str
    trace: Str = ""


class TableKeyDoesNotExist(Command, frozen=True):
    code: ClassVar[int] = 81
    request_id: I64
    segment: Str
    trace: Str = ""


class TableKeyBadVersion(Command, frozen=True):
    code: ClassVar[int] = 82
    request_id: I64
    segment: Str
    trace: Str = ""


class ReadTableKeys(Command, frozen=True):
    code: ClassVar[int] = 83
    request_id: I64
    segment: Str
    token: Str
    suggested_count: I32
    range: KeyRange


class TableKeysRead(Command, frozen=True):
    code: ClassVar[int] = 84
    request_id: I64
    segment: Str
    keys: Keys
    continuation_token: Blob


class ReadTableEntries(Command, frozen=True):
    code: ClassVar[int] = 85
    request_id: I64
    segment: Str
    token: Str
    suggested_count: I32
    range: KeyRange


class TableEntriesRead(Command, frozen=True):
    code: ClassVar[int] = 86
    request_id: I64
    segment: Str
    entries: Entries
    continuation_token: Blob


class TableEntriesDeltaRead(Command, frozen=True):
    code: ClassVar[int] = 87
    request_id: I64
    segment: Str
    entries: Entries
    should_clear: Bool
    reached_end: Bool
    last_position: I64


class ReadTableEntriesDelta(Command, frozen=True):
    code: ClassVar[int] = 88
    request_id: I64
    segment: Str
    token: Str
    from_position: I64
    suggested_count: I32


# --- errors ----------------------------------------------------------------------------------


class WrongHost(Command, frozen=True):
    code: ClassVar[int] = 50
    request_id: I64
    segment: Str
    correct_host: Str
    trace: Str = ""


class SegmentIsSealed(Command, frozen=True):
    code: ClassVar[int] = 51
    request_id: I64
    segment: Str
    trace: Str = ""
    offset: I64 = -1


class SegmentAlreadyExists(Command, frozen=True):
    code: ClassVar[int] = 52
    request_id: I64
    segment: Str
    trace: Str = ""


class NoSuchSegment(Command, frozen=True):
    code: ClassVar[int] = 53
    request_id: I64
    segment: Str
    trace: Str = ""
    offset: I64 = -1


class SegmentIsTruncated(Command, frozen=True):
    code: ClassVar[int] = 56
    request_id: I64
    segment: Str
    start_offset: I64
    trace: Str = ""
    offset: I64 = -1


class OperationUnsupported(Command, frozen=True):
    code: ClassVar[int] = 57
    request_id: I64
    operation_name: Str
    trace: Str = ""


class AuthTokenCheckFailed(Command, frozen=True):
    code: ClassVar[int] = 60
    request_id: I64
    trace: Str = ""
    error_code: I32 = -1


# nadi's own codes in ErrorMessage: official clients, which know 0 and -1, read "unspecified"
STORAGE_FULL = 1000
DAMAGED_DATA = 1001  # `nadi.wire.damage` says what the message holds


class ErrorMessage(Command, frozen=True):
    code: ClassVar[int] = 61
    request_id: I64
    segment: Str
    message: Str
    error_code: I32


# --- nadi's own -------------------------------------------------------------------------------


class LocateMoment(Command, frozen=True):
    """Where a stream segment stood at a moment, in ms since 1970; see `segmentstore.moments`."""

    code: ClassVar[int] = 10_001
    request_id: I64
    segment: Str
    at_ms: I64
    token: Str


class MomentLocated(Command, frozen=True):
    """No event before `offset` was appended at that moment or later. is_sealed: the segment was sealed before it,
    so that it has no such event at all."""

    code: ClassVar[int] = 10_002
    request_id: I64
    segment: Str
    offset: I64
    is_sealed: Bool


class UpdateTableToFreeRoom(Command, frozen=True):
    """As UpdateTableEntries, answered alike, of whoever truncates or deletes: taken on a full disk too, for a while.
    make_table: make the table if it isn't there."""

    code: ClassVar[int] = 10_003
    request_id: I64
    segment: Str
    token: Str
    entries: Entries
    make_table: Bool


class Scrub(Command, frozen=True):
    """How far the reading of everything stored is; `start`: begin it now. `segment` is `naming.SCRUB_SEGMENT`."""

    code: ClassVar[int] = 10_004
    request_id: I64
    segment: Str
    start: Bool
    token: Str


class ScrubReported(Command, frozen=True):
    """report: a `model.scrub.ScrubReport` as JSON."""

    code: ClassVar[int] = 10_005
    request_id: I64
    segment: Str
    report: Blob


# --- administration --------------------------------------------------------------------------


class FlushToStorage(Command, frozen=True):
    code: ClassVar[int] = -3
    container_id: I32
    token: Str
    request_id: I64


class StorageFlushed(Command, frozen=True):
    code: ClassVar[int] = -4
    request_id: I64


CODES: dict[int, type[Command]] = {kind.code: kind for kind in Command.__subclasses__()}
