"""The stored state of a reader group: one value under one key of the table `_RG<group>_kvtable`.

Readers change it by compare-and-set (`client/readergroup`; its GroupState defines the rules); servers only read it to
measure lag. Groups of other clients store their state elsewhere, in other formats.
"""

from __future__ import annotations

from enum import Enum
from uuid import UUID

import msgspec

from nadi.model.frontier import WAITING
from nadi.model.segments import SegmentRange, share_keys
from nadi.naming import parse_segment_name, segment_epoch

UNASSIGNED = ""
WITH_OUTPUTS = "2"
STATE_KEY = b"state"
NADIS_ID = b"nadi"  # prefix of the ids of nadi's groups
POSITIONS_EVERY_S = 1.0  # readers record their positions at least this often while these change
REPORTS_IN_LIFE = 4  # an idle reader's heartbeats within dead_after_ms


class NamedRange(msgspec.Struct, frozen=True, array_like=True):
    """A segment's name and key range: low ≤ position < high."""

    segment: str
    low: float
    high: float

    @property
    def stream(self) -> str:
        return self.segment.rpartition("/")[0]

    @property
    def epoch(self) -> int:
        return segment_epoch(parse_segment_name(self.segment)[2])

    def overlaps(self, other: NamedRange) -> bool:
        return share_keys(self, other) and self.stream == other.stream

    def as_range(self) -> SegmentRange:
        """Return the range with the segment's id."""
        return SegmentRange(parse_segment_name(self.segment)[2], self.low, self.high)


class SegmentState(msgspec.Struct, frozen=True, array_like=True):
    """A segment of the group. offset: where reading continues, or WAITING; owner: a reader, or UNASSIGNED."""

    keys: NamedRange
    offset: int
    owner: str = UNASSIGNED
    is_done: bool = False

    @property
    def is_waiting(self) -> bool:
        return self.offset == WAITING and not self.is_done

    @property
    def is_active(self) -> bool:
        """Whether it can be read now."""
        return not self.is_done and self.offset != WAITING


class ReaderState(msgspec.Struct, frozen=True, array_like=True):
    """A reader of the group. token: distinguishes it from earlier readers of the same name; beat: counts heartbeats."""

    token: str
    beat: int = 0


class CheckpointState(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint. pending: readers that haven't passed it; positions: recorded so far, by segment.

    is_silent: readers pass it without notifying the application, as for requested stream cuts;
    is_kept: it is never deleted, because it records that a condition was met.
    """

    name: str
    number: int
    is_silent: bool
    pending: tuple[str, ...]
    positions: dict[str, int]
    is_kept: bool = False

    @property
    def is_complete(self) -> bool:
        return not self.pending


class RecordedOutput(msgspec.Struct, frozen=True, array_like=True):
    """Transactions with the results of a segment's events from `start` to `end`, recorded with that position.

    transactions: pairs of target stream (`scope/stream`) and transaction id. Any reader that sees them commits them.
    """

    start: int
    end: int
    transactions: tuple[tuple[str, str], ...]


class EndOf(msgspec.Struct, frozen=True, array_like=True):
    """The offset of an end cut in one of its segments; -1 before the segment."""

    keys: NamedRange
    offset: int


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """Intervals of a group: readers' polls, the timeout of silent readers, and automatic checkpoints (0: never)."""

    refresh_ms: int = 500
    dead_after_ms: int = 10_000
    checkpoint_interval_ms: int = 0


class StreamDataRetention(Enum):
    """Whether a group delays the retention of its streams; values as in Pravega's protocol.

    A stream retains events after the release position of each group, up to its retention policy's maximum.
    NONE: the group doesn't delay retention. MANUAL_RELEASE_AT_USER_STREAMCUT: the release position is set by
    `update_retention_stream_cut`. AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT: it is the last complete checkpoint.
    """

    NONE = 0
    MANUAL_RELEASE_AT_USER_STREAMCUT = 1
    AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT = 2


class GroupRecord(msgspec.Struct, frozen=True):
    """A group's complete state. generation counts resets; checkpoints_made counts checkpoints."""

    group_id: str
    streams: tuple[str, ...]
    segments: dict[str, SegmentState]
    ends: dict[str, EndOf] = {}
    timing: Timing = Timing()
    readers: dict[str, ReaderState] = {}
    checkpoints: tuple[CheckpointState, ...] = ()
    checkpoints_made: int = 0
    generation: int = 0
    retention: StreamDataRetention = StreamDataRetention.NONE
    outputs: dict[str, RecordedOutput] = {}  # by segment, until they are committed
    # layout of this record, incremented with each change; a string if it has outputs, so that versions that don't
    # know outputs reject the record instead of dropping them
    layout: int | str = 1

    def positions(self) -> dict[str, int]:
        return {name: segment.offset for name, segment in self.segments.items()}

    @property
    def recorded_every_s(self) -> float:
        """The maximum age of a recorded position while its reader responds."""
        life_s = self.timing.dead_after_ms / 1000 / REPORTS_IN_LIFE
        return min(POSITIONS_EVERY_S, life_s) + self.timing.refresh_ms / 1000


def is_nadis(group_id: str) -> bool:
    """Return whether the id belongs to a group with this state format.

    >>> is_nadis("6e616469-0000-0000-0000-000000000000"), is_nadis("00000000-0000-0000-0000-000000000000")
    (True, False)
    >>> is_nadis("?")
    False
    """
    try:
        return UUID(group_id).bytes.startswith(NADIS_ID)
    except ValueError:
        return False
