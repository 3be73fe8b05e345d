"""nadi's error tree.

Each leaf's message says what failed, why and what to do; its attributes carry the values in the message.

    NadiError
    ├── InvalidArgumentError        the call can't succeed: change its arguments
    │   ├── InvalidNameError        a scope, stream or group name breaks the naming rule
    │   ├── InvalidStreamCutError   the cut belongs to another stream, or isn't at an event boundary
    │   │   └── PastEndError        an offset past its segment's end: start at or before the end
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
    ├── ConflictError               another caller was faster: read the current state, then decide
    │   ├── AlreadyExistsError
    │   ├── NotEmptyError
    │   ├── StreamSealedError       events can no longer be written to this stream
    │   ├── StreamNotSealedError
    │   ├── StreamRecreatedError    the stream was deleted and recreated: start at the new stream's head
    │   ├── KeyValueTableRecreatedError the table was deleted and recreated: open it again
    │   ├── GenerationMismatchError the reader group's configuration was updated meanwhile
    │   ├── ContentionError         every attempt lost to another change: retry later, or less often
    │   ├── ReaderOfflineError      other readers took over this reader's segments: create another reader
    │   ├── ConditionFailedError    the version or offset of a conditional change didn't match
    │   ├── TransactionFailedError  the transaction was aborted or has timed out
    │   └── SchemaIncompatibleError a schema that may not follow, or can't read, an earlier schema of its stream
    ├── AccessDeniedError           the caller isn't allowed to do that
    │   ├── NotAuthenticatedError   missing or wrong credentials
    │   └── PermissionDeniedError   the caller lacks the permission: ask the administrator for it
    ├── QuotaExceededError          a scope or user has used up its quota: free some, or have the quota raised
    ├── SerializationError          a value the serializer can't write, or an event it can't read
    ├── TruncatedError              the requested data was truncated: continue from `start_offset`
    │   ├── SegmentTruncatedError   the entire segment was truncated: continue from the stream's head
    │   ├── EpochExpiredError       truncated so long ago that its record was deleted: continue from the stream's head
    │   └── QueryTruncatedError     a streaming query's next events were truncated: skip them, or start another query
    ├── DamagedDataError            stored bytes are damaged or missing: restore their file, or continue at `end_offset`
    ├── UnavailableError            the server is unreachable or temporarily unable: try again
    │   ├── StorageFullError        the disk is full; writers continue automatically once there is space
    │   ├── TokenExpiredError       a delegation token expired: the client fetches another and continues
    │   ├── NotOwnerError           another store owns the segment: the client looks it up and continues there
    │   ├── ChunksUnavailableError  tier 2 doesn't answer: only recent data can be read until it does
    │   ├── RequestTimeoutError     no answer in time; the request may still have taken effect
    │   └── ClosedError             this client, writer or server was closed
    │       └── FencedError         another server owns the container now: this one releases it
    ├── ProtocolError               the peer violated the protocol: the call fails, or the connection is closed
    ├── StoreError                  the object store is unusable: the message says what to change
    ├── EncryptionKeyError          the keys of an encrypted store are missing or wrong: nothing was read or changed
    └── DataFolderError             the data folder is unusable
        ├── DataFolderLockedError   another server is using it
        ├── DataFolderTakeoverError another server opened it while this one was running
        ├── DataFolderVersionError  another version of nadi wrote it
        ├── CorruptLogError         acknowledged data on disk is damaged: the server refuses to start
        └── DamagedStateError       a container's state is damaged: it is rebuilt, or the server refuses to start
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NadiError(Exception):
    """Base of all errors that nadi raises deliberately; picklable with all attributes."""

    def __reduce__(self) -> tuple[Any, ...]:  # the default calls __init__ with the message alone
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[NadiError], args: tuple[Any, ...], values: dict[str, Any]) -> NadiError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(values)
    return error


class InvalidArgumentError(NadiError, ValueError):
    """An argument is invalid: the call can't succeed until it changes."""


class InvalidNameError(InvalidArgumentError):
    def __init__(self, kind: str, name: str, rule: str) -> None:
        super().__init__(f"{name!r} is not a {kind} name: {rule}")
        self.kind, self.name = kind, name


class InvalidStreamCutError(InvalidArgumentError):
    """The stream cut doesn't belong to this stream, or its text can't be read."""


class PastEndError(InvalidStreamCutError):
    def __init__(self, segment: str, offset: int, length: int) -> None:
        super().__init__(
            f"offset {offset:,} of segment {segment} is past its end at {length:,}: start at or before the end; "
            "if the stream was recreated, discard positions from the old stream"
        )
        self.segment, self.offset, self.length = segment, offset, length


class EventTooLargeError(InvalidArgumentError):
    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"the event has {size_bytes:,} bytes; the limit is {limit_bytes:,}: "
            "split it, or store the payload in an object store and write its address"
        )
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class NotFoundError(NadiError, LookupError):
    """Nothing is stored under that name."""


class ScopeNotFoundError(NotFoundError):
    def __init__(self, scope: str) -> None:
        super().__init__(f"scope {scope!r} not found: create it first, or check its spelling")
        self.scope = scope


class StreamNotFoundError(NotFoundError):
    def __init__(self, scope: str, stream: str, advice: str = "create it first, or check its spelling") -> None:
        super().__init__(f"stream {scope}/{stream} not found: {advice}")
        self.scope, self.stream = scope, stream


class SegmentNotFoundError(NotFoundError):
    def __init__(self, segment: str) -> None:
        super().__init__(f"segment {segment} not found: it was deleted, merged, or never created")
        self.segment = segment


class ReaderGroupNotFoundError(NotFoundError):
    def __init__(self, scope: str, group: str) -> None:
        super().__init__(f"reader group {scope}/{group} not found: create it, or check its spelling")
        self.scope, self.group = scope, group


class SubscriberNotFoundError(NotFoundError):
    def __init__(self, stream: str, subscriber: str) -> None:
        super().__init__(f"{subscriber} isn't subscribed to {stream}: its group's retention type is NONE")
        self.stream, self.subscriber = stream, subscriber


class KeyValueTableNotFoundError(NotFoundError):
    def __init__(self, scope: str, table: str) -> None:
        super().__init__(f"key-value table {scope}/{table} not found: create it first, or check its spelling")
        self.scope, self.table = scope, table


class WriterNotFoundError(NotFoundError):
    def __init__(self, stream: str, writer: str) -> None:
        super().__init__(f"writer {writer[:60]} has never noted a time for {stream}")
        self.stream, self.writer = stream, writer


class BookmarkNotFoundError(NotFoundError):
    def __init__(self, scope: str, name: str, advice: str = "create it, or check its spelling") -> None:
        super().__init__(f"bookmark {name[:60]!r} not found in scope {scope}: {advice}")
        self.scope, self.name = scope, name


class SliceNotFoundError(NotFoundError):
    def __init__(self, scope: str, name: str) -> None:
        super().__init__(f"slice {name[:60]!r} not found in scope {scope}: create it, or check its spelling")
        self.scope, self.name = scope, name


class StreamTableNotFoundError(NotFoundError):
    def __init__(self, scope: str, name: str) -> None:
        super().__init__(f"stream table {name[:60]!r} not found in scope {scope}: define it, or check its spelling")
        self.scope, self.name = scope, name


class TransactionNotFoundError(NotFoundError):
    def __init__(self, txn_id: str) -> None:
        super().__init__(f"transaction {txn_id} not found: it wasn't created here, or ended too long ago")
        self.txn_id = txn_id


class UnknownSchemaError(NotFoundError):
    def __init__(self, scope: str, stream: str, schema_id: int) -> None:
        super().__init__(
            f"an event refers to schema {schema_id}, which stream {scope}/{stream} doesn't have: read the event's "
            "original stream, or register that stream's schemas again in their old order"
        )
        self.scope, self.stream, self.schema_id = scope, stream, schema_id


class ConflictError(NadiError):
    """Another caller's change came first."""


class AlreadyExistsError(ConflictError):
    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name} already exists")
        self.kind, self.name = kind, name


class NotEmptyError(ConflictError):
    """A scope or table can't be deleted until it is empty."""


class StreamSealedError(ConflictError):
    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is sealed and can only be read; if it was recreated since, open it again")
        self.name = name


class StreamRecreatedError(ConflictError):
    def __init__(
        self,
        scope: str,
        stream: str,
        advice: str = "open another one at the new stream's head; for a reader group, call `reset_reader_group` with "
        "the head of each of its streams; for a query, use a new checkpoint",
    ) -> None:
        super().__init__(
            f"stream {scope}/{stream} was deleted and recreated; this position, writer or reader belongs to the old "
            f"stream: {advice}"
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
    def __init__(self, group: str, expected: int, stored: int) -> None:
        super().__init__(f"reader group {group} has generation {stored}, not {expected}: read it again and retry")
        self.group, self.expected, self.stored = group, expected, stored


class ContentionError(ConflictError):
    def __init__(self, name: str, attempts: int) -> None:
        super().__init__(f"each of {attempts:,} attempts to change {name} lost to another change: retry later")
        self.name, self.attempts = name, attempts


class ReaderOfflineError(ConflictError):
    def __init__(self, reader: str) -> None:
        super().__init__(
            f"reader {reader} was taken offline, by a call or because it didn't report in time, and other readers "
            "have its segments: create another reader"
        )
        self.reader = reader


class ConditionFailedError(ConflictError):
    """The stored version or offset doesn't match a conditional change."""


class TransactionFailedError(ConflictError):
    """The transaction was aborted or has timed out: its events are not in the stream."""


class AccessDeniedError(NadiError):
    """The caller isn't allowed to do that."""


class NotAuthenticatedError(AccessDeniedError):
    """The caller's credentials are missing or wrong."""


class PermissionDeniedError(AccessDeniedError):
    """The caller is authenticated but lacks the permission; the error doesn't reveal whether the target exists."""


class QuotaExceededError(NadiError):
    """A scope or a user has as much as its quota allows: the call can't succeed until it uses less."""

    @classmethod
    def of(cls, owner: str, limit: str, most: int, used: int, wanted: int) -> QuotaExceededError:
        return cls(
            f"quota exceeded: {limit} of {owner} are limited to {most:,}; it has {used:,} and would have {wanted:,}: "
            f"delete some, or let an administrator run nadi quota update {owner} --{limit.replace('_', '-')} N"
        )


class SchemaIncompatibleError(ConflictError):
    """Two schemas are incompatible; `problems` lists each field that one writes and the other can't read."""

    def __init__(self, what: str, problems: Sequence[str], advice: str) -> None:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        super().__init__(f"{what}: {shown}. {advice}")
        self.problems = tuple(problems)


class SerializationError(NadiError, ValueError):
    """A value the serializer can't write, or an event it can't read."""


class TruncatedError(NadiError):
    def __init__(self, segment: str, offset: int, start_offset: int) -> None:
        super().__init__(
            f"offset {offset:,} of segment {segment} was truncated: the segment starts at {start_offset:,}"
        )
        self.segment, self.offset, self.start_offset = segment, offset, start_offset


class SegmentTruncatedError(TruncatedError):
    def __init__(self, segment: str) -> None:
        NadiError.__init__(self, f"segment {segment} was truncated entirely: continue from the stream's head")
        self.segment, self.offset, self.start_offset = segment, 0, 0


class EpochExpiredError(TruncatedError):
    segment, offset, start_offset = "", 0, 0

    def __init__(self, message: str) -> None:
        NadiError.__init__(self, message)


class QueryTruncatedError(TruncatedError):
    def __init__(self, stream: str, gap: TruncatedError, cuts: Sequence[object] = (), skips: bool = False) -> None:
        lost = "; the events from {} to {} are lost".format(*cuts) if cuts else ""
        advice = 'to skip the gap, add .option("skip_truncated", "true"); or start it with a new checkpoint'
        advice = "restart it: it continues after the gap" if skips else advice
        NadiError.__init__(self, f"a query of stream {stream} can't continue: {gap}{lost}. What to do: {advice}")
        self.stream, self.cuts, self.segment = stream, tuple(cuts), gap.segment
        self.offset, self.start_offset = gap.offset, gap.start_offset


class DamagedDataError(NadiError):
    """Stored bytes are unreadable; reading can continue at `end_offset`, an append boundary."""

    def __init__(self, segment: str, offset: int, end_offset: int, reason: str) -> None:
        super().__init__(
            f"bytes {offset:,} to {end_offset:,} of segment {segment} are damaged ({reason}): "
            f'restore them from a copy, or continue at {end_offset:,}, as readers do with on_damage="skip"'
        )
        self.segment, self.offset, self.end_offset, self.reason = segment, offset, end_offset, reason


class UnavailableError(NadiError):
    """The server is unreachable or temporarily unable: try again."""


class StorageFullError(UnavailableError):
    """The server's disk is full; writers continue automatically once there is space."""


class TokenExpiredError(UnavailableError):
    """A delegation token expired; the request can be retried with a fresh one."""


class NotOwnerError(UnavailableError):
    def __init__(self, segment: str, owner: str = "") -> None:
        super().__init__(f"another store owns {segment or 'the segment'}: ask the controller for its address")
        self.segment, self.owner = segment, owner  # "host:port", or "" if unknown


class ChunksUnavailableError(UnavailableError):
    """The server can't read a chunk from tier 2: only data in its log can be read now."""


class RequestTimeoutError(UnavailableError, TimeoutError):
    """No answer arrived in time."""


class ClosedError(UnavailableError):
    """This client, writer or server was closed."""


class FencedError(ClosedError):
    def __init__(self, container: int, epoch: int) -> None:
        super().__init__(f"another server owns container {container} since epoch {epoch}")
        self.container, self.epoch = container, epoch


class ProtocolError(NadiError):
    """The peer sent bytes that violate the protocol, or a reply that doesn't match the request."""


class StoreError(NadiError):
    """The object store lacks conditional writes, belongs to another cluster, or refuses a request."""


class EncryptionKeyError(NadiError):
    """A store's data can't be opened, or sealed, with this master key; nothing was changed."""


class DataFolderError(NadiError):
    """The data folder is unusable."""


class DataFolderLockedError(DataFolderError):
    def __init__(self, folder: str, owner: str) -> None:
        super().__init__(f"{folder} is in use by another server ({owner}): stop it, or use another folder")
        self.folder = folder


class DataFolderTakeoverError(DataFolderError):
    def __init__(self, folder: str) -> None:
        super().__init__(
            f"another server opened the data folder {folder} after its file `lock` was removed while this server was "
            "running: this server stops; no acknowledged data is lost. Never remove that file: a leftover is harmless"
        )
        self.folder = folder


class DataFolderVersionError(DataFolderError):
    def __init__(self, folder: str, actual: object, expected: int) -> None:
        super().__init__(
            f"the data folder {folder} has format {actual}; this version of nadi reads format {expected}: "
            "use the version that wrote it, or another folder"
        )
        self.folder, self.actual, self.expected = folder, actual, expected


class CorruptLogError(DataFolderError):
    """Acknowledged data in the write-ahead log is damaged, at `offset` of `file`; the disk is unchanged."""

    def __init__(self, file: str, offset: int, what: str) -> None:
        super().__init__(
            f"the write-ahead log is damaged at byte {offset:,} of {file}: {what}. Nothing was changed. "
            "Restore that file from a copy and start again; or run `nadi check` to see the losses and what can be "
            "recovered, then `nadi repair` to drop unreadable data"
        )
        self.file, self.offset, self.what = file, offset, what


class DamagedStateError(DataFolderError):
    """A container's state is damaged, and can't be rebuilt from its snapshots and log; the disk is unchanged."""

    def __init__(self, folder: str, what: str, why_not: str = "") -> None:
        super().__init__(
            f"the state in {folder} is damaged: {what}"
            + (f"; and it can't be rebuilt without loss: {why_not}" if why_not else "")
            + ". Nothing was changed. Run `nadi check` to see the damage and what can be recovered, "
            "then restore it from a copy, or run `nadi repair` to recover the rest"
        )
        self.folder, self.what, self.why_not = folder, what, why_not
