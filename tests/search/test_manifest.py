"""The records of an index and of standing queries: whatever workers do in whatever order, each event is in one shard,
and each batch is done once."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from nadi.errors import EpochExpiredError, SegmentTruncatedError, TruncatedError
from nadi.model.segments import SegmentRange
from nadi.process.segment_follower import PositionConflictError, SegmentProgress, gap_end
from nadi.search.percolate.query_index import MatchCounts
from nadi.search.percolate.records import BackfillPendingError, MatcherProgress, SegmentSpan, StartedBatch
from nadi.search.shards.manifest import IndexedRange, Shard, ShardManifest, has_all, joined, to_merge


def shard(name: str, *spans: tuple[int, int, int], docs: int = 1) -> Shard:
    return Shard(name, docs, 100, list(spans))


A, B = SegmentProgress(0, 0.0, 0.5), SegmentProgress(1, 0.5, 1.0)
BOTH = SegmentRange(1 << 32, 0.0, 1.0)


def test_advanced_repeated_step_raises_conflict() -> None:
    one = ShardManifest.started([A, B]).advanced(
        [IndexedRange(0, 0, 10, 1), IndexedRange(1, 0, 5, 1)], shard("a", (0, 0, 10), (1, 0, 5)), indexed=3
    )
    assert (one.segments[0].reached, one.segments[1].reached, one.indexed) == (10, 5, 3)
    for wrong in (
        [IndexedRange(0, 0, 10, 1)],
        [IndexedRange(0, 10, 20, 1), IndexedRange(1, 0, 5, 1)],
        [IndexedRange(7, 0, 5, 1)],
    ):
        with pytest.raises(PositionConflictError):
            one.advanced(wrong, shard("b"))
    with pytest.raises(PositionConflictError):
        one.completed(0, 5, [])
    done = one.completed(0, 10, [BOTH])
    with pytest.raises(PositionConflictError):
        done.completed(0, 10, [BOTH])


def test_completed_common_successor_is_added_once() -> None:
    one = ShardManifest.started([A, B]).completed(0, 0, [BOTH])
    assert one.positions() == {1: 0, BOTH.segment_id: -1}
    one = one.advanced([IndexedRange(BOTH.segment_id, 0, 50, 1)], shard("a", (BOTH.segment_id, 0, 50)))
    after = SegmentRange(2 << 32, 0.0, 1.0)
    one = one.completed(BOTH.segment_id, 50, [after])
    assert one.positions() == {1: 0, BOTH.segment_id: -1}  # the successor waits for both
    one = one.completed(1, 0, [BOTH])
    assert one.segments[BOTH.segment_id].is_done
    assert [reach.segment_id for reach in one.followed] == [after.segment_id]
    assert one.positions() == {after.segment_id: 0}
    assert has_all(one, {BOTH.segment_id: None, after.segment_id: 0})
    assert not has_all(one, {after.segment_id: 1})


def test_truncated_segments_without_shards_are_removed() -> None:
    one = ShardManifest.started([A, B]).advanced([IndexedRange(0, 0, 10, 1)], shard("a", (0, 0, 10)))
    one = one.completed(0, 10, [BOTH]).completed(1, 0, [BOTH])
    assert set(one.segments) == {0, BOTH.segment_id}  # the first has a shard
    gone = one.truncated({0: None}, 5)
    assert gone is not None
    assert (gone.shards, gone.retired, set(gone.segments)) == ([], {"a": 5}, {BOTH.segment_id})
    assert one.truncated({0: 9}, 5) is None
    assert gone.without_retired(["a"]).retired == {}


def test_filled_part_is_added_once() -> None:
    one = ShardManifest.started([A]).divided([(0, 0, 10), (0, 10, 20)], [SegmentProgress(0, 0.0, 0.5, 20)])
    assert one.positions() == {0: 0}
    assert not has_all(one, {0: 5})
    one = one.advanced([IndexedRange(0, 20, 30, 1)], shard("new", (0, 20, 30)))
    one = one.filled((0, 0, 10), shard("a", (0, 0, 10)), indexed=1, invalid=0)
    with pytest.raises(PositionConflictError):
        one.filled((0, 0, 10), shard("b", (0, 0, 10)), indexed=1, invalid=0)
    assert one.positions() == {0: 10}
    one = one.filled((0, 10, 20), None, indexed=0, invalid=1)
    assert one.positions() == {0: 30}
    assert has_all(one, {0: 30})


def test_letters_of_a_span_returns_the_recorded_origin() -> None:
    one = ShardManifest.started([A, B]).advanced([IndexedRange(0, 0, 10, 1)], None)
    said = one.lettered([IndexedRange(0, 10, 25, 1)]).lettered([IndexedRange(0, 10, 20, 1)])
    past = said.divided([(0, 10, 25), (0, 25, 40)], [SegmentProgress(0, 0.0, 0.5, 40), B])
    assert [past.letters_of(span) for span in past.past] == [0, None]
    with pytest.raises(PositionConflictError):
        past.lettered([IndexedRange(0, 10, 25, 1)])
    later = past.lettered([IndexedRange(0, 40, 60, 1)])
    assert later.letters_of((0, 10, 25)) == 0
    assert later.segments[0].origin == 40
    later = later.filled((0, 10, 25), None, indexed=0, invalid=1)
    assert [(left.origin, left.end) for left in later.lettering] == [(40, 60)]
    assert later.advanced([IndexedRange(0, 40, 50, 1)], None).lettering == later.lettering
    assert later.advanced([IndexedRange(0, 40, 60, 1)], None).lettering == []


def test_to_merge_groups_shards_of_similar_size() -> None:
    small = [shard(str(number), docs=number) for number in range(1, 9)]
    assert [len(group) for group in to_merge(small, 8, 64, 10**6)] == [8]
    assert to_merge(small[:7], 8, 64, 10**6) == []
    assert [len(group) for group in to_merge(small * 10, 8, 64, 10**6)] == [64]
    large = [shard(str(number), docs=20_000 + number) for number in range(8)]
    assert [len(group) for group in to_merge([*small, *large], 8, 64, 10**6)] == [8, 8]
    assert len(to_merge([*small, *large], 8, 64, 10_000)) == 1
    assert joined([(0, 5, 7), (1, 0, 2), (0, 0, 5), (0, 9, 10)]) == [(0, 0, 7), (0, 9, 10), (1, 0, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_indexers_with_old_manifests_index_each_event_once(seed: int) -> None:
    """Three indexers change the newest manifest based on old copies."""
    chance = random.Random(seed)
    lengths = {0: 100, 1: 60, 1 << 32: 80, (2 << 32) | 5: 70, (2 << 32) | 6: 40}
    following = {
        0: [BOTH],
        1: [BOTH],
        1 << 32: [SegmentRange((2 << 32) | 5, 0.0, 0.4), SegmentRange((2 << 32) | 6, 0.4, 1.0)],
    }
    newest = ShardManifest.started([A, B])
    known = [newest] * 3
    for number in range(10_000):
        if not newest.followed:
            break
        worker = chance.randrange(3)
        if chance.random() < 0.3 or not known[worker].followed:
            known[worker] = newest
        if not known[worker].followed:
            continue
        reach = chance.choice(known[worker].followed)
        segment, at = reach.segment_id, reach.reached
        try:
            if at == lengths[segment]:
                made: ShardManifest = newest.completed(segment, at, following.get(segment, []))
            else:
                end = min(at + chance.randrange(1, 30), lengths[segment])
                made = newest.advanced([IndexedRange(segment, at, end, number)], shard(str(number), (segment, at, end)))
        except PositionConflictError:
            continue
        newest = known[worker] = made
        if chance.random() < 0.2 and len(newest.shards) > 3:
            some = chance.sample(newest.shards, 3)
            spans = joined(span for one in some for span in one.spans)
            newest = newest.merged([one.id for one in some], Shard(f"m{number}", 1, 1, spans), number)
    assert not newest.followed
    covered = Counter(
        (segment, offset) for one in newest.shards for segment, start, end in one.spans for offset in range(start, end)
    )
    assert covered == Counter((segment, offset) for segment, length in lengths.items() for offset in range(length))


def test_gap_end_of_a_forgotten_epoch_is_no_offset() -> None:
    assert gap_end(TruncatedError("home/logs/0.#epoch.0", 5, 70)) == 70
    assert gap_end(SegmentTruncatedError("home/logs/0.#epoch.0")) is None
    with pytest.raises(EpochExpiredError):
        gap_end(EpochExpiredError("epoch 0 of home/logs is forgotten"))


START = MatcherProgress.started([A, B])


def test_stepped_batch_is_begun_and_done_once() -> None:
    one = START.stepped([], [SegmentSpan(0, 0, 10)])
    assert (one.begun, one.positions()) == ({0: StartedBatch(0, 0)}, {0: 10, 1: 0})
    wrong: list[tuple[list[SegmentSpan], list[SegmentSpan]]] = [
        ([SegmentSpan(0, 0, 9)], []),
        ([], [SegmentSpan(0, 0, 10)]),
        ([], [SegmentSpan(0, 10, 20)]),
        ([], [SegmentSpan(7, 0, 1)]),
    ]
    for done, begun in wrong:
        with pytest.raises(PositionConflictError):
            one.stepped(done, begun)
    with pytest.raises(PositionConflictError):
        one.completed(0, 10, [])
    two = one.stepped([SegmentSpan(0, 0, 10)], [SegmentSpan(0, 10, 20), SegmentSpan(1, 0, 5)], MatchCounts(3, 1, 0))
    assert (two.begun[0].start, two.segments[0].reached, two.events, two.hits) == (10, 20, 3, 1)
    with pytest.raises(PositionConflictError):
        two.stepped([SegmentSpan(0, 0, 10)], [])


def test_a_segment_waits_for_those_before_it() -> None:
    one = START.completed(0, 0, [BOTH])
    assert [place.segment_id for place in one.followed] == [1]
    assert one.positions() == {1: 0, BOTH.segment_id: -1}
    two = one.completed(1, 0, [BOTH])
    assert [place.segment_id for place in two.followed] == [BOTH.segment_id]
    assert set(two.segments) == {BOTH.segment_id}


def test_version_counts_from_batches_begun_with_it() -> None:
    one = START.stepped([], [SegmentSpan(0, 0, 10)]).joined("g", is_held=False)
    assert (one.version, one.groups) == (1, {"g": 1})
    one = one.stepped([], [SegmentSpan(1, 0, 5)])
    assert [one.begun[segment].version for segment in (0, 1)] == [0, 1]
    one = one.stepped([SegmentSpan(0, 0, 10)], [])
    one = one.without(["q"])
    assert (one.removed, one.begun[1].version) == ({"q": 2}, 1)
    one = one.stepped([SegmentSpan(1, 0, 5)], [])
    assert one.forgotten(["q"], ["g"]) == MatcherProgress(one.segments, version=2)


def test_held_group_blocks_new_batches() -> None:
    one = START.stepped([], [SegmentSpan(0, 0, 10)]).joined("g", is_held=True)
    with pytest.raises(BackfillPendingError):
        one.stepped([SegmentSpan(0, 0, 10)], [SegmentSpan(0, 10, 20)])
    one = one.stepped([SegmentSpan(0, 0, 10)], [])
    with pytest.raises(BackfillPendingError):
        one.passed(0, 10, 20)
    released = one.released("g", 2)
    assert released is not None
    assert released.released("g") is None
    one = released.passed(0, 10, 20)
    assert (one.segments[0].reached, one.begun, one.gaps) == (20, {}, 3)


def test_a_group_is_added_and_led_and_held() -> None:
    assert START.added("g", is_led=False) == START.joined("g", is_held=False)
    led = START.added("g", is_led=True)
    assert (led.led, led.version, led.catching_up, led.has("g")) == (["g"], 0, ["g"], True)
    held = led.joined_from_past("g")
    assert held is not None
    assert (held.led, held.held, held.groups, held.catching_up) == ([], ["g"], {"g": 1}, ["g"])
    assert held.joined_from_past("g") is None


def test_done_positions_exclude_begun_batches() -> None:
    one = START.stepped([], [SegmentSpan(0, 0, 10)])
    assert (one.positions(), one.done_positions()) == ({0: 10, 1: 0}, {0: 0, 1: 0})
    assert one.stepped([SegmentSpan(0, 0, 10)], [], gaps=2).gaps == 2
