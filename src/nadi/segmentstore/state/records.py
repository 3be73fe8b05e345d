"""The state of one segment in memory: its length, its extents, and its settings.

An extent locates a run of the segment's bytes: in a frame of the log, or in a chunk. Moving bytes to tier 2, merging
and compacting only exchange extents; no byte changes its offset.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter

import msgspec

from nadi.limits import WAKES_A_TURN
from nadi.segmentstore.tier1.log import LogAddress

Waiter = Callable[[], None]


class SegmentKind(IntEnum):
    STREAM = 0
    TABLE = 1
    TRANSIENT = 2


class FrameRef:
    """One frame of the log with bytes stored nowhere else; shared by its extents."""

    __slots__ = ("address", "aside_bytes", "at", "live_bytes", "segments", "sequence")

    def __init__(self, sequence: int, address: LogAddress | None, at: float) -> None:
        self.sequence = sequence
        self.address = address
        self.live_bytes = 0
        self.aside_bytes = 0  # damaged bytes among them, which can't be moved to tier 2
        self.at = at  # on the monotonic clock
        self.segments: list[int] = []  # ids of segments that have, or had, bytes here


class Extent(msgspec.Struct, eq=False, gc=False):
    """The location of `length` bytes of a segment from `offset` on: in `frame` at `position`, or at the start of
    `chunk`. run: the separate file with the bytes at `position`, referred to by `frame` (`tier1.blob_files`), or 0.
    checksums: of a chunk's blocks (`tier2.checksums`), of the part of a frame, or of the bytes in `run`; empty if the
    frame lost them. continues: it starts within an event that an earlier extent started. aside: it is damaged, so the
    storage writer skips it. There may be one for each event of the last seconds, so it is cheap to create, and not
    tracked by the garbage collector."""

    offset: int
    length: int
    frame: FrameRef | None
    position: int
    chunk: str = ""
    checksums: bytes = b""
    continues: bool = False
    aside: bool = False
    run: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.length


_OFFSET = attrgetter("offset")


_NO_CUT = 1 << 63


@dataclass(frozen=True, slots=True)
class StoredTimes:
    """A checkpoint's changes to a segment's time index: by clock, the entries to write, and the time from which older
    entries are deleted first; entries up to the start offset aren't needed."""

    entries: Mapping[int, Mapping[int, int]]
    cut: Mapping[int, int]
    start_offset: int


@dataclass(slots=True)
class Times:
    """Entries of a segment's time index that are not on disk yet: by clock, times with their offsets, in order. cut: by
    clock, the time from which entries on disk are invalid. cutting: the same for a checkpoint in progress."""

    entries: dict[int, dict[int, int]] = field(default_factory=dict)
    cut: dict[int, int] = field(default_factory=dict)
    cutting: dict[int, int] = field(default_factory=dict)

    def of(self, clock: int) -> dict[int, int]:
        return self.entries.setdefault(clock, {})

    def valid_to(self, clock: int) -> int:
        """Return the last time at which an entry on disk is valid."""
        return min(self.cut.get(clock, _NO_CUT), self.cutting.get(clock, _NO_CUT)) - 1

    @property
    def is_stored(self) -> bool:
        return not any(self.entries.values()) and not self.cut

    def to_store(self, start_offset: int) -> StoredTimes:
        """Return a checkpoint's changes; call `stored` or `not_stored` afterwards."""
        self.cutting, self.cut = self.cut, {}
        return StoredTimes(
            {clock: dict(entries) for clock, entries in self.entries.items() if entries}, self.cutting, start_offset
        )

    def stored(self, times: StoredTimes) -> None:
        self.cutting = {}
        for clock, written in times.entries.items():
            entries = self.entries[clock]
            for time, offset in written.items():
                if entries.get(time) == offset:  # else it was trimmed or replaced meanwhile
                    del entries[time]

    def not_stored(self) -> None:
        for clock, time in self.cutting.items():
            self.cut[clock] = min(time, self.cut.get(clock, time))
        self.cutting = {}


class Waiters:
    """Callbacks waiting for changes of one segment, in order of arrival. Each is called once; many are called a few per
    turn of the loop, so that a hundred thousand reads at one tail don't block everything else."""

    __slots__ = ("_due", "_order", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[Waiter, None] = {}
        self._due: dict[Waiter, None] = {}  # woken, but not called yet
        self._order: list[Waiter] = []  # of `_due`, the next one last; may include discarded ones

    def __len__(self) -> int:
        return len(self._waiting) + len(self._due)

    def add(self, waiter: Waiter) -> None:
        self._waiting[waiter] = None

    def discard(self, waiter: Waiter) -> None:
        """Remove a waiter, which isn't called any more."""
        self._waiting.pop(waiter, None)
        self._due.pop(waiter, None)

    def wake(self) -> None:
        """Call all current waiters: the first ones at once, the others in later turns of the loop."""
        waiting = self._waiting
        if not self._due and len(waiting) == 1:
            waiting.popitem()[0]()
        elif waiting:
            self._waiting = {}
            is_arranged = bool(self._due)
            # a list, because finding a dict's first key skips all removed ones, which is quadratic in all
            self._order[:0] = reversed(waiting)
            self._due |= waiting
            if not is_arranged:
                self._call()

    def _call(self) -> None:
        due, order = self._due, self._order
        for _ in range(min(len(order), WAKES_A_TURN)):
            waiter = order.pop()
            if waiter in due:
                del due[waiter]
                waiter()
        if due:
            asyncio.get_running_loop().call_soon(self._call)
        else:
            order.clear()


@dataclass(slots=True, eq=False, weakref_slot=True)  # waiting reads refer to it weakly
class SegmentRecord:
    """One segment. `length` and `sealed` run ahead of the log; readers see only `durable_*`."""

    id: int
    name: str
    kind: int
    created_ms: int
    modified_ms: int = 0
    appended_ms: int = 0  # for this and the next two see `time_index`
    entered_ms: int = 0
    entered_offset: int = 0
    start_offset: int = 0
    length: int = 0
    durable_length: int = 0
    sealed: bool = False
    durable_sealed: bool = False
    deleted: bool = False
    exists: bool = False  # durably
    is_stored: bool = False  # by a checkpoint
    is_listed: bool | None = None  # by the last checkpoint, as one with bytes in the log; None if unknown
    scale_type: int = 0
    target_rate: int = 0
    rollover_bytes: int = 0
    key_length: int = 0
    event_count: int = 0
    entry_count: int = 0
    table_length: int = 0
    extents: list[Extent] = field(default_factory=list)
    log_bytes: int = 0  # of the extents in the log
    stored_length: int = 0  # at the last checkpoint: no extent is stored from this offset on
    attributes: dict[bytes, int] = field(default_factory=dict)
    attributes_loaded: bool = True
    overlay: dict[bytes, tuple[int, bytes | None]] = field(default_factory=dict)  # entries since the last checkpoint
    times: Times = field(default_factory=Times)  # entries of its time index since the last checkpoint
    changed_attributes: set[bytes] = field(default_factory=set)
    changed_extents: dict[int, Extent | None] = field(default_factory=dict)  # by offset; None: gone
    waiters: Waiters = field(default_factory=Waiters)  # at its tail
    holders: int = 0  # callers that need this object across an await

    def __post_init__(self) -> None:
        self.modified_ms = self.appended_ms = self.entered_ms = self.created_ms

    def continues_at(self, offset: int) -> bool:
        """Return whether an append at `offset` continues an event: a transient segment takes a large event in pieces;
        elsewhere an append has complete events."""
        return offset > 0 and self.kind == SegmentKind.TRANSIENT

    def extent_index(self, offset: int) -> int:
        """Return the index of the extent that contains `offset`, which must exist."""
        return bisect_right(self.extents, offset, key=_OFFSET) - 1

    def extents_exactly(self, offset: int, length: int) -> tuple[int, int] | None:
        """Return the extents [first, last) that cover exactly this range, or None."""
        if self.deleted or not self.extents or offset < self.extents[0].offset:
            return None
        first = self.extent_index(offset)
        if self.extents[first].offset != offset:
            return None
        last = first
        while last < len(self.extents) and self.extents[last].end <= offset + length:
            last += 1
        return (first, last) if last > first and self.extents[last - 1].end == offset + length else None
