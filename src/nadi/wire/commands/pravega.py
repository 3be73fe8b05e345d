"""Pravega's commands, and the base classes of all commands.

In order: handshake and appends, reads and segment operations, table segments, failure replies (`nadi.wire.errors` maps
these to errors).
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
    Keys,
    Merged,
    Rest,
    Str,
    Strs,
    TableKeyRange,
    Updates,
    Uuid,
    View,
)


class Command(msgspec.Struct, frozen=True, gc=False):
    """Base class of commands; `code` is the type on the wire, 0 for base classes."""

    code: ClassVar[int] = 0


class OfSegment(Command, frozen=True):
    """Base class of requests and replies about a segment."""

    request_id: I64
    segment: Str


class WithToken(OfSegment, frozen=True):
    """Base class of requests about a segment that start with the token."""

    token: Str


class Refused(OfSegment, frozen=True):
    """Base class of failure replies."""

    trace: Str = ""


class Hello(Command, frozen=True):
    code = -127
    high_version: I32
    low_version: I32


class SetupAppend(Command, frozen=True):
    code = 1
    request_id: I64
    writer_id: Uuid
    segment: Str
    token: Str


class AppendSetup(OfSegment, frozen=True):
    code = 2
    writer_id: Uuid
    last_event_number: I64


class AppendBlock(Command, frozen=True):
    code = 3
    writer_id: Uuid
    data: Rest


class AppendBlockEnd(Command, frozen=True):
    code = 4
    writer_id: Uuid
    size_of_whole_events: I32
    data: View
    num_events: I32
    last_event_number: I64
    request_id: I64 = -1


class ConditionalAppend(Command, frozen=True):
    code = 5
    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    event_type: I32
    data: View
    request_id: I64 = -1


class DataAppended(Command, frozen=True):
    code = 7
    writer_id: Uuid
    event_number: I64
    previous_event_number: I64 = -1
    request_id: I64 = -1
    current_segment_write_offset: I64 = -1


class ConditionalCheckFailed(Command, frozen=True):
    code = 8
    writer_id: Uuid
    event_number: I64
    request_id: I64 = -1


class InvalidEventNumber(Command, frozen=True):
    code = 55
    writer_id: Uuid
    request_id: I64
    trace: Str = ""
    event_number: I64 = -1


class ConditionalBlockEnd(Command, frozen=True):
    """A conditional append of a block.

    after_event_number: the writer's last stored number, as a condition; NO_VERSION for none. So an append sent before
    its predecessor was acknowledged fails if the predecessor does.
    """

    code = 89
    writer_id: Uuid
    event_number: I64
    expected_offset: I64
    data: View
    request_id: I64
    after_event_number: I64 = NO_VERSION


class KeepAlive(Command, frozen=True):
    code = 100


HELLO = Hello(17, 5)  # Pravega's versions that nadi supports


class ReadSegment(Command, frozen=True):
    code = 9
    segment: Str
    offset: I64
    suggested_length: I32
    token: Str
    request_id: I64 = -1


class SegmentRead(Command, frozen=True):
    code = 10
    segment: Str
    offset: I64
    at_tail: Bool
    end_of_segment: Bool
    data: View
    request_id: I64 = -1


class GetStreamSegmentInfo(WithToken, frozen=True):
    code = 11


class StreamSegmentInfo(OfSegment, frozen=True):
    code = 12
    exists: Bool
    is_sealed: Bool
    is_deleted: Bool
    last_modified_ms: I64
    write_offset: I64
    start_offset: I64 = 0


class CreateSegment(OfSegment, frozen=True):
    code = 20
    target_rate: I32
    scale_type: I8
    token: Str
    rollover_size_bytes: I64 = 0


class SegmentCreated(OfSegment, frozen=True):
    code = 21


class SealSegment(WithToken, frozen=True):
    code = 28


class SegmentSealed(OfSegment, frozen=True):
    code = 29


class DeleteSegment(WithToken, frozen=True):
    code = 30


class SegmentDeleted(OfSegment, frozen=True):
    code = 31


class UpdateSegmentPolicy(OfSegment, frozen=True):
    code = 32
    target_rate: I32
    scale_type: I8
    token: Str


class SegmentPolicyUpdated(OfSegment, frozen=True):
    code = 33


class GetSegmentAttribute(OfSegment, frozen=True):
    code = 34
    attribute_id: Uuid
    token: Str


class SegmentAttribute(Command, frozen=True):
    code = 35
    request_id: I64
    value: I64


class UpdateSegmentAttribute(OfSegment, frozen=True):
    code = 36
    attribute_id: Uuid
    new_value: I64
    expected_value: I64
    token: Str


class SegmentAttributeUpdated(Command, frozen=True):
    code = 37
    request_id: I64
    success: Bool


class TruncateSegment(OfSegment, frozen=True):
    code = 38
    truncation_offset: I64
    token: Str


class SegmentTruncated(OfSegment, frozen=True):
    code = 39


class CreateTransientSegment(Command, frozen=True):
    code = 40
    request_id: I64
    writer_id: Uuid
    parent_segment: Str
    token: Str


class LocateOffset(OfSegment, frozen=True):
    code = 41
    target_offset: I64
    token: Str


class OffsetLocated(OfSegment, frozen=True):
    code = 42
    offset: I64


class MergeSegments(Command, frozen=True):
    code = 58
    request_id: I64
    target: Str
    source: Str
    token: Str
    attribute_updates: Updates = ()


class SegmentsMerged(Command, frozen=True):
    code = 59
    request_id: I64
    target: Str
    source: Str
    new_target_write_offset: I64 = -1


class MergeSegmentsBatch(Command, frozen=True):
    code = 90
    request_id: I64
    target: Str
    sources: Strs
    token: Str


class SegmentsBatchMerged(Command, frozen=True):
    code = 91
    request_id: I64
    target: Str
    merged: Merged


class GetTableSegmentInfo(WithToken, frozen=True):
    code = 68


class TableSegmentInfo(OfSegment, frozen=True):
    code = 69
    start_offset: I64
    length: I64
    entry_count: I64
    key_length: I32


class CreateTableSegment(WithToken, frozen=True):
    code = 70
    sorted: Bool = False
    key_length: I32 = 0
    rollover_size_bytes: I64 = 0


class DeleteTableSegment(OfSegment, frozen=True):
    code = 71
    must_be_empty: Bool
    token: Str


class UpdateTableEntries(WithToken, frozen=True):
    code = 74
    entries: Entries
    table_segment_offset: I64 = -1


class TableEntriesUpdated(Command, frozen=True):
    code = 75
    request_id: I64
    versions: I64s


class RemoveTableKeys(WithToken, frozen=True):
    code = 76
    keys: Keys
    table_segment_offset: I64 = -1


class TableKeysRemoved(OfSegment, frozen=True):
    code = 77


class ReadTable(WithToken, frozen=True):
    code = 78
    keys: Keys


class TableRead(OfSegment, frozen=True):
    code = 79
    entries: Entries


class TableSegmentNotEmpty(Refused, frozen=True):
    code = 80


class TableKeyDoesNotExist(Refused, frozen=True):
    code = 81


class TableKeyBadVersion(Refused, frozen=True):
    code = 82


class ReadTableKeys(WithToken, frozen=True):
    code = 83
    suggested_count: I32
    range: TableKeyRange


class TableKeysRead(OfSegment, frozen=True):
    code = 84
    keys: Keys
    continuation_token: Blob


class ReadTableEntries(WithToken, frozen=True):
    code = 85
    suggested_count: I32
    range: TableKeyRange


class TableEntriesRead(OfSegment, frozen=True):
    code = 86
    entries: Entries
    continuation_token: Blob


class TableEntriesDeltaRead(OfSegment, frozen=True):
    code = 87
    entries: Entries
    should_clear: Bool
    reached_end: Bool
    last_position: I64


class ReadTableEntriesDelta(WithToken, frozen=True):
    code = 88
    from_position: I64
    suggested_count: I32


class WrongHost(OfSegment, frozen=True):
    code = 50
    correct_host: Str
    trace: Str = ""


class SegmentIsSealed(Refused, frozen=True):
    code = 51
    offset: I64 = -1


class SegmentAlreadyExists(Refused, frozen=True):
    code = 52


class NoSuchSegment(Refused, frozen=True):
    code = 53
    offset: I64 = -1


class SegmentIsTruncated(OfSegment, frozen=True):
    code = 56
    start_offset: I64
    trace: Str = ""
    offset: I64 = -1


class OperationUnsupported(Command, frozen=True):
    code = 57
    request_id: I64
    operation_name: Str
    trace: Str = ""


class AuthTokenCheckFailed(Command, frozen=True):
    code = 60
    request_id: I64
    trace: Str = ""
    error_code: I32 = -1


ILLEGAL_ARGUMENT = 0  # in ErrorMessage
# nadi's codes in ErrorMessage; official clients know 0 and -1, and treat these as "unspecified"
STORAGE_FULL = 1000
DAMAGED_DATA = 1001  # message format: see `nadi.wire.errors`
CHUNKS_UNAVAILABLE = 1002


class ErrorMessage(OfSegment, frozen=True):
    code = 61
    message: Str
    error_code: I32


class FlushToStorage(Command, frozen=True):
    code = -3
    container_id: I32
    token: Str
    request_id: I64


class StorageFlushed(Command, frozen=True):
    code = -4
    request_id: I64
