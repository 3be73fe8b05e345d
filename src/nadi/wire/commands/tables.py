"""Table segments: keys with versions, read and changed."""

from __future__ import annotations

from nadi.wire.commands.command import Command, OfSegment, Refused, WithToken
from nadi.wire.fields import I32, I64, Blob, Bool, Entries, I64s, Keys, Str, TableKeyRange


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
