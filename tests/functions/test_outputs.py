"""The rules for uncommitted outputs in a group's state, also for states stored before outputs existed."""

from __future__ import annotations

import msgspec
import pytest

from nadi.client.readergroup.plan import Facts, plan
from nadi.client.readergroup.state import GroupState, first_state
from nadi.client.readergroup.updates import (
    Acquire,
    Complete,
    ForgetOutput,
    Join,
    Leave,
    PositionReport,
    RecordOutput,
    Release,
    Reset,
    UndoOutput,
)
from nadi.client.reading.read_ahead import Completion
from nadi.errors import InvalidArgumentError
from nadi.model.readergroup import UNASSIGNED, NamedRange, RecordedOutput, SegmentState

KEYS = NamedRange("sc/st/0.#epoch.0", 0.0, 1.0)
SEGMENT = KEYS.segment
FIRST = RecordedOutput(0, 100, (("sc/out", "id 1"),))
SECOND = RecordedOutput(100, 150, (("sc/out", "id 2"),))


def owned() -> GroupState:
    state = first_state("id", [(KEYS, 0)], streams=["sc/st"])
    return state.apply(Join("a", "token"), Acquire("a", SEGMENT))


def test_an_output_and_its_position_are_recorded_together() -> None:
    state = owned().apply(RecordOutput("a", SEGMENT, FIRST, None))
    assert state.positions() == {SEGMENT: 100}
    assert state.outputs == {SEGMENT: FIRST}
    state = state.apply(RecordOutput("a", SEGMENT, SECOND, FIRST))
    assert state.outputs == {SEGMENT: SECOND}
    assert state.apply(ForgetOutput(SEGMENT, FIRST)).outputs == {SEGMENT: SECOND}
    assert state.apply(ForgetOutput(SEGMENT, SECOND)).outputs == {}


def test_record_output_over_uncommitted_or_lost_segment_fails() -> None:
    state = owned().apply(RecordOutput("a", SEGMENT, FIRST, None))
    with pytest.raises(InvalidArgumentError):
        state.apply(RecordOutput("a", SEGMENT, SECOND, None))
    with pytest.raises(InvalidArgumentError):
        state.apply(RecordOutput("a", SEGMENT, RecordedOutput(0, 120, ()), FIRST))
    with pytest.raises(InvalidArgumentError):
        state.apply(Leave("a"), RecordOutput("a", SEGMENT, SECOND, FIRST))


def test_undo_output_requires_the_segments_reader_if_any() -> None:
    state = owned().apply(RecordOutput("a", SEGMENT, FIRST, None))
    assert state.apply(UndoOutput(UNASSIGNED, SEGMENT, FIRST)) is state
    for undone in (
        state.apply(UndoOutput("a", SEGMENT, FIRST)),
        state.apply(Leave("a"), UndoOutput(UNASSIGNED, SEGMENT, FIRST)),
    ):
        assert undone.positions() == {SEGMENT: 0}
        assert not undone.outputs


def test_no_segment_ends_before_its_output_is_committed() -> None:
    after = NamedRange("sc/st/1.#epoch.1", 0.0, 1.0)
    facts = Facts(returned={SEGMENT: 100}, movable={SEGMENT}, completed={SEGMENT: Completion(100, (after,))})
    state = owned().apply(RecordOutput("a", SEGMENT, FIRST, None))
    assert not any(isinstance(update, Complete) for update in plan(state, "a", facts)[1])
    state = state.apply(ForgetOutput(SEGMENT, FIRST))
    assert any(isinstance(update, Complete) for update in plan(state, "a", facts)[1])


def test_a_state_stored_before_there_were_outputs_is_read() -> None:
    state = owned()
    old = msgspec.to_builtins(state)
    del old["outputs"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=GroupState) == state
    state = state.apply(RecordOutput("a", SEGMENT, FIRST, None))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=GroupState) == state


def test_readers_that_make_no_outputs_keep_those_of_others() -> None:
    state = owned().apply(RecordOutput("a", SEGMENT, FIRST, None))
    state = state.apply(PositionReport("a", {SEGMENT: 100}), Release("a", SEGMENT, 100), Leave("a"), Join("b", "token"))
    state = state.apply(Acquire("b", SEGMENT), PositionReport("b", {SEGMENT: 140}), Leave("b"), Reset(owned().segments))
    assert state.outputs == {SEGMENT: FIRST}


def test_old_nadi_rejects_states_with_outputs() -> None:
    before = msgspec.defstruct("Before", [("segments", dict[str, SegmentState]), ("layout", int, 1)])
    encoder = msgspec.msgpack.Encoder()
    state = owned().apply(RecordOutput("a", SEGMENT, FIRST, None))
    with pytest.raises(msgspec.ValidationError, match="layout"):
        msgspec.msgpack.decode(encoder.encode(state), type=before)
    state = state.apply(RecordOutput("a", SEGMENT, SECOND, FIRST), ForgetOutput(SEGMENT, SECOND))
    msgspec.msgpack.decode(encoder.encode(state), type=before)
    state = owned().apply(RecordOutput("a", SEGMENT, FIRST, None), UndoOutput("a", SEGMENT, FIRST))
    assert state == owned()
