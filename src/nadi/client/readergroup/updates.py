"""Every way in which a group's state may change: each update carries whatever it needs.

An update is planned by one reader (`plan`) or requested by whoever steers the group (`group`), and applied again to
a newer state if somebody else was faster; one that no longer fits raises, and is planned again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from nadi.client.readergroup.state import GroupState, begun
from nadi.errors import AlreadyExistsError, InvalidArgumentError
from nadi.model.frontier import WAITING
from nadi.model.readergroup import (
    NOBODY,
    WITH_OUTPUTS,
    CheckpointState,
    NamedRange,
    ReaderState,
    RecordedOutput,
    SegmentState,
)


@dataclass(frozen=True, slots=True)
class Join:
    """A reader joins; it has no segments yet."""

    reader: str
    token: str

    def apply_to(self, state: GroupState) -> GroupState:
        if self.reader in state.readers:
            raise AlreadyExistsError("reader", self.reader)
        return replace(state, readers={**state.readers, self.reader: ReaderState(self.token)})


@dataclass(frozen=True, slots=True)
class Leave:
    """A reader leaves, or is taken for dead: its segments are free at their recorded positions, or at `positions`."""

    reader: str
    positions: Mapping[str, int] = field(default_factory=dict)

    def apply_to(self, state: GroupState) -> GroupState:
        if self.reader not in state.readers:
            return state
        owned = state.owned_by(self.reader)
        readers = {name: held for name, held in state.readers.items() if name != self.reader}
        at = {name: self.positions.get(name, segment.offset) for name, segment in owned.items()}
        state = state.with_passed(self.reader, None, at)
        state = state.with_segments(
            {name: replace(held, offset=at[name], owner=NOBODY) for name, held in owned.items()}
        )
        return replace(state, readers=readers)


@dataclass(frozen=True, slots=True)
class PositionReport:
    """A reader is alive, and has finished its segments up to these positions."""

    reader: str
    positions: Mapping[str, int]

    def apply_to(self, state: GroupState) -> GroupState:
        held = state.readers[self.reader]
        owned = state.owned_by(self.reader)
        changed = {
            name: replace(owned[name], offset=offset)
            for name, offset in self.positions.items()
            if name in owned and offset > owned[name].offset
        }
        state = replace(state, segments={**state.segments, **changed})
        return replace(state, readers={**state.readers, self.reader: replace(held, beat=held.beat + 1)})


@dataclass(frozen=True, slots=True)
class Complete:
    """A reader has finished a segment, which these successors follow; none if the stream is sealed there."""

    reader: str
    segment: str
    offset: int
    successors: tuple[NamedRange, ...]

    def apply_to(self, state: GroupState) -> GroupState:
        done = _owned(state, self.reader, self.segment)
        state = state.with_recorded(self.reader, {self.segment: self.offset})
        follow = {keys: state.is_beyond_the_end(keys) for keys in self.successors if keys.overlaps(done.keys)}
        if all(follow.values()):
            ended = replace(done, offset=self.offset, owner=NOBODY, is_done=True)
            return state.with_segments({self.segment: ended})
        new = {
            keys.segment: SegmentState(keys, WAITING, is_done=is_beyond)
            for keys, is_beyond in follow.items()
            if keys.segment not in state.segments
        }
        return state.with_segments(new, without=[self.segment])


@dataclass(frozen=True, slots=True)
class Release:
    """A reader gives a segment away, finished up to `offset`."""

    reader: str
    segment: str
    offset: int

    def apply_to(self, state: GroupState) -> GroupState:
        held = _owned(state, self.reader, self.segment)
        state = state.with_recorded(self.reader, {self.segment: self.offset})
        return state.with_segments({self.segment: replace(held, offset=self.offset, owner=NOBODY)})


@dataclass(frozen=True, slots=True)
class Acquire:
    """A reader takes a segment that nobody has."""

    reader: str
    segment: str

    def apply_to(self, state: GroupState) -> GroupState:
        held = state.segments[self.segment]
        if not held.is_active or held.owner != NOBODY or self.reader not in state.readers:
            raise InvalidArgumentError(f"reader {self.reader} can't take segment {self.segment}: it is not free")
        if state.pending_for(self.reader):
            raise InvalidArgumentError(f"reader {self.reader} can't take a segment before it has passed the checkpoint")
        return replace(state, segments={**state.segments, self.segment: replace(held, owner=self.reader)})


@dataclass(frozen=True, slots=True)
class RecordOutput:
    """A reader has finished a segment up to the output's end; what it made of the events is in these transactions.

    before: the segment's last output, which is committed.
    """

    reader: str
    segment: str
    output: RecordedOutput
    before: RecordedOutput | None

    def apply_to(self, state: GroupState) -> GroupState:
        held = _owned(state, self.reader, self.segment)
        found = state.outputs.get(self.segment)
        if held.offset > self.output.start or (found is not None and found != self.before):
            unsettled = "" if found is None else f", and its output up to {found.end:,} is not committed"
            raise InvalidArgumentError(
                f"the output of segment {self.segment} from {self.output.start:,} on can't be recorded: the group is "
                f"at {held.offset:,}{unsettled}"
            )
        segments = {**state.segments, self.segment: replace(held, offset=self.output.end)}
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
        outputs = {name: held for name, held in state.outputs.items() if name != self.segment}
        return replace(state, outputs=outputs, layout=WITH_OUTPUTS if outputs else 1)


@dataclass(frozen=True, slots=True)
class UndoOutput:
    """A segment's output can't be committed any more: its events are to be read again. Only the segment's reader may
    know so, which must not have gone on, or anyone while it has none."""

    reader: str
    segment: str
    output: RecordedOutput

    def apply_to(self, state: GroupState) -> GroupState:
        held = state.segments.get(self.segment)
        if state.outputs.get(self.segment) != self.output:
            return state
        if held is not None and held.owner not in (NOBODY, self.reader):
            return state
        if held is not None and held.offset == self.output.end:  # else the group was reset meanwhile
            segments = {**state.segments, self.segment: replace(held, offset=self.output.start, is_done=False)}
            state = replace(state, segments=segments)
        return state.apply(ForgetOutput(self.segment, self.output))


@dataclass(frozen=True, slots=True)
class CreateCheckpoint:
    """A boundary that all readers will pass."""

    name: str
    is_silent: bool = False
    is_kept: bool = False

    def apply_to(self, state: GroupState) -> GroupState:
        if state.checkpoint(self.name) is not None:
            raise AlreadyExistsError("checkpoint", self.name)
        owners = {segment.owner for segment in state.segments.values() if segment.owner != NOBODY}
        positions = {name: segment.offset for name, segment in state.segments.items() if segment.owner == NOBODY}
        pending = tuple(sorted(owners | state.readers.keys()))
        number = state.checkpoints_made + 1
        made = CheckpointState(self.name, number, self.is_silent, pending, positions, self.is_kept)
        state = replace(state, checkpoints=(*state.checkpoints, made), checkpoints_made=number)
        return state.with_passed(NOBODY, None, {})  # without readers it is complete, and an old one may go


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
    """Remove a checkpoint that nobody needs any more."""

    name: str

    def apply_to(self, state: GroupState) -> GroupState:
        if state.checkpoint(self.name) is None:
            return state
        return replace(state, checkpoints=tuple(one for one in state.checkpoints if one.name != self.name))


@dataclass(frozen=True, slots=True)
class Reset:
    """All readers continue from these segments; the ones they hold now are taken from them."""

    segments: Mapping[str, SegmentState]

    def apply_to(self, state: GroupState) -> GroupState:
        kept = tuple(one for one in state.checkpoints if one.is_complete)
        state = replace(state, segments={}, checkpoints=kept, generation=state.generation + 1)
        return begun(state, self.segments)


def _owned(state: GroupState, reader: str, segment: str) -> SegmentState:
    held = state.segments.get(segment)
    if held is None or held.owner != reader:
        raise InvalidArgumentError(f"segment {segment} is not with reader {reader}")
    return held
