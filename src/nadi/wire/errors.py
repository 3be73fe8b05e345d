"""Mapping between errors and replies of the wire protocol, for servers and clients.

A reply carries less than an error: official clients use its type, sometimes an offset, and ignore the text. An error
with a reply type keeps its type; an error sent as an ErrorMessage keeps the family of its code. For errors that
`error_reply` doesn't map, the server closes the connection.

Damage is sent as an ErrorMessage with a code of nadi's and the range in its text. Official readers would take
NoSuchSegment for a segment's end, and would retry after a closed connection. An ErrorMessage fails a read of Pravega's
Rust client at once, and of its Java client after its retries.
"""

from __future__ import annotations

import re

from nadi.errors import (
    AlreadyExistsError,
    ChunksUnavailableError,
    ConditionFailedError,
    DamagedDataError,
    DataFolderError,
    InvalidArgumentError,
    NadiError,
    NotEmptyError,
    NotOwnerError,
    PermissionDeniedError,
    ProtocolError,
    SegmentNotFoundError,
    StorageFullError,
    StreamSealedError,
    TokenExpiredError,
    TruncatedError,
    UnavailableError,
)
from nadi.wire import commands as wire

_TEXT = re.compile(r"bytes (\d+) to (\d+) can't be read as they were stored: (.*)", re.DOTALL)


def damage_reply(error: DamagedDataError, request_id: int) -> wire.ErrorMessage:
    """Return the reply for damaged data.

    >>> reply = damage_reply(DamagedDataError("s/a/0.#epoch.0", 8, 24, "its chunk is missing"), 7)
    >>> reply.message
    "bytes 8 to 24 can't be read as they were stored: its chunk is missing"
    >>> error = damage_of(reply)
    >>> error.segment, error.offset, error.end_offset, error.reason
    ('s/a/0.#epoch.0', 8, 24, 'its chunk is missing')
    """
    text = f"bytes {error.offset} to {error.end_offset} can't be read as they were stored: {error.reason}"
    return wire.ErrorMessage(request_id, error.segment, text, wire.DAMAGED_DATA)


def damage_of(reply: wire.ErrorMessage) -> DamagedDataError | ProtocolError:
    """Decode a reply with the code DAMAGED_DATA."""
    match = _TEXT.fullmatch(reply.message)
    if match is None:
        return ProtocolError(f"a damage report of segment {reply.segment} lacks the range: {reply.message[:200]}")
    return DamagedDataError(reply.segment, int(match[1]), int(match[2]), match[3])


_TOKEN_REFUSED, _TOKEN_EXPIRED = 0, 1  # in AuthTokenCheckFailed; the Rust client panics at any code but these and -1


class KeyNotFoundError(ConditionFailedError):
    """A key is absent although the condition names a version; used in a table's server only."""


class TableLengthError(NadiError):
    """A table's length differs from the condition's; used in a table's server only."""

    def __init__(self, length: int) -> None:
        super().__init__(f"the table's length is {length}")
        self.length = length


def error_reply(error: Exception, request_id: int, segment: str, offset: int = -1) -> wire.Command:
    """Return the reply for an error of a request on `segment`, at `offset` if given; re-raises unmapped errors."""
    match error:
        case SegmentNotFoundError():
            return wire.NoSuchSegment(request_id, error.segment, "", offset)
        case StreamSealedError():
            return wire.SegmentIsSealed(request_id, error.name, "", offset)
        case TruncatedError():
            return wire.SegmentIsTruncated(request_id, segment, error.start_offset, "", offset)
        case DamagedDataError():
            return damage_reply(error, request_id)
        case AlreadyExistsError():
            return wire.SegmentAlreadyExists(request_id, segment)
        case NotEmptyError():
            return wire.TableSegmentNotEmpty(request_id, segment)
        case KeyNotFoundError():
            return wire.TableKeyDoesNotExist(request_id, segment)
        case TableLengthError():
            return wire.SegmentIsTruncated(request_id, segment, error.length)
        case ConditionFailedError():
            return wire.TableKeyBadVersion(request_id, segment)
        case PermissionDeniedError():
            return wire.AuthTokenCheckFailed(request_id, "", _TOKEN_REFUSED)
        case TokenExpiredError():
            return wire.AuthTokenCheckFailed(request_id, "", _TOKEN_EXPIRED)
        case NotOwnerError():
            return wire.WrongHost(request_id, segment, error.owner)
        case StorageFullError():
            return wire.ErrorMessage(request_id, segment, str(error), wire.STORAGE_FULL)
        case ChunksUnavailableError():
            return wire.ErrorMessage(request_id, segment, str(error), wire.CHUNKS_UNAVAILABLE)
        case InvalidArgumentError():
            return wire.ErrorMessage(request_id, segment, str(error), wire.ILLEGAL_ARGUMENT)
        case DataFolderError():  # internal: the server recovers, or reports the reason in its health
            raise UnavailableError(f"the server can't answer: {error}") from error
    raise error


def error_of(reply: wire.Command) -> NadiError | None:
    """Return the error that a reply reports, or None if the request succeeded."""
    match reply:
        case wire.SegmentIsSealed(segment=name):
            return StreamSealedError(name)
        case wire.NoSuchSegment(segment=name):
            return SegmentNotFoundError(name)
        case wire.SegmentIsTruncated(segment=name, offset=offset, start_offset=start):
            return TruncatedError(name, offset, start)
        case wire.SegmentAlreadyExists(segment=name):
            return AlreadyExistsError("segment", name)
        case wire.WrongHost(segment=name, correct_host=owner):
            return NotOwnerError(name, owner)
        case wire.TableSegmentNotEmpty(segment=name):
            return NotEmptyError(f"table {name} is not empty")
        case wire.TableKeyBadVersion(segment=name):
            return ConditionFailedError(f"a key of table {name} doesn't have the expected version")
        case wire.TableKeyDoesNotExist(segment=name):
            return ConditionFailedError(f"an expected key of table {name} is missing")
        case wire.ConditionalCheckFailed():
            return ConditionFailedError("the segment doesn't have the expected length")
        case wire.InvalidEventNumber(event_number=number):
            return UnavailableError(f"the writer's event number {number} is not the next one")
        case wire.OperationUnsupported(operation_name=name):
            return InvalidArgumentError(f"the segment does not support {name}")
        case wire.AuthTokenCheckFailed(error_code=code):
            if code == _TOKEN_EXPIRED:
                return TokenExpiredError("the delegation token has expired")
            return PermissionDeniedError("the segment store refused the delegation token: it lacks the permission")
        case wire.ErrorMessage(error_code=wire.DAMAGED_DATA):
            return damage_of(reply)
        case wire.ErrorMessage(error_code=code, segment=name, message=message):
            if code == wire.STORAGE_FULL:
                return StorageFullError(f"segment {name}: {message}")
            if code == wire.CHUNKS_UNAVAILABLE:
                return ChunksUnavailableError(f"segment {name}: {message}")
            if code == wire.ILLEGAL_ARGUMENT:
                return InvalidArgumentError(f"segment {name}: {message}")
            return UnavailableError(f"segment {name}: {message}")
    return None


def is_whole(request: wire.Command, answer: wire.Command) -> bool:
    """Return whether an answer has an entry for each requested key."""
    match request, answer:
        case wire.ReadTable(keys=requested), wire.TableRead(entries=returned):
            return len(returned) == len(requested)
        case wire.UpdateTableEntries(entries=put) | wire.UpdateTableToFreeSpace(
            entries=put
        ), wire.TableEntriesUpdated():
            return len(answer.versions) == len(put)
    return True
