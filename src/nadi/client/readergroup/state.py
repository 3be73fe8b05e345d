"""What the readers of a group agree on, as a value.

No clock, no randomness, no I/O. `GroupState.apply` returns the next state or raises, and never changes the one it is
called on; `updates` holds every way it may change, `stored_state` stores the result if nobody else was faster.
What always holds:

- Each segment appears once, so it has one owner or none. A segment that is owned or free to be taken has an
  offset; one that waits has -1; one that is done (its end cut is reached, or its stream is sealed there)
  is kept for stream cuts.
- A segment waits until every older one that holds any of its keys was read to its end, by whichever
  reader; so each key's events are read in order by the group.
- A checkpoint fixes the position of each segment present when it is made: at once if nobody has the segment,
  otherwise when its reader passes the checkpoint, dies, or gives the segment away. A reader takes no
  segment before it has passed. So all positions together are one boundary of the streams, and each
  reader had read exactly what lies before it when it passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from msgspec.structs import replace

from nadi.errors import InvalidStreamCutError, ReaderOfflineError
from nadi.limits import READER_GROUP_CHECKPOINTS
from nadi.model.frontier import WAITING, may_begin
from nadi.model.readergroup import (
    NOBODY,
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
    def apply(self, *updates: Update) -> GroupState:
        state = self
        for update in updates:
            state = update.apply_to(state)
        return state

    # --- what there is ----------------------------------------------------------------------

    def owned_by(self, reader: str) -> dict[str, SegmentState]:
        return {name: segment for name, segment in self.segments.items() if segment.owner == reader}

    @property
    def unassigned(self) -> list[str]:
        return [name for name, segment in self.segments.items() if segment.is_active and segment.owner == NOBODY]

    @property
    def is_completed(self) -> bool:
        """Whether everything up to the end cuts, or to the ends of sealed streams, was read."""
        return all(segment.is_done for segment in self.segments.values())

    def end_of(self, segment: str) -> int | None:
        end = self.ends.get(segment)
        return None if end is None else end.offset

    def checkpoint(self, name: str) -> CheckpointState | None:
        return next((one for one in self.checkpoints if one.name == name), None)

    def pending_for(self, reader: str) -> list[CheckpointState]:
        return [one for one in self.checkpoints if reader in one.pending]

    def member(self, reader: str, token: str) -> ReaderState:
        """Return the reader; ReaderOfflineError if it was taken offline."""
        if not self.has_member(reader, token):
            raise ReaderOfflineError(reader)
        return self.readers[reader]

    def has_member(self, reader: str, token: str) -> bool:
        held = self.readers.get(reader)
        return held is not None and held.token == token

    def is_beyond_the_end(self, keys: NamedRange) -> bool:
        """Whether the segment follows one in which the end cut lies."""
        end = self.ends.get(keys.segment)
        if end is not None:
            return end.offset < 0
        return any(end.keys.overlaps(keys) and keys.epoch > end.keys.epoch for end in self.ends.values())

    # --- steps that updates share -----------------------------------------------------------

    def with_segments(self, changed: Mapping[str, SegmentState], without: Iterable[str] = ()) -> GroupState:
        """Return the state with segments changed or removed, and those ended or started that follow from it."""
        segments = {**self.segments, **changed}
        for name in without:
            del segments[name]
        for name, segment in changed.items():
            end = self.end_of(name)
            if segment.is_active and end is not None and segment.offset >= end:
                segments[name] = replace(segment, owner=NOBODY, is_done=True)
        for name in _free_to_begin(segments):
            begun = replace(segments[name], offset=0)
            segments[name] = replace(begun, is_done=True) if self.end_of(name) == 0 else begun
        return replace(self, segments=segments)

    def with_recorded(self, reader: str, positions: Mapping[str, int]) -> GroupState:
        """Record positions of segments that the reader gives away, for the checkpoints it has not passed."""
        checkpoints = tuple(
            replace(one, positions={**positions, **one.positions}) if reader in one.pending else one
            for one in self.checkpoints
        )
        return replace(self, checkpoints=checkpoints)

    def with_passed(self, reader: str, number: int | None, positions: Mapping[str, int]) -> GroupState:
        """Record that the reader has passed checkpoint `number` (None: all of them) at these positions."""
        checkpoints = tuple(
            replace(
                one,
                pending=tuple(other for other in one.pending if other != reader),
                positions={**positions, **one.positions},
            )
            if reader in one.pending and number in (None, one.number)
            else one
            for one in self.checkpoints
        )
        complete = [one.number for one in checkpoints if one.is_complete and not one.is_kept]
        forgotten = complete[: max(0, len(complete) - READER_GROUP_CHECKPOINTS)]
        return replace(self, checkpoints=tuple(one for one in checkpoints if one.number not in forgotten))


class Update(Protocol):
    """One change of the state; all kinds are in `updates`."""

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
    """Return a group that starts at these segments and offsets; InvalidStreamCutError if they aren't a boundary."""
    state = GroupState(
        group_id,
        tuple(streams),
        {},
        {keys.segment: EndOf(keys, offset) for keys, offset in ends},
        timing or Timing(),
        retention=retention,
    )
    return begun(state, segments_of(starts))


def segments_of(starts: Iterable[tuple[NamedRange, int]]) -> dict[str, SegmentState]:
    return {keys.segment: SegmentState(keys, max(offset, WAITING)) for keys, offset in starts}


def cuts_of(positions: Mapping[str, int]) -> dict[str, StreamCut]:
    """Return positions by segment as one stream cut for each stream (`scope/stream`)."""
    streams: dict[str, dict[int, int]] = {}
    for name, offset in positions.items():
        scope, stream, segment_id = parse_segment_name(name)
        streams.setdefault(f"{scope}/{stream}", {})[segment_id] = offset
    return {key: cut_of(key, offsets) for key, offsets in sorted(streams.items())}


def cut_of(stream: str, positions: Mapping[int, int]) -> StreamCut:
    scope, _, name = stream.partition("/")
    return StreamCut(scope, name, positions)


def begun(state: GroupState, segments: Mapping[str, SegmentState]) -> GroupState:
    for ranges in _by_stream(segments).values():
        active = [piece for name, piece in ranges.items() if segments[name].is_active]
        if len(may_begin(active, [piece.segment_id for piece in active])) < len(active):
            raise InvalidStreamCutError("the cut holds two segments of the same keys: it is not a boundary")
    beyond = {name: replace(s, is_done=True) for name, s in segments.items() if state.is_beyond_the_end(s.keys)}
    return state.with_segments({**segments, **beyond})


def _free_to_begin(segments: Mapping[str, SegmentState]) -> Iterator[str]:
    """The waiting segments whose keys are no longer held by an older one."""
    if not any(segment.is_waiting for segment in segments.values()):
        return
    for ranges in _by_stream({name: segment for name, segment in segments.items() if not segment.is_done}).values():
        names = {piece.segment_id: name for name, piece in ranges.items()}
        waiting = [piece.segment_id for name, piece in ranges.items() if segments[name].is_waiting]
        yield from (names[segment_id] for segment_id in may_begin(ranges.values(), waiting))


def _by_stream(segments: Mapping[str, SegmentState]) -> dict[str, dict[str, SegmentRange]]:
    """The segments of each stream by name, as the model's ranges."""
    found: dict[str, dict[str, SegmentRange]] = {}
    for name, segment in segments.items():
        found.setdefault(segment.keys.stream, {})[name] = segment.keys.as_range()
    return found
