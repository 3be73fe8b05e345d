"""Readers and reader groups over random streams get each event once and in order.

NADI_STREAM_EXAMPLES is the number of examples of each (default 500); NADI_STREAM_SEED is the first seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping

import pytest

from nadi.client.readergroup.state import GroupState, Update, cuts_of, first_state, segments_of
from nadi.client.readergroup.updates import (
    Acquire,
    Complete,
    CreateCheckpoint,
    Join,
    Pass,
    PositionReport,
    Release,
    Reset,
)
from nadi.errors import InvalidStreamCutError
from nadi.model.frontier import Bound, Frontier, check_legal
from nadi.model.readergroup import NamedRange
from nadi.model.segments import SegmentRange
from nadi.naming import parse_segment_name, segment_id, segment_name

from .random_stream import RandomStream, Written, check_order

EXAMPLES = int(os.environ.get("NADI_STREAM_EXAMPLES", "200"))
SEED = int(os.environ.get("NADI_STREAM_SEED", "0"))
Cut = Mapping[int, int]


def every(play: Callable[[int], None]) -> None:
    for seed in range(SEED, SEED + EXAMPLES):
        try:
            play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def check_given(stream: RandomStream, given: list[Written], start: Cut, end: Cut | None, keys: list[float]) -> None:
    check_order(given)
    expected = {
        event
        for event in stream.events()
        if event.key in keys and not stream.is_before(event, start) and (end is None or stream.is_before(event, end))
    }
    assert set(given) == expected


# --- a reader ---------------------------------------------------------------------------------------


class Reader:
    """A reader of single events, from any segment; its position is its only state."""

    def __init__(self, stream: RandomStream, start: Cut, end: Cut | None, keys: list[float] | None) -> None:
        self.stream, self.keys = stream, keys
        pieces = [stream.range_of(segment) for segment in start]
        self.frontier = Frontier(pieces, [s for s, offset in start.items() if offset < 0], keys)
        self.offsets = {segment: max(start[segment], 0) for segment in self.frontier.active}
        self.bound = None if end is None else Bound(end, [stream.range_of(segment) for segment in end])

    def step(self) -> list[Written] | None:
        """The next events of one segment; None if there is nothing to do now."""
        for segment, piece in self.stream.chance.sample(list(self.frontier.active.items()), len(self.frontier.active)):
            at = self.offsets[segment]
            limit = None if self.bound is None else self.bound.limit(piece)
            if limit is not None and at >= limit:
                self.frontier.stop(segment)
                return []
            ready = [e for e in self.stream.segments[segment] if e.start >= at and (limit is None or e.end <= limit)]
            if ready:
                self.offsets[segment] = ready[0].end
                return [ready[0]]
            successors = self.stream.successors(segment) if segment in self.stream.sealed else []
            if limit is None and successors:
                del self.offsets[segment]
                self.offsets |= {begun.segment_id: 0 for begun in self.frontier.complete(segment, successors)}
                return []
        return None

    def position(self) -> dict[int, int]:
        return self.frontier.positions(self.offsets)


def play_reader(seed: int) -> None:
    chance = random.Random(seed)
    stream = RandomStream(chance)
    for _ in range(chance.choice([0, 4, 8, 16])):
        stream.live()
    start = stream.head if chance.random() < 0.5 else stream.somewhere()
    end = None if chance.random() < 0.5 else stream.somewhere()
    if end is not None and not stream.history.is_at_or_after(end, start):
        end = None
    keys = chance.sample(stream.keys, chance.randint(1, len(stream.keys))) if chance.random() < 0.3 else None
    reader, given = Reader(stream, start, end, keys), list[Written]()
    for _ in range(chance.randint(0, 80)):
        given += reader.step() or []
        if chance.random() < 0.1:
            stream.live()
        if chance.random() < 0.1:
            at = reader.position()
            assert keys is not None or stream.history.is_valid_cut(at), f"{at} is not legal"
            reader = Reader(stream, at, end, keys)
    stream.seal_all()
    while (found := reader.step()) is not None:
        given += found
    mine = [event for event in given if keys is None or event.key in keys]
    check_given(stream, mine, start, end, stream.keys if keys is None else keys)
    assert keys is not None or set(mine) == set(given)


@pytest.mark.timeout(60 + EXAMPLES // 20)
def test_any_reader_of_any_stream_gives_each_event_once_in_order() -> None:
    every(play_reader)


# --- a group of readers -----------------------------------------------------------------------------


class Group:
    """Readers that acquire segments, release them and pass checkpoints in any order."""

    def __init__(self, stream: RandomStream, start: Cut, end: Cut | None, readers: int) -> None:
        self.stream, self.given = stream, list[Written]()
        self.state: GroupState = first_state("id", self.keyed(start), self.keyed(end or {}), streams=["sc/st"])
        self.readers = [f"r{number}" for number in range(readers)]
        self.apply(*(Join(reader, "t") for reader in self.readers))

    def keys_of(self, segment: int) -> NamedRange:
        piece = self.stream.range_of(segment)
        return NamedRange(segment_name("sc", "st", segment), piece.low, piece.high)

    def keyed(self, cut: Cut) -> list[tuple[NamedRange, int]]:
        return [(self.keys_of(segment), offset) for segment, offset in cut.items()]

    def apply(self, *updates: Update) -> None:
        self.state = self.state.apply(*updates)
        assert self.stream.history.is_valid_cut(self.positions()), f"{self.positions()} is not legal"

    def positions(self) -> dict[int, int]:
        return {parse_segment_name(name)[2]: offset for name, offset in self.state.positions().items()}

    def step(self) -> bool:
        """One reader does something; False if none has anything to do."""
        chance, state = self.stream.chance, self.state
        for reader in chance.sample(self.readers, len(self.readers)):
            for one in state.pending_for(reader):
                if chance.random() < 0.5:
                    self.apply(Pass(reader, one.number, {n: s.offset for n, s in state.owned_by(reader).items()}))
                    return True
            if state.unassigned and not state.pending_for(reader):
                self.apply(Acquire(reader, chance.choice(state.unassigned)))
                return True
            owned = list(state.owned_by(reader))
            for name in chance.sample(owned, len(owned)):
                if self.read(reader, name):
                    return True
        return bool(self.state.checkpoints and any(not one.is_complete for one in self.state.checkpoints))

    def read(self, reader: str, name: str) -> bool:
        segment, at, end = parse_segment_name(name)[2], self.state.segments[name].offset, self.state.end_of(name)
        ready = [e for e in self.stream.segments[segment] if e.start >= at and (end is None or e.end <= end)]
        if ready:
            self.given.append(ready[0])
            self.apply(PositionReport(reader, {name: ready[0].end}))
            if self.stream.chance.random() < 0.1:
                self.apply(Release(reader, name, ready[0].end))
        elif end is not None and at >= end:
            self.apply(Complete(reader, name, at, ()))
        elif segment in self.stream.sealed and self.stream.successors(segment):
            following = tuple(self.keys_of(piece.segment_id) for piece in self.stream.successors(segment))
            self.apply(Complete(reader, name, at, following))
        else:
            return False
        return True

    def checkpoint(self) -> None:
        self.apply(CreateCheckpoint(f"c{self.state.checkpoints_made}"))

    def reset(self) -> None:
        """Reset to a complete checkpoint: reads after it are dropped."""
        complete = [one for one in self.state.checkpoints if one.is_complete]
        if not complete:
            return
        (cut,) = cuts_of(self.stream.chance.choice(complete).positions).values()
        assert self.stream.history.is_valid_cut(cut.positions), f"{cut} is not legal"
        if not self.stream.history.is_at_or_after(self.positions(), cut.positions):
            return  # it was reset to one before that already
        self.given = [event for event in self.given if self.stream.is_before(event, cut.positions)]
        self.apply(Reset(segments_of(self.keyed(cut.positions))))


def play_group(seed: int) -> None:
    chance = random.Random(seed)
    stream = RandomStream(chance)
    for _ in range(chance.choice([0, 4, 8])):
        stream.live()
    start = stream.head if chance.random() < 0.5 else stream.somewhere()
    end = None if chance.random() < 0.5 else stream.somewhere()
    if end is not None and not stream.history.is_at_or_after(end, start):
        end = None
    group = Group(stream, start, end, chance.randint(1, 3))
    for _ in range(chance.randint(0, 60)):
        group.step()
        what = chance.random()
        if what < 0.1:
            stream.live()
        elif what < 0.16:
            group.checkpoint()
        elif what < 0.2:
            group.reset()
    stream.seal_all()
    while group.step():
        pass
    check_given(stream, group.given, start, end, stream.keys)


@pytest.mark.timeout(60 + EXAMPLES // 20)
def test_any_group_of_readers_of_any_stream_gives_each_event_once_in_order() -> None:
    every(play_group)


# --- by hand ----------------------------------------------------------------------------------------


def test_what_follows_two_segments_that_wait_waits_for_both() -> None:
    """a is read and was followed by c; c and b's waiting successors m and n are followed by o, which waits for both."""
    a, b = SegmentRange(0, 0.0, 0.5), SegmentRange(1, 0.5, 1.0)
    c, m, n = (
        SegmentRange(segment_id(2, 1), 0.0, 0.2),
        SegmentRange(segment_id(3, 1), 0.2, 0.6),
        SegmentRange(segment_id(4, 1), 0.6, 1.0),
    )
    o, p = SegmentRange(segment_id(5, 2), 0.0, 0.4), SegmentRange(segment_id(6, 2), 0.4, 1.0)
    frontier = Frontier([a, b], ())
    assert frontier.complete(0, [c, m]) == [c]
    assert frontier.complete(c.segment_id, [o]) == []
    cut = frontier.positions({1: 70})
    assert cut == {1: 70, m.segment_id: -1, o.segment_id: -1}
    for one in (frontier, Frontier([b, m, o], [m.segment_id, o.segment_id])):
        assert one.complete(1, [m, n]) == [m, n]
        assert one.complete(n.segment_id, [p]) == []
        assert one.complete(m.segment_id, [o, p]) == [o, p]


def test_cut_that_skips_an_older_segment_is_rejected() -> None:
    a, b = SegmentRange(0, 0.0, 0.5), SegmentRange(1, 0.5, 1.0)
    both = SegmentRange(segment_id(2, 1), 0.0, 1.0)
    left, right = SegmentRange(segment_id(3, 2), 0.0, 0.5), SegmentRange(segment_id(4, 2), 0.5, 1.0)
    for segments, future in (([a, b, both], []), ([a, both, right], [both.segment_id]), ([a], []), ([], [])):
        with pytest.raises(InvalidStreamCutError):
            Frontier(segments, future)
    half = Frontier([a, right], ())  # the cut alone doesn't show it: its history does
    with pytest.raises(InvalidStreamCutError):
        half.complete(0, [both])
    with pytest.raises(InvalidStreamCutError):
        check_legal({0: 5, right.segment_id: 4}, [a, right], [a, b, both, left, right])
    check_legal({0: 5, 1: 4}, [a, b], [a, b])


def test_position_of_some_keys_needs_the_same_keys() -> None:
    a, b = SegmentRange(0, 0.0, 0.5), SegmentRange(1, 0.5, 1.0)
    assert list(Frontier([a, b], (), [0.7]).active) == [1]
    assert list(Frontier([b], (), [0.7]).active) == [1]
    for keys in (None, [0.2]):
        with pytest.raises(InvalidStreamCutError):
            Frontier([b], (), keys)
