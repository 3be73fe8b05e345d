"""All updates of a group's state, as self-contained values.

A reader plans updates (`plan`), or a caller requests them (`group`); after a conflict they are applied again to the
newer state. An update that no longer applies raises, and is planned again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from nadi.client.readergroup.state import GroupState, start_segments
from nadi.errors import AlreadyExistsError, InvalidArgumentError
from nadi.model.frontier import WAITING
from nadi.model.readergroup import (
    UNASSIGNED,
    WITH_OUTPUTS,
    CheckpointState,
    NamedRange,
    ReaderState,
    RecordedOutput,
    SegmentState,
)


@dataclass(frozen=True, slots=True)
class Join:
    """A reader joins, without segments."""

    reader: str
    token: str

    def apply_to(self, state: GroupState) -> GroupState:
        if self.reader in state.readers:
            raise AlreadyExistsError("reader", self.reader)
        return replace(state, readers={**state.readers, self.reader: ReaderState(self.token)})


@dataclass(frozen=True, slots=True)
class Leave:
    """A reader leaves, or is declared dead: its segments are free at `positions`, or else at their recorded offsets."""

    reader: str
    positions: Mapping[str, int] = field(default_factory=dict)

    def apply_to(self, state: GroupState) -> GroupState:
        if self.reader not in state.readers:
            return state
        owned = state.owned_by(self.reader)
        readers = {name: member for name, member in state.readers.items() if name != self.reader}
        at = {name: self.positions.get(name, segment.offset) for name, segment in owned.items()}
        state = state.with_passed(self.reader, None, at)
        state = state.with_segments(
            {name: replace(segment, offset=at[name], owner=UNASSIGNED) for name, segment in owned.items()}
        )
        return replace(state, readers=readers)


@dataclass(frozen=True, slots=True)
class PositionReport:
    """A reader's heartbeat, with the positions up to which it has finished its segments."""

    reader: str
    positions: Mapping[str, int]

    def apply_to(self, state: GroupState) -> GroupState:
        member = state.readers[self.reader]
        owned = state.owned_by(self.reader)
        changed = {
            name: replace(owned[name], offset=offset)
            for name, offset in self.positions.items()
            if name in owned and offset > owned[name].offset
        }
        state = replace(state, segments={**state.segments, **changed})
        return replace(state, readers={**state.readers, self.reader: replace(member, beat=member.beat + 1)})


@dataclass(frozen=True, slots=True)
class Complete:
    """A reader has finished a segment with these successors; none if the stream is sealed there."""

    reader: str
    segment: str
    offset: int
    successors: tuple[NamedRange, ...]

    def apply_to(self, state: GroupState) -> GroupState:
        done = _owned(state, self.reader, self.segment)
        state = state.with_recorded(self.reader, {self.segment: self.offset})
        follow = {keys: state.is_beyond_the_end(keys) for keys in self.successors if keys.overlaps(done.keys)}
        if all(follow.values()):
            ended = replace(done, offset=self.offset, owner=UNASSIGNED, is_done=True)
            return state.with_segments({self.segment: ended})
        new = {
            keys.segment: SegmentState(keys, WAITING, is_done=is_beyond)
            for keys, is_beyond in follow.items()
            if keys.segment not in state.segments
        }
        return state.with_segments(new, without=[self.segment])


@dataclass(frozen=True, slots=True)
class Release:
    """A reader releases a segment, finished up to `offset`."""

    reader: str
    segment: str
    offset: int

    def apply_to(self, state: GroupState) -> GroupState:
        owned = _owned(state, self.reader, self.segment)
        state = state.with_recorded(self.reader, {self.segment: self.offset})
        return state.with_segments({self.segment: replace(owned, offset=self.offset, owner=UNASSIGNED)})


@dataclass(frozen=True, slots=True)
class Acquire:
    """A reader acquires a free segment."""

    reader: str
    segment: str

    def apply_to(self, state: GroupState) -> GroupState:
        free = state.segments[self.segment]
        if not free.is_active or free.owner != UNASSIGNED or self.reader not in state.readers:
            raise InvalidArgumentError(f"reader {self.reader} can't acquire segment {self.segment}: it is not free")
        if state.pending_for(self.reader):
            raise InvalidArgumentError(f"reader {self.reader} can't acquire a segment before passing the checkpoint")
        return replace(state, segments={**state.segments, self.segment: replace(free, owner=self.reader)})


@dataclass(frozen=True, slots=True)
class RecordOutput:
    """A reader has finished a segment up to the output's end, with its results in the output's transactions.

    before: the segment's last output, which is committed.
    """

    reader: str
    segment: str
    output: RecordedOutput
    before: RecordedOutput | None

    def apply_to(self, state: GroupState) -> GroupState:
        owned = _owned(state, self.reader, self.segment)
        last = state.outputs.get(self.segment)
        if owned.offset > self.output.start or (last is not None and last != self.before):
            unsettled = "" if last is None else f", and its output up to {last.end:,} is not committed"
            raise InvalidArgumentError(
                f"can't record the output of segment {self.segment} from {self.output.start:,} on: the group is at "
                f"{owned.offset:,}{unsettled}"
            )
        segments = {**state.segments, self.segment: replace(owned, offset=self.output.end)}
        outputs = {**state.outputs, self.segment: self.output}
        return replace(state, segments=segments, outputs=outputs, layout=WITH_OUTPUTS)


@dataclass(frozen=True, slots=True)
class ForgetOutput:
    """A segment's output is committed."""

    segment: str
    output: RecordedOutput

    def apply_to(self, state: GroupState) -> GroupState:
        if state.outputs.get(self.segment) != self.output:
            return state
        outputs = {name: output for name, output in state.outputs.items() if name != self.segment}
        return replace(state, outputs=outputs, layout=WITH_OUTPUTS if outputs else 1)


@dataclass(frozen=True, slots=True)
class UndoOutput:
    """A segment's output can't be committed any more: its events must be read again.

    Allowed for the segment's reader, before it reads on, or for any caller while the segment is unassigned.
    """

    reader: str
    segment: str
    output: RecordedOutput

    def apply_to(self, state: GroupState) -> GroupState:
        stored = state.segments.get(self.segment)
        if state.outputs.get(self.segment) != self.output:
            return state
        if stored is not None and stored.owner not in (UNASSIGNED, self.reader):
            return state
        if stored is not None and stored.offset == self.output.end:  # otherwise the group was reset meanwhile
            segments = {**state.segments, self.segment: replace(stored, offset=self.output.start, is_done=False)}
            state = replace(state, segments=segments)
        return state.apply(ForgetOutput(self.segment, self.output))


@dataclass(frozen=True, slots=True)
class CreateCheckpoint:
    """A new checkpoint, which all readers will pass."""

    name: str
    is_silent: bool = False
    is_kept: bool = False

    def apply_to(self, state: GroupState) -> GroupState:
        if state.checkpoint(self.name) is not None:
            raise AlreadyExistsError("checkpoint", self.name)
        owners = {segment.owner for segment in state.segments.values() if segment.owner != UNASSIGNED}
        positions = {name: segment.offset for name, segment in state.segments.items() if segment.owner == UNASSIGNED}
        pending = tuple(sorted(owners | state.readers.keys()))
        number = state.checkpoints_made + 1
        checkpoint = CheckpointState(self.name, number, self.is_silent, pending, positions, self.is_kept)
        state = replace(state, checkpoints=(*state.checkpoints, checkpoint), checkpoints_made=number)
        return state.with_passed(UNASSIGNED, None, {})  # without readers it is complete, and may replace an old one


@dataclass(frozen=True, slots=True)
class Pass:
    """A reader has passed a checkpoint at these positions of its segments."""

    reader: str
    number: int
    positions: Mapping[str, int]

    def apply_to(self, state: GroupState) -> GroupState:
        owned = state.owned_by(self.reader)
        passed = {name: self.positions.get(name, segment.offset) for name, segment in owned.items()}
        return state.with_passed(self.reader, self.number, passed)


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete a checkpoint."""

    name: str

    def apply_to(self, state: GroupState) -> GroupState:
        if state.checkpoint(self.name) is None:
            return state
        remaining = tuple(checkpoint for checkpoint in state.checkpoints if checkpoint.name != self.name)
        return replace(state, checkpoints=remaining)


@dataclass(frozen=True, slots=True)
class Reset:
    """All readers continue from these segments, and lose their current ones."""

    segments: Mapping[str, SegmentState]

    def apply_to(self, state: GroupState) -> GroupState:
        complete = tuple(checkpoint for checkpoint in state.checkpoints if checkpoint.is_complete)
        state = replace(state, segments={}, checkpoints=complete, generation=state.generation + 1)
        return start_segments(state, self.segments)


def _owned(state: GroupState, reader: str, segment: str) -> SegmentState:
    owned = state.segments.get(segment)
    if owned is None or owned.owner != reader:
        raise InvalidArgumentError(f"segment {segment} isn't assigned to reader {reader}")
    return owned
