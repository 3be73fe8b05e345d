"""Errors in the wire protocol: which reply a server sends for one, and which error a client raises for a reply.

A reply carries less than an error: official clients know its type, sometimes an offset, and show the rest to nobody.
So an error sent as a reply of its own type keeps its type, and one sent as an ErrorMessage keeps the family that its
code names. Errors not in `error_reply` can't be expressed in the protocol: the server then closes the connection.

Damage is an ErrorMessage with nadi's own code, and the range in its text. It must not be a reply that clients
interpret otherwise: official readers take NoSuchSegment for a segment's end, and a closed connection for a reason to
ask again. This one fails a read of Pravega's Rust client at once, and of its Java client after its retries.
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
    """
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
    """The error that a reply with the code DAMAGED_DATA stands for."""
    found = _TEXT.fullmatch(reply.message)
    if found is None:
        return ProtocolError(f"damage of segment {reply.segment} is told without its range: {reply.message[:200]}")
    return DamagedDataError(reply.segment, int(found[1]), int(found[2]), found[3])


_TOKEN_REFUSED, _TOKEN_EXPIRED = 0, 1  # in AuthTokenCheckFailed; the Rust client panics at any code but these and -1


class KeyNotFoundError(ConditionFailedError):
    """A table's server alone: the condition names a version, but the key is absent."""


class TableLengthError(NadiError):
    """A table's server alone: the condition on the whole table's length does not hold."""

    def __init__(self, length: int) -> None:
        super().__init__(f"the table's length is {length}")
        self.length = length


def error_reply(error: Exception, request_id: int, segment: str, offset: int = -1) -> wire.Command:
    """The reply to a request on `segment`, at `offset` where it has one; raises what the protocol has no word for."""
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
        case DataFolderError():  # what the server keeps for itself: it recovers, or says in its health why not
            raise UnavailableError(f"the server can't say: {error}") from error
    raise error


def error_of(reply: wire.Command) -> NadiError | None:
    """The error that a reply stands for, or None if it is an answer."""
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
            return ConditionFailedError(f"a key of table {name} has another version than expected")
        case wire.TableKeyDoesNotExist(segment=name):
            return ConditionFailedError(f"a key of table {name} was expected and is not there")
        case wire.ConditionalCheckFailed():
            return ConditionFailedError("the segment has another length than expected")
        case wire.InvalidEventNumber(event_number=number):
            return UnavailableError(f"the writer's event number {number} is not the next one")
        case wire.OperationUnsupported(operation_name=name):
            return InvalidArgumentError(f"the segment does not support {name}")
        case wire.AuthTokenCheckFailed(error_code=code):
            if code == _TOKEN_EXPIRED:
                return TokenExpiredError("the delegation token has expired")
            return PermissionDeniedError("the segment store refused the delegation token: it is not for this")
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
    """Whether an answer of the right kind has something for each key that was asked for."""
    match request, answer:
        case wire.ReadTable(keys=asked), wire.TableRead(entries=given):
            return len(given) == len(asked)
        case wire.UpdateTableEntries(entries=put) | wire.UpdateTableToFreeRoom(entries=put), wire.TableEntriesUpdated():
            return len(answer.versions) == len(put)
    return True
