"""Records that the controller stores in table segments: msgpack structs, each small enough for one table value.

`metadata` documents where each is stored. Records are immutable; a change writes a new one, conditional on the version
that was read. Fields are encoded as arrays, so new ones are added at the end, with a default.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from nadi.model.load import ScaleType
from nadi.model.quotas import QuotaLimits
from nadi.model.segments import SegmentRange


class RetentionType(IntEnum):
    NONE = 0
    TIME = 1
    SIZE = 2


class StreamState(IntEnum):
    ACTIVE = 0
    SEALING = 1
    SEALED = 2


class GroupRetention(IntEnum):
    """A reader group's protection from retention: nothing, data after a cut that its user publishes, or data after its
    last checkpoint."""

    NONE = 0
    MANUAL = 1
    AUTOMATIC = 2


class ScopeState(IntEnum):
    """DELETING: nothing new can be created in the scope, and its deletion is in progress."""

    ACTIVE = 0
    DELETING = 1


class TxnState(IntEnum):
    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


class Record(msgspec.Struct, frozen=True, array_like=True):
    """Base of all records stored as table values."""


class StreamConfigRecord(Record, frozen=True):
    """A stream's configuration, stored and returned exactly as the client gave it."""

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
    event_time: str = ""  # in the form of `nadi.model.event_time`
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
    """An epoch's difference from the previous one. `reference` is the epoch whose ranges it repeats."""

    epoch: int
    reference: int
    created_ms: int
    removed: tuple[int, ...]
    added: tuple[EpochSegment, ...]


class EpochBase(Record, frozen=True, tag="base"):
    """The oldest epoch that isn't forgotten, with all its segments; records of older epochs are invalid and will be
    removed. began_ms: for each segment, when its own epoch began. cleared: records before this epoch are removed."""

    epoch: int
    reference: int
    created_ms: int
    segments: tuple[EpochSegment, ...]
    began_ms: tuple[int, ...]
    cleared: int


class SealedSizes(Record, frozen=True, tag="sizes"):
    """Lengths of the segments that one epoch replaced, or that were current when the stream was sealed."""

    sizes: dict[int, int]


class Scope(Record, frozen=True):
    created_ms: int
    state: ScopeState = ScopeState.ACTIVE


class StreamRecord(Record, frozen=True):
    """A stream's current state. `head` is the cut it was truncated at; empty: never truncated."""

    config: StreamConfigRecord
    created_ms: int
    state: StreamState
    epoch: int
    reference: int
    epoch_created_ms: int
    segments: tuple[EpochSegment, ...]
    head: dict[int, int] = {}
    internal: bool = False  # a mark stream, created and deleted with its stream


class TransactionRecord(Record, frozen=True):
    """An unfinished transaction. epoch: the (reference) epoch of its segments. expires_ms, max_ms: the ends of its
    lease and its maximum lifetime when it was created or last pinged; only their difference matters. group: the commit
    number of the first transaction of its group commit; 0 if it is committed alone."""

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
    """The outcome of a transaction. stream_created_ms: distinguishes the stream from a former one of that name; 0 if
    unknown. cut: a stream cut after its events and those of its group commit that have the same epoch."""

    state: TxnState
    finished_ms: int
    stream_created_ms: int = 0
    cut: dict[int, int] | None = None


class GroupConfig(Record, frozen=True):
    """A reader group's configuration, stored and returned exactly as the client gave it. starts, ends: stream cuts by
    "scope/stream"; an empty one is unbounded."""

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
    """A reader group's subscription to a stream. cut: the last one it published, after which retention may not
    truncate; empty: no constraint."""

    group_id: str
    generation: int
    cut: dict[int, int] = {}
    published_ms: int = 0


class ListedMark(Record, frozen=True):
    """Marks the key's stream as listed: under a tag, or for rounds of retention or watermarks."""


Step = tuple[int, dict[int, int]]  # a time and a position, an offset per segment


class WriterMark(Record, frozen=True):
    """A writer's last mark: all its events up to `time` precede `position`, which has an offset per segment. time: in
    the writer's unit, usually milliseconds. alive: False once the writer is removed. steps: earlier times, each with a
    position that all the writer's later events follow, for the next watermarks."""

    time: int
    position: dict[int, int]
    alive: bool = True
    steps: tuple[Step, ...] = ()


class ScalingEntry(Record, frozen=True):
    """A scaling decision with its reason. number: counts the stream's entries. kind: split, merge or hot-key. epoch:
    the epoch it was to start; -1 if none. into: key ranges. rate, target: of the segments, in `unit`. profile: that of
    the decider."""

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


class QuotaRecord(Record, frozen=True):
    """The limits of a scope or user."""

    limits: QuotaLimits


class Number(Record, frozen=True):
    """A counter, or the last segment number of a deleted stream or key-value table."""

    value: int


class WorkflowRecord(Record, frozen=True):
    """An unfinished workflow of a stream."""


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
    streams: tuple[str, ...]  # the stream, and its mark stream if it has one


class RollWork(WorkflowRecord, frozen=True, tag="roll"):
    """The commit of transactions of an older epoch, in two additional epochs (`merge`, then `restore`)."""

    txn_epoch: int
    txn_ids: tuple[str, ...]
    merge: EpochChange
    restore: EpochChange


class DeleteScopeWork(WorkflowRecord, frozen=True, tag="scope"):
    """`version` is the version of the scope's record, so that a later scope of this name isn't deleted."""

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


AnyWork = (  # in the order of resumption: workflows that others start as a step come first
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
