"""Reading segments, and what is done to a segment as a whole."""

from __future__ import annotations

from nadi.wire.commands.command import Command, OfSegment, WithToken
from nadi.wire.fields import I8, I32, I64, Bool, Merged, Str, Strs, Updates, Uuid, View


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
