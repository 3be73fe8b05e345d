"""Watermarks derived from writers' marks, round after round, whatever writers and scalings do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nadi.controller.event_time import WatermarkDecision, decide, joined
from nadi.controller.state.history import Cut, EpochHistory, first_epoch
from nadi.controller.state.records import WriterMark
from nadi.model import cutorder
from nadi.model.streamcut import StreamCut
from nadi.model.watermark import SegmentPosition, Watermark
from nadi.naming import segment_epoch, segment_id

ONE = EpochHistory([first_epoch(1, 0)])
TWO = EpochHistory([first_epoch(2, 0)])


def split(history: EpochHistory, segment: int) -> None:
    """Split the segment in two."""
    piece = history.segments[segment]
    middle = (piece.low + piece.high) / 2
    ranges = [(piece.low, middle), (middle, piece.high)]
    history.add(history.plan_scale(history.newest, [segment], ranges, min_segments=1, time_ms=0))


def merge(history: EpochHistory, first: int, second: int) -> None:
    """Merge two neighbours into one segment."""
    low, high = history.segments[first].low, history.segments[second].high
    history.add(history.plan_scale(history.newest, [first, second], [(low, high)], min_segments=1, time_ms=0))


def stream_cut(positions: Cut) -> StreamCut:
    return StreamCut("sc", "st", positions)


def is_at_or_before(first: Cut, second: Cut, history: EpochHistory) -> bool:
    ranges = {i: (s.low, s.high) for i, s in history.segments.items()}
    return cutorder.compare(stream_cut(first), stream_cut(second), ranges).is_at_or_before


def decided(
    marks: dict[str, WriterMark],
    previous: Watermark | None = None,
    *,
    timeout_ms: int = 0,
    waited_ms: dict[str, int] | None = None,
) -> WatermarkDecision:
    return decide(marks, previous, ONE, timeout_ms=timeout_ms, waited_ms=waited_ms or {})


def at(lower: int, upper: int, offset: int) -> Watermark:
    return Watermark(lower, upper, (SegmentPosition(0, 0.0, 1.0, offset),))


def test_the_slowest_writer_gives_the_lower_bound_and_the_furthest_the_cut() -> None:
    marks = {"a": WriterMark(10, {0: 70}), "b": WriterMark(50, {0: 30}, alive=False)}
    assert decided(marks) == WatermarkDecision((at(10, 50, 70),), (), ())


def test_stalled_writer_is_dropped_at_once_by_default() -> None:
    marks = {"a": WriterMark(10, {0: 70}), "b": WriterMark(50, {0: 30})}
    assert decided(marks, at(10, 50, 70)) == WatermarkDecision((at(50, 50, 70),), ("a",), ())
    assert decided({"a": marks["a"]}, at(10, 50, 70)) == WatermarkDecision((), ("a",), ())


def test_stalled_writer_is_waited_for_as_configured() -> None:
    marks = {"a": WriterMark(10, {0: 70}), "b": WriterMark(50, {0: 80})}
    previous = at(10, 50, 70)
    assert decided(marks, previous, timeout_ms=100) == WatermarkDecision((), (), ("a",))
    assert decided(marks, previous, timeout_ms=100, waited_ms={"a": 99}) == WatermarkDecision((), (), ("a",))
    assert decided(marks, previous, timeout_ms=100, waited_ms={"a": 100}) == WatermarkDecision(
        (at(50, 50, 80),), ("a",), ()
    )


def test_removed_writer_is_not_waited_for() -> None:
    marks = {"a": WriterMark(10, {0: 70}, alive=False), "b": WriterMark(50, {0: 80})}
    assert decided(marks, at(10, 50, 70), timeout_ms=1_000_000, waited_ms={"a": 1}) == WatermarkDecision(
        (at(50, 50, 80),), ("a",), ()
    )


def test_keys_without_position_count_from_the_segment_start() -> None:
    assert joined([{1: 5}], TWO) == (SegmentPosition(0, 0.0, 0.5, 0), SegmentPosition(1, 0.5, 1.0, 5))
    assert joined([{}], TWO) == (SegmentPosition(0, 0.0, 0.5, 0), SegmentPosition(1, 0.5, 1.0, 0))
    assert joined([{0: -1, 1: 5}], TWO)[0].offset == 0  # of a writer that has written nothing there


def test_replaced_segments_precede_their_successors() -> None:
    history = EpochHistory([first_epoch(2, 0)])
    split(history, 0)
    older, newer = {0: 100, 1: 7}, {segment_id(2, 1): 3, segment_id(3, 1): 0, 1: 5}
    for positions in ([older, newer], [newer, older]):
        assert {p.segment_id: p.offset for p in joined(positions, history)} == {**newer, 1: 7}


def test_segments_merged_in_between_are_not_mixed() -> None:
    history = EpochHistory([first_epoch(2, 0)])
    merge(history, 0, 1)
    split(history, segment_id(2, 1))
    last = segment_id(4, 2)
    cut = {place.segment_id: place.offset for place in joined([{0: 100, 1: 7}, {last: 9}], history)}
    assert cut == {segment_id(3, 2): 0, last: 9}  # not {0: 100, last: 9}, where no reader can be


@st.composite
def scenes(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """Draw steps of writers and of the stream: (kind, writer or segment, time, bytes)."""
    kinds = st.sampled_from(["note", "note", "note", "write", "write", "split", "merge", "round", "round", "remove"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 3), st.integers(0, 20), st.integers(0, 50)), max_size=60))


@given(st.integers(1, 3), st.sampled_from([0, 3, 1_000]), st.booleans(), scenes())
@example(  # a writer whose second position names no successor of the first one's segments
    segments=3,
    timeout_ms=0,
    whole=False,
    scene=[("write", 0, 0, 1), ("merge", 0, 0, 0), ("note", 1, 1, 1), ("note", 1, 14, 0), ("round", 0, 0, 0)],
)
@settings(max_examples=300, deadline=None)
def test_watermarks_never_go_back(
    segments: int, timeout_ms: int, whole: bool, scene: list[tuple[str, int, int, int]]
) -> None:
    history = EpochHistory([first_epoch(segments, 0)])
    lengths = {piece.id: 0 for piece in history.epoch(0)}
    epoch_seen = [0] * 4  # by writer, which may not have noticed the newest
    marks: dict[str, WriterMark] = {}
    since: dict[str, int] = {}  # when a writer was first found stalled
    previous: Watermark | None = None
    for now_ms, (what, which, number, size) in enumerate(scene, start=1):
        current = history.epoch(history.newest)
        writer = f"w{which}"
        match what:
            case "write":
                lengths[current[which % len(current)].id] += size
            case "split":
                split(history, current[which % len(current)].id)
            case "merge" if len(current) > 1:
                first = which % (len(current) - 1)
                merge(history, current[first].id, current[first + 1].id)
            case "note":
                mark = marks.get(writer)
                epoch_seen[which] = max(epoch_seen[which], history.newest - size % 2)
                seen = history.epoch(epoch_seen[which])
                before = mark.position if mark else {}  # a segment that a writer has noted stays noted
                named = [s.id for s in seen if whole or (s.id + number) % 3 or s.id in before]
                position = {segment: lengths.get(segment, 0) for segment in named}
                time = number + (mark.time if mark else 0)
                steps = (*mark.steps[-3:], (time, position)) if mark else ((time, position),)
                marks[writer] = WriterMark(time, position, steps=steps)
                since.pop(writer, None)
            case "remove" if writer in marks:
                mark = marks[writer]
                marks[writer] = replace(mark, alive=False)
            case "round":
                waited_ms = {writer: now_ms - began for writer, began in since.items()}
                verdict = decide(marks, previous, history, timeout_ms=timeout_ms, waited_ms=waited_ms)
                check(verdict, marks, previous, history)
                previous = verdict.watermarks[-1] if verdict.watermarks else previous
                for gone in verdict.dropped:
                    del marks[gone]
                since = {writer: since.get(writer, now_ms) for writer in verdict.waited_for}
        for piece in history.epoch(history.newest):
            lengths.setdefault(piece.id, 0)


def check(
    verdict: WatermarkDecision, marks: dict[str, WriterMark], previous: Watermark | None, history: EpochHistory
) -> None:
    assert all(previous is not None and marks[writer].time <= previous.lower for writer in verdict.dropped)
    assert not set(verdict.waited_for) & set(verdict.dropped)
    if not verdict.watermarks:
        return
    for before, after in pairwise(verdict.watermarks):
        assert before.lower < after.lower
        assert before.upper <= after.upper
        assert is_at_or_before(before.positions(), after.positions(), history)
    made = verdict.watermarks[-1]
    assert made.lower <= made.upper
    cut = made.positions()
    assert history.is_valid_cut(cut)  # it covers the whole key space
    assert set(cut) == {piece.id for piece in history.epoch(max(map(segment_epoch, cut)))}
    if previous is not None:
        assert made.lower > previous.lower
        assert made.upper >= previous.upper
        assert is_at_or_before(previous.positions(), cut, history)
    for writer, mark in marks.items():
        if writer in verdict.dropped:
            continue
        assert mark.time >= made.lower
        for time, position in (*mark.steps, (mark.time, mark.position)):
            if position and time <= made.lower:
                reached = {place.segment_id: place.offset for place in joined([position], history)}
                assert is_at_or_before(reached, cut, history)
                for segment, offset in position.items():
                    own = history.segments[segment]
                    over = [place for place in made.cut if place.low < own.high and place.high > own.low]
                    assert all((place.segment_id, place.offset) >= (segment, offset) for place in over)
