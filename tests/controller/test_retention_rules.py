"""Retention rules over random streams: exactly the required data is retained."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from nadi.controller.retention.cut_sizes import MOMENTS_TRIED, CutSearch, Past, measure
from nadi.controller.retention.rounds import Bounds, NamedCut, RetentionRule, check_policy, decide, protected
from nadi.controller.state.records import RetentionType, StreamConfigRecord
from nadi.errors import InvalidArgumentError, InvalidStreamCutError
from nadi.model.frontier import Frontier
from tests.model.random_stream import RandomStream, Written

from .support import STREAM, scaled, with_stream

I64_MAX = (1 << 63) - 1
LARGEST = 308  # of the random streams' events
SEEDS = pytest.mark.parametrize("seed", range(25))
Cut = Mapping[int, int]


class Dated(RandomStream):
    """A random stream whose events and seals have times, at least two seconds apart."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.now_ms = 1_000_000
        self.moments: dict[tuple[int, int], int] = {}
        self.sealed_ms: dict[int, int] = {}

    def live(self) -> None:
        super().live()
        self.now_ms += self.chance.choice([2_000, 10_000, 500_000])
        for event in self.events():
            self.moments.setdefault((event.segment, event.start), self.now_ms)
        for segment in self.sealed:
            self.sealed_ms.setdefault(segment, self.now_ms)
            self.history.sizes[segment] = self.lengths[segment]

    def cut_at(self, at_ms: int) -> Cut:
        """Return what the time index gives, but exactly."""
        head, history = self.past().start, self.history
        frontier = Frontier(map(self.range_of, head), [s for s, offset in head.items() if offset < 0])
        offsets = {segment: max(head[segment], 0) for segment in frontier.active}
        look = list(offsets)
        while look:
            segment = look.pop()
            ends = [e.end for e in self.segments[segment] if self.moments[segment, e.start] < at_ms]
            offsets[segment] = max([offsets[segment], *ends])
            if self.sealed_ms.get(segment, at_ms) < at_ms and history.successors(segment):
                del offsets[segment]
                for piece in frontier.complete(segment, self.successors(segment)):
                    offsets[piece.segment_id] = 0
                    look.append(piece.segment_id)
        return frontier.positions(offsets)

    def past(self) -> Past:
        return Past(self.history, self.head, {s: n for s, n in self.lengths.items() if not self.is_gone(s)})

    def left(self) -> list[Written]:
        return [event for event in self.events() if not self.is_before(event, self.head)]

    def after(self, cut: Cut) -> int:
        return sum(event.end - event.start for event in self.left() if not self.is_before(event, cut))

    def search(self) -> CutSearch:
        """Return a search that enforces its limit on queries."""
        asked = 0

        async def cut_at(at_ms: int) -> Cut:
            nonlocal asked
            asked += 1
            assert asked <= 2 * (MOMENTS_TRIED + 2)
            return self.cut_at(at_ms)

        async def locate(segment: int, offset: int) -> int:
            return min([e.end for e in self.segments[segment] if e.end >= offset] + [self.lengths[segment]])

        since_ms = self.chance.choice([0, 1_000_000, self.now_ms - 5_000])
        return CutSearch(self.past(), cut_at, locate, since_ms, self.now_ms + 1)


def lived(seed: int) -> Dated:
    stream = Dated(random.Random(seed))
    for _ in range(stream.chance.randint(1, 40)):
        stream.live()
    if stream.chance.random() < 0.6:
        stream.truncate(stream.somewhere())
    for _ in range(stream.chance.randint(0, 10)):
        stream.live()
    return stream


@SEEDS
async def test_the_newest_cut_with_enough_after_it_has_less_than_an_event_more(seed: int) -> None:
    stream = lived(seed)
    retained = stream.after(stream.head)
    for limit in (1, retained // 3, retained - 1, retained, retained + 1, stream.chance.randint(1, retained + 2)):
        cut = (await stream.search().find(limit, at_most=False))[0]
        assert stream.history.is_valid_cut(cut)
        at_boundaries(stream, cut)
        assert stream.after(cut) >= min(limit, retained)
        if retained > limit >= 0:
            assert stream.after(cut) < limit + LARGEST
        most = (await stream.search().find(limit, at_most=True))[0]
        assert stream.history.is_valid_cut(most)
        at_boundaries(stream, most)
        assert stream.after(most) <= limit or limit < 0
        assert stream.after(most) > limit - LARGEST or retained <= limit


def at_boundaries(stream: Dated, cut: Cut) -> None:
    for segment, offset in cut.items():
        assert offset <= 0 or offset in {event.end for event in stream.segments[segment]}


@SEEDS
async def test_exactly_the_required_data_is_retained(seed: int) -> None:
    stream = lived(seed)
    chance, cuts, kept = stream.chance, stream.past(), stream.after(stream.head)
    published = {f"group-{i}": stream.somewhere() for i in range(chance.choice([0, 0, 1, 2, 3]))}
    named = [
        NamedCut("bookmark", f"bookmark-{i}", "meters", chance.choice([stream.somewhere(), stream.tail()]))
        for i in range(chance.choice([0, 0, 1, 3]))
    ]
    kind = chance.choice([RetentionType.TIME, RetentionType.SIZE])
    if kind is RetentionType.TIME:
        ages = sorted(chance.randint(1, stream.now_ms) for _ in range(2))
        least, most = (cuts.settled(stream.cut_at(stream.now_ms - age)) for age in ages)
    else:
        ages = sorted(chance.randint(1, kept + 1) for _ in range(2))
        least = (await stream.search().find(ages[0], at_most=False))[0]
        most = (await stream.search().find(ages[1], at_most=True))[0]
        if stream.after(most) < ages[0]:
            most = least
    has_most = chance.random() < 0.5
    policy = RetentionRule(kind, ages[0], ages[1] if has_most else None, False)
    bounds = Bounds(least, most if has_most else None)
    cut, holders = decide(stream.history, stream.past(), policy, bounds, published, named)

    def wanted(event: Written) -> bool:
        """Return whether the rules, applied naively per key, retain the event."""
        if any(not stream.is_before(event, name.start) for name in named):
            return True
        consumed = all(stream.is_before(event, place) for place in published.values())
        is_least, is_most = stream.is_before(event, least), stream.is_before(event, most)
        if kind is RetentionType.TIME:
            return not is_least or (not consumed and (not has_most or not is_most))
        if not published:
            return not is_least
        needed = sum(
            e.end - e.start
            for e in stream.left()
            if any(not stream.is_before(e, place) for place in published.values())
        )
        if needed < ages[0]:
            return not is_least or not consumed
        return not is_most if has_most and needed >= ages[1] else not consumed

    end = stream.head if cut is None else cut
    assert stream.history.is_valid_cut(end)
    assert stream.history.is_at_or_after(cuts.settled(end), cuts.start)
    for event in stream.left():
        assert stream.is_before(event, end) == (not wanted(event)), (event, kind, cut)
    behind = {name for name, place in published.items() if not cuts.is_at_or_after(cuts.settled(place), least)}
    assert {holder.name for holder in holders if holder.kind == "subscriber"} == behind
    assert [holder.bytes_after for holder in holders] == sorted((h.bytes_after for h in holders), reverse=True)


@SEEDS
def test_name_protects_what_remains(seed: int) -> None:
    stream = lived(seed)
    head, places = stream.head, [stream.somewhere(), stream.tail()]
    for _ in range(3):
        stream.live()
    later = stream.somewhere()
    stream.truncate(stream.past().latest(stream.past().settled(later), stream.past().start))
    cuts = stream.past()
    for place in places:
        is_whole = cuts.is_at_or_after(cuts.settled(place), cuts.start)
        assert protected(cuts, NamedCut("bookmark", "b", "meters", place)) == (place if is_whole else None)
        rest = protected(cuts, NamedCut("slice", "s", "meters", place, stream.tail()))
        if rest is None:
            assert cuts.is_at_or_after(cuts.start, cuts.settled(stream.tail()))
        elif is_whole:
            assert rest == place, "the segments that it names are retained"
        else:
            assert cuts.is_at_or_after(cuts.settled(rest), cuts.start)
        assert (
            protected(cuts, NamedCut("slice", "s", "meters", head, place)) is None or not is_whole or rest is not None
        )
    assert protected(cuts, NamedCut("bookmark", "b", "meters", {1 << 40: 3})) is None


def test_forgotten_epochs_protect_no_less() -> None:
    forgotten = 0
    for seed in range(30):
        stream = lived(seed)
        places = [stream.head, *(stream.somewhere() for _ in range(3)), stream.tail()]
        for _ in range(10):
            stream.live()
        cuts = stream.past()
        stream.truncate(cuts.latest(cuts.settled(stream.somewhere()), cuts.start))
        cuts, known = stream.past(), stream.history
        first = min(known.span(stream.head).values())
        ends = {s: n for s, n in stream.past().ends.items() if s in known.forgetting(first).segments}
        now = Past(known.forgetting(first), stream.head, ends)
        for start in places:
            assert now.is_of_stream(start) or now.is_forgotten(start)
            forgotten += now.is_forgotten(start)
            for end in (None, *places):
                named = NamedCut("slice" if end else "bookmark", "s", "meters", start, end)
                before, after = protected(cuts, named), protected(now, named)
                if before is None:
                    is_partly = end is not None and now.is_forgotten(start)
                    assert after is None or (is_partly and set(after) == set(now.start))
                elif after is not None:
                    assert cuts.is_at_or_after(cuts.settled(before), cuts.settled(after))
                else:  # it is in segments from long before the head, and nothing was written in between
                    assert now.is_forgotten(start)
                    assert end is None or cuts.is_at_or_after(cuts.start, cuts.settled(end))
    assert forgotten > 50


@pytest.mark.parametrize(
    ("config", "value"),
    [
        (StreamConfigRecord(retention_type=RetentionType.TIME, retention_param=-1), "-1 milliseconds"),
        (
            StreamConfigRecord(retention_type=RetentionType.SIZE, retention_param=1, retention_max=-5),
            "-5 bytes",
        ),
        (StreamConfigRecord(retention_type=RetentionType.SIZE), "0 bytes"),
        (
            StreamConfigRecord(retention_type=RetentionType.TIME, retention_param=9, retention_max=8),
            "minimum of 9",
        ),
        (StreamConfigRecord(retention_param=9), "type"),
        (StreamConfigRecord(retention_over_bookmarks=True), "type"),
    ],
)
def test_invalid_retention_policy_raises_error_with_its_values(config: StreamConfigRecord, value: str) -> None:
    with pytest.raises(InvalidArgumentError, match=value):
        check_policy(config)


@pytest.mark.parametrize("most", [0, I64_MAX])
def test_no_maximum_has_two_encodings(most: int) -> None:
    config = StreamConfigRecord(retention_type=RetentionType.SIZE, retention_param=5, retention_max=most)
    check_policy(config)
    policy = RetentionRule.of(config)
    assert policy is not None
    assert policy.most is None


# --- bytes after a cut, over random streams and over a store -----------------------------------------


@pytest.mark.parametrize("seed", range(150))
def test_bytes_after_any_cut_are_those_of_the_events_after_it(seed: int) -> None:
    stream = RandomStream(random.Random(seed))
    for _ in range(random.Random(seed).randint(1, 40)):
        stream.live()
    if seed % 3:
        stream.truncate(stream.somewhere())
    past = Past(stream.history, stream.head, {s: n for s, n in stream.lengths.items() if not stream.is_gone(s)})
    events = [event for event in stream.events() if not stream.is_before(event, stream.head)]
    assert past.retained_bytes == sum(event.end - event.start for event in events)
    for _ in range(10):
        cut = stream.somewhere()
        expected = sum(event.end - event.start for event in events if not stream.is_before(event, cut))
        assert past.bytes_after(cut) == expected


async def test_bytes_after_a_cut_over_a_store_and_what_was_scaled_and_truncated() -> None:
    async with with_stream(2) as (controller, store, _):
        flow = controller._flow
        store.append(STREAM.segment(0), b"a" * 100)
        store.append(STREAM.segment(1), b"b" * 50)
        assert (await measure(flow, STREAM)).bytes_after({}) == 150
        await scaled(controller, [0, 1], [(0.0, 0.75), (0.75, 1.0)])
        left, right = [segment.id for segment in await controller.current_segments(STREAM)]
        store.append(STREAM.segment(left), b"c" * 7)
        assert (await measure(flow, STREAM)).bytes_after({0: 60, 1: 50}) == 47
        assert (await measure(flow, STREAM)).bytes_after({0: 100, left: -1, 1: 10}) == 47
        assert (await measure(flow, STREAM)).bytes_after({left: 7, right: 0}) == 0
        await controller.truncate_stream(STREAM, {0: 90, 1: 50})
        assert (await measure(flow, STREAM)).bytes_after({0: 60, 1: 50}) == 17, "truncated bytes don't count"
        assert (await measure(flow, STREAM)).bytes_after({}) == 17
        with pytest.raises(InvalidStreamCutError):
            (await measure(flow, STREAM)).bytes_after({99: 0})
