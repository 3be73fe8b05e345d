"""The state of one segment in memory: its length, its extents, and what it was told.

An extent says where a run of the segment's bytes lies: in a frame of the log, or in a chunk object.
Moving bytes to tier 2, merging and compacting only exchange extents; no byte changes its offset.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum
from operator import attrgetter

from nadi.segmentstore.state.waiters import Waiters
from nadi.segmentstore.tier1.log import LogAddress


class Kind(IntEnum):
    STREAM = 0
    TABLE = 1
    TRANSIENT = 2


class FrameRef:
    """One frame of the log that still holds bytes which are nowhere else; shared by its extents."""

    __slots__ = ("address", "aside_bytes", "at", "live_bytes", "segments", "sequence")

    def __init__(self, sequence: int, address: LogAddress | None, at: float) -> None:
        self.sequence = sequence
        self.address = address
        self.live_bytes = 0
        self.aside_bytes = 0  # of them, those that are damaged and so can't be moved to tier 2
        self.at = at  # on the monotonic clock
        self.segments: list[int] = []  # ids of those that have, or had, bytes here


class Extent:
    """`length` bytes of a segment from `offset` on: in `frame` at `position`, or in `chunk` from its start.

    checksums: of a chunk's blocks (`tier2.checksums`), or of the part of a frame; earlier versions had none.
    continues: it begins within an event, which an extent before it began; earlier versions didn't say so.
    aside: it is damaged, so the storage writer leaves it where it is.
    """

    __slots__ = ("aside", "checksums", "chunk", "continues", "frame", "length", "offset", "position")

    def __init__(
        self,
        offset: int,
        length: int,
        frame: FrameRef | None,
        position: int,
        chunk: str = "",
        checksums: bytes = b"",
        *,
        continues: bool = False,
    ) -> None:
        self.offset = offset
        self.length = length
        self.frame = frame
        self.position = position
        self.chunk = chunk
        self.checksums = checksums
        self.continues = continues
        self.aside = False

    @property
    def end(self) -> int:
        return self.offset + self.length


_OFFSET = attrgetter("offset")


class SegmentRecord:
    """One segment. `length` and `sealed` run ahead of the log; readers see `durable_*` only."""

    __slots__ = (
        "__weakref__",  # for those who wait, which nothing strong is to lead to and from
        "appended_ms",
        "attributes",
        "attributes_loaded",
        "changed_attributes",
        "changed_extents",
        "created_ms",
        "deleted",
        "durable_length",
        "durable_sealed",
        "entered_ms",
        "entered_offset",
        "entry_count",
        "event_count",
        "exists",
        "extents",
        "holders",
        "id",
        "key_length",
        "kind",
        "length",
        "log_bytes",
        "modified_ms",
        "moments",
        "name",
        "overlay",
        "rollover_bytes",
        "scale_type",
        "sealed",
        "start_offset",
        "table_length",
        "target_rate",
        "waiters",
    )

    def __init__(self, id: int, name: str, kind: int, created_ms: int) -> None:
        self.id = id
        self.name = name
        self.kind = kind
        self.created_ms = self.modified_ms = created_ms
        self.appended_ms = self.entered_ms = created_ms  # see `moments`
        self.entered_offset = 0
        self.start_offset = self.length = self.durable_length = 0
        self.sealed = self.durable_sealed = self.deleted = False
        self.exists = False  # durably
        self.scale_type = self.target_rate = self.rollover_bytes = self.key_length = 0
        self.event_count = self.entry_count = self.table_length = 0
        self.extents: list[Extent] = []
        self.log_bytes = 0  # of the extents that are in the log
        self.attributes: dict[bytes, int] = {}
        self.attributes_loaded = True
        self.overlay: dict[bytes, tuple[int, bytes | None]] = {}  # table entries since the last checkpoint
        self.moments: dict[int, int] = {}  # entries of its time index since the last checkpoint
        self.changed_attributes: set[bytes] = set()
        self.changed_extents: dict[int, Extent | None] = {}  # by offset; None: gone
        self.waiters = Waiters()  # at its tail
        self.holders = 0  # of whoever needs this very object across an await

    def continues_at(self, offset: int) -> bool:
        """Whether what is appended there goes on with an event: a transient segment takes a large one in pieces, and
        anywhere else an append holds whole events."""
        return offset > 0 and self.kind == Kind.TRANSIENT

    def extent_index(self, offset: int) -> int:
        """Index of the extent that holds `offset`; the caller knows that one does."""
        return bisect_right(self.extents, offset, key=_OFFSET) - 1
