"""The one error tree of nadi.

Each leaf's message says what went wrong and what to do next; its attributes carry the values that the message mentions.

    NadiError
    ├── InvalidArgumentError        the call can't succeed as it is: change the arguments
    │   ├── InvalidNameError        a scope, stream or group name breaks the naming rule
    │   ├── InvalidStreamCutError   a stream cut of another stream, or one that is not a boundary of this stream
    │   │   └── PastEndError        an offset past its segment's end: start at the end or before
    │   └── EventTooLargeError      an event over the size limit
    ├── NotFoundError               nothing is stored under that name
    │   ├── ScopeNotFoundError
    │   ├── StreamNotFoundError
    │   ├── SegmentNotFoundError
    │   ├── ReaderGroupNotFoundError
    │   ├── SubscriberNotFoundError
    │   ├── KeyValueTableNotFoundError
    │   ├── WriterNotFoundError
    │   ├── BookmarkNotFoundError
    │   ├── SliceNotFoundError
    │   ├── StreamTableNotFoundError
    │   ├── TransactionNotFoundError
    │   └── UnknownSchemaError      an event refers to a schema that its stream doesn't have
    ├── ConflictError               somebody else was faster: look again, then decide
    │   ├── AlreadyExistsError
    │   ├── NotEmptyError
    │   ├── StreamSealedError       no more events can be written to this stream
    │   ├── StreamNotSealedError
    │   ├── StreamRemadeError       it was deleted and recreated under its name: start at the new stream's head
    │   ├── KeyValueTableRemadeError it was deleted and recreated: open it again
    │   ├── GenerationMismatchError the reader group's configuration was updated meanwhile
    │   ├── ContentionError         others were faster each time: try again later, or less often
    │   ├── ReaderOfflineError      others took this reader's segments: create another reader
    │   ├── ConditionFailedError    a conditional change found a version or offset other than expected
    │   ├── TransactionFailedError  the transaction was aborted or has timed out
    │   └── SchemaIncompatibleError a schema that may not follow, or can't read, an earlier one of its stream
    ├── AccessDeniedError           the server doesn't let this caller do that
    │   ├── NotAuthenticatedError   missing or wrong credentials
    │   └── PermissionDeniedError   the caller lacks the permission: ask whoever maintains the users file
    ├── SerializationError          a value the serializer can't write, or an event it can't read
    ├── TruncatedError              the data requested was truncated away: continue from `start_offset`
    │   ├── SegmentGoneError        the entire segment was: continue from the stream's head
    │   ├── EpochGoneError          so long ago that nothing of it is known any more: continue from the stream's head
    │   └── QueryTruncatedError     a streaming query's next events were: let it skip them, or start another
    ├── DamagedDataError            stored bytes are damaged or missing: restore their file, or continue at `end_offset`
    ├── UnavailableError            the server can't be reached or can't do it now: try again
    │   ├── StorageFullError        the disk is full; writers continue automatically once there is room
    │   ├── TokenExpiredError       a delegation token expired: the client fetches another and continues
    │   ├── NotOwnerError           another store has the segment: the client asks which, and continues there
    │   ├── ChunksUnavailableError  tier 2 doesn't answer: what was written lately can be read, and the rest later
    │   ├── RequestTimeoutError     no answer in time; the request may have taken effect all the same
    │   └── ClosedError             this client, writer or server was closed
    │       └── FencedError         another server has the container now: this one lets go of it
    ├── ProtocolError               the peer violated the protocol: the call fails, or the connection is closed
    ├── StoreError                  the object store can't be used as it is: the message says what to change
    └── DataFolderError             the data folder can't be used as it is
        ├── DataFolderLockedError   another server is using it
        ├── DataFolderTakenError    another server opened it while this one was running
        ├── DataFolderVersionError  it was written by another version of nadi
        ├── CorruptLogError         acknowledged data on disk is damaged: the server refuses to start
        └── DamagedStateError       a container's state is damaged: it is rebuilt, or the server refuses to start
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NadiError(Exception):
    """Base of all errors that nadi raises on purpose. Pools of processes hand them on as they are."""

    def __reduce__(self) -> tuple[Any, ...]:  # as usual they would be made anew of their words alone
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(kind: type[NadiError], args: tuple[Any, ...], values: dict[str, Any]) -> NadiError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(values)
    return error


class InvalidArgumentError(NadiError, ValueError):
    """The call can't succeed as it is."""


class InvalidNameError(InvalidArgumentError):
    def __init__(self, kind: str, name: str, rule: str) -> None:
        super().__init__(f"{name!r} is not a {kind} name: {rule}")
        self.kind, self.name = kind, name


class InvalidStreamCutError(InvalidArgumentError):
    """The stream cut doesn't belong to this stream, or its text can't be read."""


class PastEndError(InvalidStreamCutError):
    def __init__(self, segment: str, offset: int, length: int) -> None:
        super().__init__(
            f"offset {offset:,} of segment {segment} lies past its end at {length:,}: start there or before; "
            "if the stream was recreated, discard positions of the old one"
        )
        self.segment, self.offset, self.length = segment, offset, length


class EventTooLargeError(InvalidArgumentError):
    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"the event has {size_bytes:,} bytes and the limit is {limit_bytes:,}: "
            "split it, or store the payload in an object store and write its address"
        )
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class NotFoundError(NadiError, LookupError):
    """Nothing is stored under that name."""


class ScopeNotFoundError(NotFoundError):
    def __init__(self, scope: str) -> None:
        super().__init__(f"there is no scope {scope!r}: create it first, or check its spelling")
        self.scope = scope


class StreamNotFoundError(NotFoundError):
    def __init__(self, scope: str, stream: str, advice: str = "create it first, or check its spelling") -> None:
        super().__init__(f"there is no stream {scope}/{stream}: {advice}")
        self.scope, self.stream = scope, stream


class SegmentNotFoundError(NotFoundError):
    def __init__(self, segment: str) -> None:
        super().__init__(f"there is no segment {segment}: it was deleted, merged, or never created")
        self.segment = segment


class ReaderGroupNotFoundError(NotFoundError):
    def __init__(self, scope: str, group: str) -> None:
        super().__init__(f"there is no reader group {scope}/{group} (any more): create it, or check its spelling")
        self.scope, self.group = scope, group


class SubscriberNotFoundError(NotFoundError):
    def __init__(self, stream: str, subscriber: str) -> None:
        super().__init__(f"{subscriber} doesn't subscribe to {stream}: its group's retention type is NONE")
        self.stream, self.subscriber = stream, subscriber


class KeyValueTableNotFoundError(NotFoundError):
    def __init__(self, scope: str, table: str) -> None:
        super().__init__(f"there is no key-value table {scope}/{table}: create it first, or check its spelling")
        self.scope, self.table = scope, table


class WriterNotFoundError(NotFoundError):
    def __init__(self, stream: str, writer: str) -> None:
        super().__init__(f"writer {writer[:60]} has never noted a time for {stream}")
        self.stream, self.writer = stream, writer


class BookmarkNotFoundError(NotFoundError):
    def __init__(self, scope: str, name: str) -> None:
        super().__init__(f"there is no bookmark {name[:60]!r} in scope {scope}: create it, or check its spelling")
        self.scope, self.name = scope, name


class SliceNotFoundError(NotFoundError):
    def __init__(self, scope: str, name: str) -> None:
        super().__init__(f"there is no slice {name[:60]!r} in scope {scope}: create it, or check its spelling")
        self.scope, self.name = scope, name


class StreamTableNotFoundError(NotFoundError):
    def __init__(self, scope: str, name: str) -> None:
        super().__init__(f"scope {scope} has no stream table {name[:60]!r}: define it, or check its spelling")
        self.scope, self.name = scope, name


class TransactionNotFoundError(NotFoundError):
    def __init__(self, txn_id: str) -> None:
        super().__init__(f"there is no transaction {txn_id}: it was never begun here, or was forgotten after its end")
        self.txn_id = txn_id


class UnknownSchemaError(NotFoundError):
    def __init__(self, scope: str, stream: str, schema_id: int) -> None:
        super().__init__(
            f"an event refers to schema {schema_id}, which stream {scope}/{stream} doesn't have: read the stream that "
            "it was written to, or register that stream's schemas again in their old order"
        )
        self.scope, self.stream, self.schema_id = scope, stream, schema_id


class ConflictError(NadiError):
    """Somebody else was faster."""


class AlreadyExistsError(ConflictError):
    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} already exists")
        self.kind, self.name = kind, name


class NotEmptyError(ConflictError):
    """A scope or table that still holds something can't be deleted."""


class StreamSealedError(ConflictError):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is sealed: it can be read, but not written to; if it was recreated since, open it again"
        )
        self.name = name


class StreamRecreatedError(ConflictError):
    def __init__(
        self,
        scope: str,
        stream: str,
        advice: str = "open another, at the new one's head; for a reader group, call `reset_reader_group` with the "
        "head of each of its streams; for a query, use a new checkpoint",
    ) -> None:
        super().__init__(
            f"stream {scope}/{stream} was deleted and recreated, and this position, writer or reader belongs to the "
            f"old one: {advice}"
        )
        self.scope, self.stream = scope, stream


class KeyValueTableRecreatedError(ConflictError):
    def __init__(self, scope: str, table: str) -> None:
        super().__init__(f"key-value table {scope}/{table} was deleted and recreated: open it again")
        self.scope, self.table = scope, table


class StreamNotSealedError(ConflictError):
    def __init__(self, scope: str, stream: str) -> None:
        super().__init__(f"stream {scope}/{stream} is not sealed: seal it before deleting it")
        self.scope, self.stream = scope, stream


class GenerationMismatchError(ConflictError):
    def __init__(self, group: str, given: int, stored: int) -> None:
        super().__init__(f"reader group {group} has generation {stored}, not {given}: read it and try again")
        self.group, self.given, self.stored = group, given, stored


class ContentionError(ConflictError):
    def __init__(self, name: str, attempts: int) -> None:
        super().__init__(f"{name} was changed by others before each of {attempts:,} tries: try later, or less often")
        self.name, self.attempts = name, attempts


class ReaderOfflineError(ConflictError):
    def __init__(self, reader: str) -> None:
        super().__init__(
            f"reader {reader} was taken offline, by a call or because it had not reported for too long, and other "
            "readers have its segments: create another reader"
        )
        self.reader = reader


class ConditionFailedError(ConflictError):
    """A conditional change found a version or offset other than expected."""


class TransactionFailedError(ConflictError):
    """The transaction was aborted or has timed out: its events are not in the stream."""


class AccessDeniedError(NadiError):
    """The server doesn't let this caller do that."""


class NotAuthenticatedError(AccessDeniedError):
    """The caller's credentials are missing or wrong."""


class PermissionDeniedError(AccessDeniedError):
    """The caller is known but may not do this; whether the thing exists is not revealed."""


class SchemaIncompatibleError(ConflictError):
    """`problems` lists, place by place, what one schema writes that the other can't read."""

    def __init__(self, what: str, problems: Sequence[str], advice: str) -> None:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        super().__init__(f"{what}: {shown}. {advice}")
        self.problems = tuple(problems)


class SerializationError(NadiError, ValueError):
    """A value the serializer can't write, or an event it can't read."""


class TruncatedError(NadiError):
    def __init__(self, segment: str, offset: int, start_offset: int) -> None:
        super().__init__(f"offset {offset:,} of segment {segment} was truncated away: it starts at {start_offset:,}")
        self.segment, self.offset, self.start_offset = segment, offset, start_offset


class SegmentGoneError(TruncatedError):
    def __init__(self, segment: str) -> None:
        NadiError.__init__(self, f"all of segment {segment} was truncated away: continue from the stream's head")
        self.segment, self.offset, self.start_offset = segment, 0, 0


class EpochGoneError(TruncatedError):
    segment, offset, start_offset = "", 0, 0

    def __init__(self, message: str) -> None:
        NadiError.__init__(self, message)


class QueryTruncatedError(TruncatedError):
    def __init__(self, stream: str, gap: TruncatedError, cuts: Sequence[object] = (), skips: bool = False) -> None:
        gone = "; gone is what lies from {} to {}".format(*cuts) if cuts else ""
        advice = 'to go on with the rest, add .option("skip_truncated", "true"); or give it a new checkpoint and start'
        advice = "restart it: it continues after the gap" if skips else advice
        NadiError.__init__(self, f"a query of stream {stream} can't continue: {gap}{gone}. What to do: {advice}")
        self.stream, self.cuts, self.segment = stream, tuple(cuts), gap.segment
        self.offset, self.start_offset = gap.offset, gap.start_offset


class DamagedDataError(NadiError):
    """Others can be read: `end_offset`, where reading can continue, is an append boundary."""

    def __init__(self, segment: str, offset: int, end_offset: int, reason: str) -> None:
        super().__init__(
            f"bytes {offset:,} to {end_offset:,} of segment {segment} can't be read as they were stored ({reason}): "
            f'restore them from a copy, or continue at {end_offset:,}, as readers do with on_damage="skip"'
        )
        self.segment, self.offset, self.end_offset, self.reason = segment, offset, end_offset, reason


class UnavailableError(NadiError):
    """The server can't be reached or can't do it now: try again."""


class StorageFullError(UnavailableError):
    """The server's disk is full; writers continue automatically once there is room."""


class TokenExpiredError(UnavailableError):
    """A delegation token expired; the request can be retried with a fresh one."""


class NotOwnerError(UnavailableError):
    def __init__(self, segment: str, owner: str = "") -> None:
        super().__init__(f"another store has {segment or 'that segment'}: ask the controller which, and continue there")
        self.segment, self.owner = segment, owner  # "host:port", or "" where it isn't known


class ChunksUnavailableError(UnavailableError):
    """The store of a server's chunks doesn't give what was asked for: what isn't in its log can't be read now."""


class RequestTimeoutError(UnavailableError, TimeoutError):
    """No answer arrived in time."""


class ClosedError(UnavailableError):
    """This client, writer or server was closed."""


class FencedError(ClosedError):
    def __init__(self, container: int, epoch: int) -> None:
        super().__init__(f"another server has container {container} since epoch {epoch}")
        self.container, self.epoch = container, epoch


class ProtocolError(NadiError):
    """The peer sent bytes that violate the protocol, or a reply that doesn't match the request."""


class StoreError(NadiError):
    """The object store breaks its conditions, is another cluster's, or refuses what a server needs."""


class DataFolderError(NadiError):
    """The data folder can't be used as it is."""


class DataFolderLockedError(DataFolderError):
    def __init__(self, folder: str, owner: str) -> None:
        super().__init__(f"{folder} is in use by another server ({owner}): stop it, or give another --data")
        self.folder = folder


class DataFolderTakenError(DataFolderError):
    def __init__(self, folder: str) -> None:
        super().__init__(
            f"another server has opened the data folder {folder}, whose file `lock` was removed while this one was "
            "running: it stops; what it acknowledged is kept. Never remove that file: its existence means nothing"
        )
        self.folder = folder


class DataFolderVersionError(DataFolderError):
    def __init__(self, folder: str, found: object, expected: int) -> None:
        super().__init__(
            f"the data folder {folder} has format {found}, but this nadi reads format {expected}: "
            "use the nadi version that wrote it, or another folder with --data"
        )
        self.folder, self.found, self.expected = folder, found, expected


class CorruptLogError(DataFolderError):
    """Acknowledged data in the durable log is damaged, at `offset` of `file`; nothing was changed on disk."""

    def __init__(self, file: str, offset: int, what: str) -> None:
        super().__init__(
            f"the durable log is damaged at byte {offset:,} of {file}: {what}. Nothing was changed. "
            "Restore that file from a copy and start again; or see with `nadi check` what is lost and what can be "
            "recovered, then let `nadi repair` leave out what can't be read"
        )
        self.file, self.offset, self.what = file, offset, what


class DamagedStateError(DataFolderError):
    """What a container knows of its segments is damaged, and its snapshots and log don't have all; nothing changed."""

    def __init__(self, folder: str, what: str, why_not: str = "") -> None:
        super().__init__(
            f"the state in {folder} can't be used: {what}"
            + (f"; and it can't be rebuilt without loss: {why_not}" if why_not else "")
            + ". Nothing was changed. See with `nadi check` what is damaged and what can be recovered, "
            "then restore it from a copy, or let `nadi repair` recover what it can"
        )
        self.folder, self.what, self.why_not = folder, what, why_not
