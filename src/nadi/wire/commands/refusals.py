"""What answers a command that was not done. Which error each is, is told in `nadi.wire.errors`."""

from __future__ import annotations

from nadi.wire.commands.command import Command, OfSegment, Refused
from nadi.wire.fields import I32, I64, Str


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
# nadi's own codes there: official clients, which know 0 and -1, read "unspecified"
STORAGE_FULL = 1000
DAMAGED_DATA = 1001  # `nadi.wire.errors` says what the message holds
CHUNKS_UNAVAILABLE = 1002


class ErrorMessage(OfSegment, frozen=True):
    code = 61
    message: Str
    error_code: I32
