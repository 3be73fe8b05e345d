"""The shared state of a group's readers, as an immutable value.

No clock, no randomness, no I/O. `GroupState.apply` returns the next state or raises; `updates` defines all changes,
and `stored_state` stores the result by compare-and-set. Invariants:

- Each segment appears once, so it has at most one owner. An owned or free segment has an offset; a waiting segment has
  -1; a done segment (its end cut is reached, or its stream is sealed there) stays for stream cuts.
- A segment waits until every older segment with any of its keys was read to its end, by any reader; so the group reads
  each key's events in order.
- A checkpoint fixes the position of each segment present when it is created: immediately for an unassigned segment,
  otherwise when its reader passes the checkpoint, dies, or releases the segment. A reader acquires no segment before
  it has passed. So all positions together are a boundary of the streams, and each reader had read exactly the events
  before its positions when it passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from msgspec.structs import replace

from nadi.errors import InvalidStreamCutError, ReaderOfflineError
from nadi.limits import READER_GROUP_CHECKPOINTS
from nadi.model.frontier import WAITING, may_begin
from nadi.model.readergroup import (
    UNASSIGNED,
    CheckpointState,
    EndOf,
    GroupRecord,
    NamedRange,
    ReaderState,
    SegmentState,
    StreamDataRetention,
    Timing,
)
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import parse_segment_name


class GroupState(GroupRecord, frozen=True):
    """The stored record of a group, with the rules for changing it."""

    def apply(self, *updates: Update) -> GroupState:
        state = self
        for update in updates:
            state = update.apply_to(state)
        return state

    # --- inspection -------------------------------------------------------------------------

    def owned_by(self, reader: str) -> dict[str, SegmentState]:
        return {name: segment for name, segment in self.segments.items() if segment.owner == reader}

    @property
    def unassigned(self) -> list[str]:
        return [name for name, segment in self.segments.items() if segment.is_active and segment.owner == UNASSIGNED]

    @property
    def is_completed(self) -> bool:
        """Whether everything up to the end cuts, or the ends of sealed streams, was read."""
        return all(segment.is_done for segment in self.segments.values())

    def end_of(self, segment: str) -> int | None:
        end = self.ends.get(segment)
        return None if end is None else end.offset

    def checkpoint(self, name: str) -> CheckpointState | None:
        return next((checkpoint for checkpoint in self.checkpoints if checkpoint.name == name), None)

    def pending_for(self, reader: str) -> list[CheckpointState]:
        return [checkpoint for checkpoint in self.checkpoints if reader in checkpoint.pending]

    def member(self, reader: str, token: str) -> ReaderState:
        """Return the reader; ReaderOfflineError if it was taken offline."""
        if not self.has_member(reader, token):
            raise ReaderOfflineError(reader)
        return self.readers[reader]

    def has_member(self, reader: str, token: str) -> bool:
        member = self.readers.get(reader)
        return member is not None and member.token == token

    def is_beyond_the_end(self, keys: NamedRange) -> bool:
        """Return whether the segment follows a segment of the end cut."""
        end = self.ends.get(keys.segment)
        if end is not None:
            return end.offset < 0
        return any(end.keys.overlaps(keys) and keys.epoch > end.keys.epoch for end in self.ends.values())

    # --- steps shared by updates ------------------------------------------------------------

    def with_segments(self, changed: Mapping[str, SegmentState], without: Iterable[str] = ()) -> GroupState:
        """Return the state with segments changed or removed, and with segments ended or started as a result."""
        segments = {**self.segments, **changed}
        for name in without:
            del segments[name]
        for name, segment in changed.items():
            end = self.end_of(name)
            if segment.is_active and end is not None and segment.offset >= end:
                segments[name] = replace(segment, owner=UNASSIGNED, is_done=True)
        for name in _startable(segments):
            started = replace(segments[name], offset=0)
            segments[name] = replace(started, is_done=True) if self.end_of(name) == 0 else started
        return replace(self, segments=segments)

    def with_recorded(self, reader: str, positions: Mapping[str, int]) -> GroupState:
        """Record the positions of segments that the reader releases, in the checkpoints it hasn't passed."""
        checkpoints = tuple(
            replace(checkpoint, positions={**positions, **checkpoint.positions})
            if reader in checkpoint.pending
            else checkpoint
            for checkpoint in self.checkpoints
        )
        return replace(self, checkpoints=checkpoints)

    def with_passed(self, reader: str, number: int | None, positions: Mapping[str, int]) -> GroupState:
        """Record that the reader has passed checkpoint `number` (None: all of them) at these positions."""
        checkpoints = tuple(
            replace(
                checkpoint,
                pending=tuple(other for other in checkpoint.pending if other != reader),
                positions={**positions, **checkpoint.positions},
            )
            if reader in checkpoint.pending and number in (None, checkpoint.number)
            else checkpoint
            for checkpoint in self.checkpoints
        )
        complete = [
            checkpoint.number for checkpoint in checkpoints if checkpoint.is_complete and not checkpoint.is_kept
        ]
        dropped = complete[: max(0, len(complete) - READER_GROUP_CHECKPOINTS)]
        return replace(
            self, checkpoints=tuple(checkpoint for checkpoint in checkpoints if checkpoint.number not in dropped)
        )


class Update(Protocol):
    """A change of the state; all kinds are in `updates`."""

    def apply_to(self, state: GroupState) -> GroupState: ...


def first_state(
    group_id: str,
    starts: Iterable[tuple[NamedRange, int]],
    ends: Iterable[tuple[NamedRange, int]] = (),
    *,
    streams: Iterable[str],
    timing: Timing | None = None,
    retention: StreamDataRetention = StreamDataRetention.NONE,
) -> GroupState:
    """Return the state of a new group at these offsets; InvalidStreamCutError if they aren't a boundary."""
    state = GroupState(
        group_id,
        tuple(streams),
        {},
        {keys.segment: EndOf(keys, offset) for keys, offset in ends},
        timing or Timing(),
        retention=retention,
    )
    return start_segments(state, segments_of(starts))


def segments_of(starts: Iterable[tuple[NamedRange, int]]) -> dict[str, SegmentState]:
    return {keys.segment: SegmentState(keys, max(offset, WAITING)) for keys, offset in starts}


def cuts_of(positions: Mapping[str, int]) -> dict[str, StreamCut]:
    """Convert positions by segment to a stream cut for each stream (`scope/stream`)."""
    streams: dict[str, dict[int, int]] = {}
    for name, offset in positions.items():
        scope, stream, segment_id = parse_segment_name(name)
        streams.setdefault(f"{scope}/{stream}", {})[segment_id] = offset
    return {key: cut_of(key, offsets) for key, offsets in sorted(streams.items())}


def cut_of(stream: str, positions: Mapping[int, int]) -> StreamCut:
    scope, _, name = stream.partition("/")
    return StreamCut(scope, name, positions)


def start_segments(state: GroupState, segments: Mapping[str, SegmentState]) -> GroupState:
    """Add the segments of a cut to the state; InvalidStreamCutError if two active ones share keys."""
    for ranges in _by_stream(segments).values():
        active = [piece for name, piece in ranges.items() if segments[name].is_active]
        if len(may_begin(active, [piece.segment_id for piece in active])) < len(active):
            raise InvalidStreamCutError("the cut is not a boundary: two of its segments share keys")
    beyond = {name: replace(s, is_done=True) for name, s in segments.items() if state.is_beyond_the_end(s.keys)}
    return state.with_segments({**segments, **beyond})


def _startable(segments: Mapping[str, SegmentState]) -> Iterator[str]:
    """Yield the waiting segments that share no keys with older segments."""
    if not any(segment.is_waiting for segment in segments.values()):
        return
    for ranges in _by_stream({name: segment for name, segment in segments.items() if not segment.is_done}).values():
        names = {piece.segment_id: name for name, piece in ranges.items()}
        waiting = [piece.segment_id for name, piece in ranges.items() if segments[name].is_waiting]
        yield from (names[segment_id] for segment_id in may_begin(ranges.values(), waiting))


def _by_stream(segments: Mapping[str, SegmentState]) -> dict[str, dict[str, SegmentRange]]:
    """Return the key ranges of segments by name, for each stream."""
    streams: dict[str, dict[str, SegmentRange]] = {}
    for name, segment in segments.items():
        streams.setdefault(segment.keys.stream, {})[name] = segment.keys.as_range()
    return streams
