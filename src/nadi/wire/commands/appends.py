"""The connection's first words, and appends: what is sent for each block of events, and what answers it."""

from __future__ import annotations

from nadi.wire.commands.command import Command, OfSegment
from nadi.wire.fields import I32, I64, NO_VERSION, Rest, Str, Uuid, View


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
    """`after_event_number`: stored only if this is the writer's last stored number; NO_VERSION is no such condition.

    So one that was sent before its predecessor's answer never passes where the predecessor did not.
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


HELLO = Hello(17, 5)  # what this nadi speaks, at either end
# the highest version of those who know the command
_TAKES_REPORTS, _LOCATES_CHUNKS, _LISTS_MOMENTS, _LISTS_EVENT_SIZES = 10_001, 10_002, 10_003, 10_004
OWN_HELLO = Hello(_LISTS_EVENT_SIZES, 5)  # said by nadi's clients, and to them by nadi's servers


def takes_reports(hello: Hello) -> bool:
    """Whether whoever said this knows `ReportKeys`; others end the connection when one comes.

    Any server that speaks versions 5 to 17 accepts a client that speaks more; official ones answer with their own
    versions, and nadi's answer official clients with those that they know.
    """
    return hello.high_version >= _TAKES_REPORTS


def locates_chunks(hello: Hello) -> bool:
    """Whether whoever said this knows `LocateChunks`; others end the connection when one comes."""
    return hello.high_version >= _LOCATES_CHUNKS


def lists_moments(hello: Hello) -> bool:
    """Whether whoever said this knows `ListMoments`; others end the connection when one comes."""
    return hello.high_version >= _LISTS_MOMENTS


def lists_event_sizes(hello: Hello) -> bool:
    """Whether whoever said this knows `ListEventSizes`; others end the connection when one comes."""
    return hello.high_version >= _LISTS_EVENT_SIZES
