"""What the readers of a group agree on, as it is stored: one value under one key of the table `_RG<group>_kvtable`.

The readers read and change it (`client/readergroup`, whose GroupState adds the rules); others only look, to say how far
the group has got. Groups of other clients keep their state elsewhere, in forms of their own.
"""

from __future__ import annotations

from enum import Enum
from uuid import UUID

import msgspec

from nadi.model.frontier import WAITING
from nadi.model.segments import SegmentRange, share_keys
from nadi.naming import parse_segment_name, segment_epoch

NOBODY = ""
WITH_OUTPUTS = "2"
STATE_KEY = b"state"
NADIS_ID = b"nadi"  # the first bytes of the ids of nadi's groups
POSITIONS_EVERY_S = 1.0  # readers record their positions at least this often while these change
REPORTS_IN_LIFE = 4  # a reader without news still reports this often before it would be taken for dead


class NamedRange(msgspec.Struct, frozen=True, array_like=True):
    """A segment by its name, and the keys it takes: low ≤ position < high."""

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
        """The segment by its id, as a range within its stream."""
        return SegmentRange(parse_segment_name(self.segment)[2], self.low, self.high)


class SegmentState(msgspec.Struct, frozen=True, array_like=True):
    """offset: where the group continues in it, or WAITING; owner: a reader, or NOBODY."""

    keys: NamedRange
    offset: int
    owner: str = NOBODY
    is_done: bool = False

    @property
    def is_waiting(self) -> bool:
        return self.offset == WAITING and not self.is_done

    @property
    def is_active(self) -> bool:
        """Whether it is being read, or could be."""
        return not self.is_done and self.offset != WAITING


class ReaderState(msgspec.Struct, frozen=True, array_like=True):
    """token: distinguishes this reader from an earlier one of the same name; beat: counts its reports."""

    token: str
    beat: int = 0


class CheckpointState(msgspec.Struct, frozen=True, array_like=True):
    """pending: the readers that have not passed it; positions: of the segments so far.

    is_silent: readers pass it without notifying the application, as for requested stream cuts;
    is_kept: it isn't forgotten, because it records that a condition was met.
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
    """Transactions that hold what was made of a segment's events from `start` to `end`, recorded with that position:
    each as the stream written to (`scope/stream`) and its id. They are to be committed, by whoever finds them."""

    start: int
    end: int
    transactions: tuple[tuple[str, str], ...]


class EndOf(msgspec.Struct, frozen=True, array_like=True):
    """Where an end cut lies in one of its segments; -1: before it."""

    keys: NamedRange
    offset: int


class Timing(msgspec.Struct, frozen=True, array_like=True):
    """How often readers look, how long one may be silent, and how often checkpoints are made (0: never)."""

    refresh_ms: int = 500
    dead_after_ms: int = 10_000
    checkpoint_interval_ms: int = 0


class StreamDataRetention(Enum):
    """Whether a group holds back the retention of its streams; the values are those of Pravega's protocol.

    A stream keeps what lies after the release of any of its groups, as long as its retention policy's maximum
    allows. NONE: as if there were no group. MANUAL_RELEASE_AT_USER_STREAMCUT: released by
    `update_retention_stream_cut`. AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT: up to the last complete checkpoint.
    """

    NONE = 0
    MANUAL_RELEASE_AT_USER_STREAMCUT = 1
    AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT = 2


class GroupRecord(msgspec.Struct, frozen=True):
    """A group's complete state. `generation` counts resets, `checkpoints_made` checkpoints."""

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
    outputs: dict[str, RecordedOutput] = {}  # by segment, until they are committed; see `outputs`
    # of this record: a later nadi that changes it counts it up; with outputs a text, so that one that knows of none,
    # and would drop them, refuses the record
    layout: int | str = 1

    def positions(self) -> dict[str, int]:
        return {name: segment.offset for name, segment in self.segments.items()}

    @property
    def recorded_every_s(self) -> float:
        """How old a position can be while a reader is at work and answers."""
        life_s = self.timing.dead_after_ms / 1000 / REPORTS_IN_LIFE
        return min(POSITIONS_EVERY_S, life_s) + self.timing.refresh_ms / 1000


def is_nadis(group_id: str) -> bool:
    """Whether the id is that of a group whose state has this form.

    >>> is_nadis("6e616469-0000-0000-0000-000000000000"), is_nadis("00000000-0000-0000-0000-000000000000")
    (True, False)
    >>> is_nadis("?")
    False
    """
    try:
        return UUID(group_id).bytes.startswith(NADIS_ID)
    except ValueError:
        return False
