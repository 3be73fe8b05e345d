"""The state of a reader group under random sequences of updates.

A model simulates the streams and the applications: it returns numbered events, drops whatever a dead reader hadn't
recorded, and checks the invariants after each step.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nadi.client.readergroup.plan import Facts, plan, shares
from nadi.client.readergroup.state import GroupState, first_state, segments_of
from nadi.client.readergroup.updates import (
    Acquire,
    Complete,
    CreateCheckpoint,
    Join,
    Leave,
    Pass,
    PositionReport,
    Release,
    Reset,
)
from nadi.client.reading.read_ahead import Completion
from nadi.errors import AlreadyExistsError, InvalidArgumentError, ReaderOfflineError
from nadi.model.frontier import WAITING
from nadi.model.readergroup import NamedRange
from nadi.naming import segment_id, segment_name

STREAM = "sc/st"


def keys_of(number: int, epoch: int, low: float, high: float) -> NamedRange:
    return NamedRange(segment_name("sc", "st", segment_id(number, epoch)), low, high)


def two_segments() -> tuple[GroupState, NamedRange, NamedRange]:
    a, b = keys_of(0, 0, 0.0, 0.5), keys_of(1, 0, 0.5, 1.0)
    return first_state("id", [(a, 0), (b, 0)], streams=[STREAM]), a, b


def test_join_with_a_name_in_use_is_rejected() -> None:
    state, a, _ = two_segments()
    state = state.apply(Join("r", "t"))
    with pytest.raises(AlreadyExistsError):
        state.apply(Join("r", "u"))
    state = state.apply(Acquire("r", a.segment), Leave("r"), Join("r", "u"))
    with pytest.raises(ReaderOfflineError):
        state.member("r", "t")
    assert state.member("r", "u").beat == 0
    with pytest.raises(InvalidArgumentError):
        state.apply(Complete("r", a.segment, 1, ()))


def test_acquire_before_passing_a_checkpoint_is_rejected() -> None:
    state, a, b = two_segments()
    state = state.apply(Join("r", "t"), Acquire("r", a.segment), CreateCheckpoint("c"))
    with pytest.raises(InvalidArgumentError):
        state.apply(Acquire("r", b.segment))
    state = state.apply(Pass("r", 1, {a.segment: 5}), Acquire("r", b.segment))
    assert state.checkpoints[0].positions == {a.segment: 5, b.segment: 0}


def test_checkpoint_has_the_position_of_a_segment_released_before_it() -> None:
    state, a, b = two_segments()
    state = state.apply(Join("r", "t"), Acquire("r", a.segment), Acquire("r", b.segment), CreateCheckpoint("c"))
    state = state.apply(Join("other", "t"), Release("r", a.segment, 5), Acquire("other", a.segment))
    state = state.apply(PositionReport("other", {a.segment: 9}), Pass("r", 1, {b.segment: 7}))
    assert state.checkpoints[0].is_complete
    assert state.checkpoints[0].positions == {a.segment: 5, b.segment: 7}


def test_leave_with_positions_overrides_later_reports() -> None:
    state, a, b = two_segments()
    state = state.apply(Join("r", "t"), Acquire("r", a.segment), Acquire("r", b.segment), CreateCheckpoint("c"))
    state = state.apply(Pass("r", 1, {a.segment: 5, b.segment: 7}), PositionReport("r", {a.segment: 5, b.segment: 7}))
    state = state.apply(Leave("r", {a.segment: 3}))
    assert state.positions() == {a.segment: 3, b.segment: 7}
    assert state.checkpoints[0].positions == {a.segment: 5, b.segment: 7}, "a passed checkpoint stays a boundary"


def test_position_from_before_a_reset_is_ignored() -> None:
    state, a, b = two_segments()
    state = state.apply(Join("r", "t"), Acquire("r", a.segment), PositionReport("r", {a.segment: 99}))
    state = state.apply(Reset(segments_of([(a, 7), (b, 3)])), PositionReport("r", {a.segment: 99}))
    assert {name: held.offset for name, held in state.segments.items()} == {a.segment: 7, b.segment: 3}


class Group(RuleBasedStateMachine):
    """The model. history: each segment's keys, length once sealed, and successors, as a stream that scales.

    Offsets count events. read: every event returned and its reader, as (key slice, sequence) marks.
    """

    SLICES = 8  # of the key space; each segment's event at an offset stands for all keys of the segment

    @initialize(count=st.sampled_from([2, 4]))
    def begin(self, count: int) -> None:
        self.keys: dict[str, NamedRange] = {}
        self.lengths: dict[str, int] = {}
        self.successors: dict[str, tuple[NamedRange, ...]] = {}
        self.numbers = 0
        self.epoch = 0
        first = [self.new_segment(i / count, (i + 1) / count) for i in range(count)]
        self.current = list(first)
        self.state = first_state("id", [(keys, 0) for keys in first], streams=[STREAM])
        self.given: dict[str, dict[str, int]] = {}  # per reader, per segment
        self.done: dict[str, dict[str, int]] = {}
        self.tokens = 0
        self.handed: list[tuple[str, str, int]] = []  # (reader, segment, offset) since the last reset
        self.passed: dict[int, dict[str, int]] = {}  # per checkpoint and reader: how much was handed out by then
        self.dead: set[str] = set()
        self.taken_back: set[tuple[str, int]] = set()  # (segment, offset) that were recorded as done, and were not
        self.join()
        self.report_all(passes=True, in_hand=False)

    def new_segment(self, low: float, high: float) -> NamedRange:
        keys = keys_of(self.numbers, self.epoch, low, high)
        self.numbers += 1
        self.keys[keys.segment] = keys
        self.lengths[keys.segment] = 0
        return keys

    # --- the stream ---------------------------------------------------------------------------

    @rule(count=st.integers(1, 5))
    def write(self, count: int) -> None:
        for keys in self.current:
            self.lengths[keys.segment] += count

    @precondition(lambda self: len(self.current) < self.SLICES)
    @rule(which=st.integers(0, 100))
    def split(self, which: int) -> None:
        old = self.current.pop(which % len(self.current))
        self.epoch += 1
        middle = (old.low + old.high) / 2
        new = [self.new_segment(old.low, middle), self.new_segment(middle, old.high)]
        self.successors[old.segment] = tuple(new)
        self.current += new

    @precondition(lambda self: len(self.current) > 1)
    @rule(which=st.integers(0, 100))
    def merge(self, which: int) -> None:
        self.current.sort(key=lambda keys: keys.low)
        at = which % (len(self.current) - 1)
        left, right = self.current.pop(at), self.current.pop(at)
        self.epoch += 1
        new = self.new_segment(left.low, right.high)
        self.successors[left.segment] = self.successors[right.segment] = (new,)
        self.current.append(new)

    # --- the readers --------------------------------------------------------------------------

    @precondition(lambda self: len(self.state.readers) < 4)
    @rule()
    def join(self) -> None:
        self.tokens += 1
        name = f"r{self.tokens}"
        self.state = self.state.apply(Join(name, str(self.tokens)))
        self.given[name], self.done[name] = {}, {}

    @rule(count=st.integers(1, 4), passes=st.booleans(), in_hand=st.booleans())
    def read_and_report_all(self, count: int, passes: bool, in_hand: bool) -> None:
        for which in range(len(self.state.readers)):
            self.read(which, count)
        self.report_all(passes=passes, in_hand=in_hand)

    def report_all(self, *, passes: bool, in_hand: bool) -> None:
        for name in sorted(self.state.readers):
            self.plan(name, passes=passes, in_hand=in_hand)

    def someone(self, which: int) -> str | None:
        names = sorted(self.state.readers)
        return names[which % len(names)] if names else None

    @rule(which=st.integers(0, 3), count=st.integers(1, 4))
    def read(self, which: int, count: int) -> None:
        """The application reads some events of each of its segments; all before the last of them are done."""
        name = self.someone(which)
        for segment in [] if name is None else list(self.given[name]):
            assert name is not None
            self.done[name][segment] = self.given[name][segment]
            new = min(self.given[name][segment] + count, self.lengths[segment])
            self.handed += [(name, segment, at) for at in range(self.given[name][segment], new)]
            self.given[name][segment] = new

    @rule(which=st.integers(0, 3), passes=st.booleans(), in_hand=st.booleans())
    def report(self, which: int, passes: bool, in_hand: bool) -> None:
        name = self.someone(which)
        if name is not None:
            self.plan(name, passes=passes, in_hand=in_hand)

    @precondition(lambda self: len(self.state.readers) > 1)
    @rule(which=st.integers(0, 3))
    def leave(self, which: int) -> None:
        name = self.someone(which)
        assert name is not None
        self.plan(name, passes=True, in_hand=False, leaves=True)

    def plan(self, name: str, *, passes: bool, in_hand: bool, leaves: bool = False) -> None:
        given = self.given[name]
        done = dict(self.done[name]) if in_hand else dict(given)
        movable = [] if in_hand else list(given)
        completed = {
            s: Completion(at, self.successors[s])
            for s, at in given.items()
            if s in self.successors and at == self.lengths[s]
        }
        # passed when the application asks for more, so with nothing in its hands; a silent one at any time
        passed = {one.number: dict(given) for one in self.state.pending_for(name)} if passes and not in_hand else {}
        facts = Facts(given, done, movable, completed, passed, is_report_due=True, is_leaving=leaves)
        before = self.state
        self.state, _ = plan(before, name, facts)
        self.note_passed(before)
        owned = self.state.owned_by(name)
        self.given[name] = {s: given.get(s, held.offset) for s, held in owned.items()}
        self.done[name] = {s: self.done[name].get(s, held.offset) for s, held in owned.items()}
        if leaves:
            del self.given[name], self.done[name]

    @precondition(lambda self: len(self.state.readers) > 2)
    @rule(which=st.integers(0, 3), knows=st.booleans())
    def die(self, which: int, knows: bool) -> None:
        """A caller that declares a reader dead may pass positions: they count, even before reported ones."""
        name = self.someone(which)
        if name is not None:
            before = self.state
            known = dict(self.done[name]) if knows else {}
            self.state = before.apply(Leave(name, known))
            for segment, at in known.items():
                self.taken_back |= {(segment, again) for again in range(at, before.segments[segment].offset)}
            self.dead.add(name)
            self.note_passed(before)
            del self.given[name], self.done[name]

    @rule(silent=st.booleans())
    def checkpoint(self, silent: bool) -> None:
        self.state = self.state.apply(CreateCheckpoint(f"c{self.state.checkpoints_made}", silent))
        self.passed[self.state.checkpoints_made] = {"": len(self.handed)}

    def note_passed(self, before: GroupState) -> None:
        for one in before.checkpoints:
            now = next((other for other in self.state.checkpoints if other.number == one.number), None)
            for name in set(one.pending).difference(now.pending if now else ()):
                self.passed[one.number][name] = len(self.handed)

    @precondition(lambda self: any(one.is_complete for one in self.state.checkpoints) and len(self.handed) > 30)
    @rule(which=st.integers(0, 10))
    def reset(self, which: int) -> None:
        complete = [one for one in self.state.checkpoints if one.is_complete]
        positions = complete[which % len(complete)].positions
        self.state = self.state.apply(Reset(segments_of((self.keys[s], at) for s, at in positions.items())))
        self.given = {name: {} for name in self.state.readers}
        self.done = {name: {} for name in self.state.readers}
        self.handed.clear()
        self.passed.clear()
        self.dead.clear()
        self.taken_back.clear()

    # --- what always holds --------------------------------------------------------------------

    def is_boundary(self, positions: dict[str, int]) -> None:
        """Return whether each slice of the keys is in one started segment, and nothing was skipped."""
        for index in range(self.SLICES):
            at = (index + 0.5) / self.SLICES
            there = [s for s in positions if self.keys[s].low <= at < self.keys[s].high]
            begun = [s for s in there if positions[s] != WAITING]
            waiting = [s for s in there if positions[s] == WAITING]
            # where a waiting segment covers the slice, older segments may be done already
            assert len(begun) <= 1, f"slice {index} is read twice: {begun}"
            assert begun or waiting, f"slice {index} is lost"

    @invariant()
    def no_segment_is_lost_and_none_is_read_by_two(self) -> None:
        self.is_boundary(self.state.positions())
        owners = [s for name in self.given for s in self.given[name]]
        assert len(owners) == len(set(owners))
        for name, segments in self.given.items():
            assert set(segments) == set(self.state.owned_by(name))

    @invariant()
    def checkpoints_are_boundaries(self) -> None:
        for one in self.state.checkpoints:
            if one.is_complete:
                self.is_boundary(one.positions)

    @invariant()
    def the_record_is_never_ahead_of_the_reading(self) -> None:
        for segments in self.given.values():
            for segment, at in segments.items():
                assert self.state.segments[segment].offset <= at

    @invariant()
    def no_event_is_skipped_and_none_repeated_but_by_death(self) -> None:
        reached: dict[str, int] = {}
        for name, segment, at in self.handed:
            before = reached.get(segment)
            if before is not None:
                assert at <= before + 1, f"{segment} skips from {before} to {at}"
                if not self.dead:
                    assert at == before + 1, f"{segment} repeats {at}, read by {name}"
            reached[segment] = max(at, -1 if before is None else before)

    @invariant()
    def each_reader_had_read_just_what_lies_before_a_checkpoint(self) -> None:
        in_hands_of_the_dead = {(segment, at) for name, segment, at in self.handed if name in self.dead}
        for one in self.state.checkpoints:
            if not one.is_complete or one.number not in self.passed:
                continue
            created = self.passed[one.number][""]
            for index, (name, segment, at) in enumerate(self.handed):
                if name in self.dead:
                    continue  # what it had read and not recorded is read again behind the checkpoint
                cut = one.positions.get(segment)
                if index < self.passed[one.number].get(name, created):
                    assert cut is None or at < cut, f"{name} read {at} of {segment} before, the cut is {cut}"
                    assert cut is not None or index < created, f"{segment} was begun before the cut, and is not in it"
                elif (segment, at) not in self.taken_back and not (
                    one.is_silent and (segment, at) in in_hands_of_the_dead
                ):
                    assert cut is None or at >= cut, f"{name} read {at} of {segment} after, the cut is {cut}"

    def teardown(self) -> None:
        """A reader that joins now reads everything to the end."""
        if not hasattr(self, "state"):
            return
        self.join_if_alone()
        for _ in range(300):
            for name in sorted(self.state.readers):
                self.read(sorted(self.state.readers).index(name), 100)
                self.plan(name, passes=True, in_hand=False)
            self.no_segment_is_lost_and_none_is_read_by_two()
            if self.state.segments.keys() == {keys.segment for keys in self.current} and all(
                held.offset == self.lengths[s] for s, held in self.state.segments.items()
            ):
                break
        else:
            raise AssertionError(f"not all is read: {self.state.segments}")
        for _ in range(3):
            for name in sorted(self.state.readers):
                self.plan(name, passes=True, in_hand=False)
        counts = {name: len(self.state.owned_by(name)) for name in self.state.readers}
        assert max(counts.values()) - min(counts.values()) <= 1
        assert all(one.is_complete for one in self.state.checkpoints)
        assert not self.state.unassigned

    def join_if_alone(self) -> None:
        if not self.state.readers:
            self.join()


Group.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestGroup = Group.TestCase


def test_joining_reader_moves_few_segments() -> None:
    pieces = [keys_of(i, 0, i / 64, (i + 1) / 64) for i in range(64)]
    state = first_state("id", [(keys, 0) for keys in pieces], streams=[STREAM])
    moves = 0
    for reader in range(8):
        state = state.apply(Join(f"r{reader}", "t"))
        for name in [*state.readers] * 2:
            before = state
            given = {s: held.offset for s, held in state.owned_by(name).items()}
            state, _ = plan(state, name, Facts(given, given, list(given)))
            moves += sum(
                1 for s, held in state.segments.items() if held.owner == name and before.segments[s].owner != name
            )
    assert shares(state) == dict.fromkeys(state.readers, 8)
    assert {len(state.owned_by(name)) for name in state.readers} == {8}
    assert moves <= 64 + sum(64 // count + 1 for count in range(2, 9))
