"""What the controller keeps in table segments: msgpack structs, each small enough for one table value.

`metadata` says where each is stored. Every struct is an immutable value; a change writes a new one
under the version that was read. Fields are stored as arrays, so new ones go at the end with a default.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from nadi.model.segments import SegmentRange


class ScaleType(IntEnum):
    FIXED = 0
    KIB_PER_SECOND = 1
    EVENTS_PER_SECOND = 2


class RetentionType(IntEnum):
    NONE = 0
    TIME = 1
    SIZE = 2


class StreamState(IntEnum):
    ACTIVE = 0
    SEALING = 1
    SEALED = 2


class GroupRetention(IntEnum):
    """How a reader group limits retention: not at all, to what its user released, or to what lies before its last
    checkpoint."""

    NONE = 0
    MANUAL = 1
    AUTOMATIC = 2


class ScopeState(IntEnum):
    """DELETING: nothing new is created in it, and whoever marked it does the rest."""

    ACTIVE = 0
    DELETING = 1


class TxnState(IntEnum):
    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Anything that is stored as one table value."""


class StreamConfigRecord(Record, frozen=True):
    """A stream's configuration, kept and echoed as the client gave it."""

    scale_type: ScaleType = ScaleType.FIXED
    target_rate: int = 0
    scale_factor: int = 0
    min_segments: int = 1
    retention_type: RetentionType = RetentionType.NONE
    retention_param: int = 0
    retention_max: int = 0
    tags: tuple[str, ...] = ()
    timestamp_aggregation_timeout_ms: int = 0
    rollover_size_bytes: int = 0
    retention_over_bookmarks: bool = False
    event_time: str = ""  # as `nadi.model.event_time` has it
    retention_by_event_time: bool = False


class EpochSegment(Record, frozen=True):
    """A segment and its half-open range of the key space."""

    id: int
    low: float
    high: float

    @property
    def segment_id(self) -> int:
        return self.id

    @property
    def as_range(self) -> SegmentRange:
        return SegmentRange(self.id, self.low, self.high)


class EpochChange(Record, frozen=True, tag="epoch"):
    """How an epoch differs from the one before it. `reference` is the epoch whose ranges it repeats."""

    epoch: int
    reference: int
    created_ms: int
    removed: tuple[int, ...]
    added: tuple[EpochSegment, ...]


class EpochBase(Record, frozen=True, tag="base"):
    """The oldest epoch of a stream whose past isn't forgotten, with all its segments; those recorded for older epochs
    count for nothing, and are removed. began_ms: for each segment, when the epoch began that created it. cleared: the
    epoch before which no records are left."""

    epoch: int
    reference: int
    created_ms: int
    segments: tuple[EpochSegment, ...]
    began_ms: tuple[int, ...]
    cleared: int


class SealedSizes(Record, frozen=True, tag="sizes"):
    """Lengths of the segments that one epoch replaced (or that sealing the stream ended)."""

    sizes: dict[int, int]


class Scope(Record, frozen=True):
    created_ms: int
    state: ScopeState = ScopeState.ACTIVE


class StreamRecord(Record, frozen=True):
    """A stream as it is now. `head` is the cut it was truncated at; empty: never truncated."""

    config: StreamConfigRecord
    created_ms: int
    state: StreamState
    epoch: int
    reference: int
    epoch_created_ms: int
    segments: tuple[EpochSegment, ...]
    head: dict[int, int] = {}
    internal: bool = False  # a mark stream, made and removed with its stream


class TransactionRecord(Record, frozen=True):
    """A transaction that is not finished. epoch: the (reference) one its segments belong to. expires_ms, max_ms: the
    ends of its lease and of its maximum lifetime when it was created or last pinged; only the distance between them
    counts. group: the commit number of the first of those that were committed together, if it was one of several."""

    state: TxnState
    epoch: int
    created_ms: int
    lease_ms: int
    expires_ms: int
    max_ms: int
    writer_id: str = ""
    commit_time: int | None = None
    commit_number: int = 0
    group: int = 0


class CompletedTransaction(Record, frozen=True):
    """`stream_created_ms` distinguishes the stream from an earlier one of that name; 0: it was not recorded. cut: a
    stream cut behind its events and those of all that were committed together with it and had its epoch."""

    state: TxnState
    finished_ms: int
    stream_created_ms: int = 0
    cut: dict[int, int] | None = None


class GroupConfig(Record, frozen=True):
    """A reader group's configuration, kept and echoed as the client gave it. starts, ends: a stream cut for each
    stream, by "scope/stream"; an empty one is unbounded."""

    refresh_ms: int
    checkpoint_interval_ms: int
    max_outstanding_checkpoints: int
    retention_type: GroupRetention
    starts: dict[str, dict[int, int]]
    ends: dict[str, dict[int, int]] = {}
    rollover_size_bytes: int = 0


class ReaderGroupRecord(Record, frozen=True):
    """A reader group. `group_id` is a UUID that distinguishes it from others of the same name; `generation` counts
    the updates of its configuration."""

    config: GroupConfig
    group_id: str
    generation: int
    created_ms: int


class Subscriber(Record, frozen=True):
    """A reader group's subscription to one of its streams. `cut` is what it last published: retention may truncate
    nothing after it; empty: no constraint."""

    group_id: str
    generation: int
    cut: dict[int, int] = {}
    published_ms: int = 0


class ListedMark(Record, frozen=True):
    """Marks that the key's stream is listed: under a tag, or for rounds of retention or watermarks."""


Step = tuple[int, dict[int, int]]  # a time and a position, which has an offset per segment


class WriterMark(Record, frozen=True):
    """What a writer last noted: all its events up to `time` lie before `position`, which has an offset per segment.
    time: in the writer's own unit, usually milliseconds. alive: False once the writer is removed. steps: earlier times,
    each with a position that all events from after it lie behind as well; those that the next watermarks are made
    of."""

    time: int
    position: dict[int, int]
    alive: bool = True
    steps: tuple[Step, ...] = ()


class ScalingEntry(Record, frozen=True):
    """Something that was decided about a stream's segments, and why. number: counts the stream's entries. kind: split,
    merge or hot-key. epoch: the one that it was to begin; -1 if none. into: key ranges. rate, target: of what it was
    about, in `unit`. profile: whose rules decided."""

    number: int
    at_ms: int
    kind: str
    epoch: int
    segments: tuple[int, ...]
    into: tuple[tuple[float, float], ...]
    rate: float
    target: int
    unit: str
    why: str
    profile: str


class TableConfig(Record, frozen=True):
    """A key-value table's configuration. Its keys have `primary_key_bytes` + `secondary_key_bytes` bytes each."""

    partitions: int
    primary_key_bytes: int
    secondary_key_bytes: int
    rollover_size_bytes: int = 0


class KeyValueTableRecord(Record, frozen=True):
    """A key-value table; its segments never change."""

    config: TableConfig
    created_ms: int
    segments: tuple[EpochSegment, ...]


HistoryRecord = EpochChange | SealedSizes | EpochBase


class Number(Record, frozen=True):
    """A counter, or the last segment number of a deleted stream or key-value table."""

    value: int


class WorkflowRecord(Record, frozen=True):
    """A workflow that was started on one stream."""


class CreateWork(WorkflowRecord, frozen=True, tag="create"):
    config: StreamConfigRecord
    created_ms: int
    first_number: int
    with_mark: bool
    mark_first_number: int


class UpdateWork(WorkflowRecord, frozen=True, tag="update"):
    config: StreamConfigRecord


class ScaleWork(WorkflowRecord, frozen=True, tag="scale"):
    change: EpochChange


class TruncateWork(WorkflowRecord, frozen=True, tag="truncate"):
    cut: dict[int, int]
    delete: tuple[int, ...]


class SealWork(WorkflowRecord, frozen=True, tag="seal"):
    pass


class DeleteWork(WorkflowRecord, frozen=True, tag="delete"):
    streams: tuple[str, ...]  # the stream, and its mark stream if it has one of its own


class RollWork(WorkflowRecord, frozen=True, tag="roll"):
    """Commit of transactions of an older epoch, in two epochs of their own (`merge`, then `restore`)."""

    txn_epoch: int
    txn_ids: tuple[str, ...]
    merge: EpochChange
    restore: EpochChange


class DeleteScopeWork(WorkflowRecord, frozen=True, tag="scope"):
    """`version` is that of the scope's record, so that no later scope of its name is deleted."""

    recursive: bool
    version: int


class CreateGroupWork(WorkflowRecord, frozen=True, tag="create_group"):
    group: ReaderGroupRecord
    first_number: int


class UpdateGroupWork(WorkflowRecord, frozen=True, tag="update_group"):
    group: ReaderGroupRecord


class DeleteGroupWork(WorkflowRecord, frozen=True, tag="delete_group"):
    pass


class CreateTableWork(WorkflowRecord, frozen=True, tag="create_table"):
    table: KeyValueTableRecord


class DeleteTableWork(WorkflowRecord, frozen=True, tag="delete_table"):
    pass


AnyWork = (  # in the order in which they are resumed: inner ones, which others start as part of themselves, come first
    RollWork
    | ScaleWork
    | UpdateWork
    | TruncateWork
    | SealWork
    | CreateWork
    | DeleteWork
    | CreateGroupWork
    | UpdateGroupWork
    | DeleteGroupWork
    | CreateTableWork
    | DeleteTableWork
    | DeleteScopeWork
)
