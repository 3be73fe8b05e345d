"""Cuts, bookmarks, slices, reads of routing keys and cuts before others, against a complete server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from nadi.client import CutOrder, StreamManager, aio
from nadi.client.stream_cuts import cuts as cuts_module
from nadi.errors import (
    AlreadyExistsError,
    BookmarkNotFoundError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidStreamCutError,
    PastEndError,
    ScopeNotFoundError,
    SegmentTruncatedError,
    SliceNotFoundError,
    TruncatedError,
)
from nadi.model.keyspace import key_position
from nadi.model.streamcut import StreamCut

KEYS = [f"meter {i}" for i in range(40)]


@pytest.fixture(scope="module")
def manager(server: nadi.standalone.EmbeddedServer) -> Iterator[StreamManager]:
    with StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        yield manager


def write(manager: StreamManager, stream: str, numbers: range) -> None:
    with manager.create_writer("home", stream) as writer:
        for number in numbers:
            for key in KEYS:
                writer.write_event(f"{key}:{number}".encode(), key)


def scaled(manager: StreamManager, stream: str) -> list[StreamCut]:
    """Create a stream of 400 events with a split and a merge; return four of its cuts."""
    manager.create_stream("home", stream, 2)
    cuts = [manager.stream_info("home", stream).head]
    write(manager, stream, range(3))
    cuts.append(manager.stream_info("home", stream).tail)
    manager.scale_stream("home", stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    write(manager, stream, range(3, 6))
    cuts.append(manager.stream_info("home", stream).tail)
    current = manager.current_segments("home", stream)
    manager.scale_stream("home", stream, [s.segment_id for s in current[1:]], [(0.25, 1.0)])
    write(manager, stream, range(6, 10))
    cuts.append(manager.stream_info("home", stream).tail)
    return cuts


def test_cuts_over_a_split_and_a_merge(manager: StreamManager) -> None:
    head, first, second, tail = scaled(manager, "algebra")
    cuts = manager.cuts("home", "algebra")
    assert (cuts.head(), cuts.tail()) == (head, tail)
    assert cuts.events_between(head, tail) == 400
    assert cuts.events_between(first, second) == 120
    assert cuts.bytes_between(head, tail) == sum(
        len(e.data) + 8 for e in manager.read_events("home", "algebra", end=tail)
    )
    assert cuts.compare(head, second) is CutOrder.BEFORE
    assert cuts.compare(tail, second) is CutOrder.AFTER
    assert cuts.compare(first, first) is CutOrder.EQUAL
    later = cuts.settled(first)
    assert later != first
    assert cuts.compare(first, later) is CutOrder.EQUAL
    assert cuts.events_between(first, later) == 0
    assert cuts.latest(first, second) == cuts.settled(second)
    for events in (0, 1, 7, 119, 120, 121, 239, 240, 399, 400):
        cut = cuts.after(head, events)
        assert cuts.events_between(head, cut) == events
        cuts.check(cut)
        count = sum(1 for _ in manager.read_events("home", "algebra", start=cut, end=tail))
        assert count == 400 - events
    assert cuts.after(head, 1000) == cuts.settled(tail)
    assert cuts.after(cuts.after(head, 100), 50) != cuts.after(head, 100)


def test_check_of_an_invalid_cut_raises(manager: StreamManager) -> None:
    head, _, second, tail = scaled(manager, "refused")
    cuts = manager.cuts("home", "refused")
    for cut in (head, second, tail):
        cuts.check(cut)
    segment, offset = next(iter(tail.positions.items()))
    with pytest.raises(InvalidStreamCutError, match=f"{offset - 1:,}"):
        cuts.check(StreamCut("home", "refused", {**tail.positions, segment: offset - 1}))
    with pytest.raises(PastEndError):
        cuts.check(StreamCut("home", "refused", {**tail.positions, segment: offset + 9}))
    with pytest.raises(InvalidStreamCutError):
        cuts.check(StreamCut("home", "refused", {segment: offset}))
    with pytest.raises(InvalidStreamCutError, match="home/other"):
        cuts.check(StreamCut("home", "other", {segment: offset}))
    with pytest.raises(InvalidStreamCutError):
        cuts.bytes_between(tail, head)
    with pytest.raises(InvalidArgumentError):
        cuts.after(tail, -1)
    manager.truncate_stream(second)
    with pytest.raises(SegmentTruncatedError):
        cuts.check(head)
    with pytest.raises(TruncatedError):
        cuts.events_between(head, tail)


def test_bookmarks_are_stored_listed_tagged_and_renamed(manager: StreamManager) -> None:
    head, first, second, tail = scaled(manager, "marked")
    bookmarks = manager.bookmarks("home")
    made = bookmarks.create("noon", first, note="the sun is high", tags=["day", "sun"])
    assert (made.cut, made.note, made.tags, made.scope, made.stream) == (
        first,
        "the sun is high",
        ("day", "sun"),
        "home",
        "marked",
    )
    assert bookmarks.get("noon") == made
    with pytest.raises(AlreadyExistsError):
        bookmarks.create("noon", second)
    assert bookmarks.get("noon") == made
    bookmarks.create("dusk", second, tags=["day"])
    assert [b.name for b in bookmarks.list(stream="marked")] == ["dusk", "noon"]
    assert [b.name for b in bookmarks.list(tag="sun")] == ["noon"]
    assert [b.name for b in bookmarks.list(stream="no-such")] == []
    assert bookmarks.tag("noon", ["lunch"], remove=["day"]).tags == ("sun", "lunch")
    renamed = bookmarks.rename("noon", "midday")
    assert (renamed.name, renamed.cut) == ("midday", first)
    with pytest.raises(AlreadyExistsError):
        bookmarks.rename("midday", "dusk")
    with pytest.raises(BookmarkNotFoundError):
        bookmarks.get("noon")
    assert bookmarks.delete("midday")
    assert not bookmarks.delete("midday")
    with pytest.raises(BookmarkNotFoundError):
        bookmarks.tag("midday", ["x"])
    for wrong in ("a/b", "", "head"):
        with pytest.raises((InvalidNameError, InvalidArgumentError)):
            bookmarks.create(wrong, head)
    with pytest.raises(InvalidStreamCutError):
        bookmarks.create("foreign", StreamCut("home", "marked", {99: 0}))
    with pytest.raises(InvalidArgumentError):
        bookmarks.create("long", tail, note="x" * 5000)
    with pytest.raises(ScopeNotFoundError):
        manager.bookmarks("nowhere").list()


def test_more_bookmarks_than_a_page(manager: StreamManager) -> None:
    manager.create_scope("many")
    manager.create_stream("many", "st")
    cut = manager.stream_info("many", "st").tail
    names = [f"b{number:04}" for number in range(1_203)]

    async def create_all() -> None:
        bookmarks = manager._core.bookmarks("many")
        for first in range(0, len(names), 100):
            await asyncio.gather(*(bookmarks.create(name, cut) for name in names[first : first + 100]))

    manager._thread.run(create_all())
    assert [b.name for b in manager.bookmarks("many").list()] == names


def test_concurrent_creation_of_one_name_succeeds_once(
    manager: StreamManager, server: nadi.standalone.EmbeddedServer
) -> None:
    _, first, second, _ = scaled(manager, "raced")

    async def race() -> list[object]:
        async with aio.StreamManager(server.controller_uri) as a, aio.StreamManager(server.controller_uri) as b:
            tries = [m.bookmarks("home").create("race", c) for m, c in ((a, first), (b, second)) for _ in range(5)]
            results: list[object] = list(await asyncio.gather(*tries, return_exceptions=True))
            tags = [m.bookmarks("home").tag("race", [f"{n}-{i}"]) for n, m in enumerate((a, b)) for i in range(4)]
            await asyncio.gather(*tags)
            return results

    results = asyncio.run(race())
    won = [result for result in results if isinstance(result, aio.Bookmark)]
    assert len(won) == 1
    assert all(isinstance(result, AlreadyExistsError) for result in results if result is not won[0])
    stored = manager.bookmarks("home").get("race")
    assert stored.cut == won[0].cut
    assert len(stored.tags) == 8, "tags added concurrently are all stored"


def test_slice_is_opened_by_its_name(manager: StreamManager) -> None:
    head, first, second, tail = scaled(manager, "sliced")
    slices = manager.slices("home")
    slices.create("week-45", first, second, tags=["weeks"])
    with pytest.raises(AlreadyExistsError):
        slices.create("week-45", head, tail)
    with pytest.raises(InvalidStreamCutError, match="backwards"):
        slices.create("backwards", tail, head)
    with manager.open_slice("home", "week-45") as reader:
        events = [event for _, block in reader for event in block]
    assert sorted(events) == sorted(f"{key}:{number}".encode() for key in KEYS for number in range(3, 6))
    assert [s.name for s in slices.list(tag="weeks")] == ["week-45"]
    assert slices.tag("week-45", remove=["weeks"]).tags == ()
    slices.rename("week-45", "week-46")
    with pytest.raises(SliceNotFoundError):
        manager.open_slice("home", "week-45")
    assert slices.get("week-46").end == second
    assert slices.delete("week-46")


def test_read_of_routing_keys_reads_only_their_segments(manager: StreamManager) -> None:
    head, first, second, tail = scaled(manager, "narrow")
    all_events = list(manager.read_events("home", "narrow", end=tail))
    for keys in (KEYS[:1], KEYS[3:5], []):
        for start in (None, head, first, second):
            events = list(manager.read_events("home", "narrow", start=start, end=tail, routing_keys=keys))
            low = {None: 0, head: 0, first: 3, second: 6}[start]
            for key in keys:
                of_key = [e.data for e in events if e.data.startswith(key.encode() + b":")]
                assert of_key == [f"{key}:{number}".encode() for number in range(low, 10)]
            ranges = {s.segment_id: s for s in manager.current_segments("home", "narrow")}
            for event in events:
                piece = ranges.get(event.segment_id)
                assert piece is None or any(piece.low <= key_position(k) < piece.high for k in keys)
            assert len(events) < len(all_events)
    # a reader resumes at its position with the same keys
    with manager.create_reader("home", "narrow", end=tail, routing_keys=KEYS[:1]) as reader:
        got = [event for _ in range(2) for event in (reader.next_block(60) or pytest.fail("ended"))[1]]
        position = reader.position()
    got += [e.data for e in manager.read_events("home", "narrow", start=position, end=tail, routing_keys=KEYS[:1])]
    of_key = [event for event in got if event.startswith(KEYS[0].encode() + b":")]
    assert of_key == [f"{KEYS[0]}:{number}".encode() for number in range(10)]


def test_read_of_routing_keys_from_a_cut_before_a_merge_reads_all_their_events(manager: StreamManager) -> None:
    """The cut is before the merge on one side only: a reader of the other side's keys starts in the merged segment."""
    manager.create_stream("home", "halves")
    manager.scale_stream("home", "halves", [0], [(0.0, 0.5), (0.5, 1.0)])
    write(manager, "halves", range(2))
    low, high = manager.current_segments("home", "halves")
    ends = manager.stream_info("home", "halves").tail.positions
    manager.scale_stream("home", "halves", [low.segment_id, high.segment_id], [(0.0, 1.0)])
    write(manager, "halves", range(2, 4))
    tail = manager.stream_info("home", "halves").tail
    (merged,) = tail.positions
    start = StreamCut("home", "halves", {low.segment_id: 0, merged: -1})
    assert ends[high.segment_id] > 0
    for piece, count in ((low, 4), (high, 2)):
        key = next(k for k in KEYS if piece.low <= key_position(k) < piece.high)
        events = [e.data for e in manager.read_events("home", "halves", start=start, end=tail, routing_keys=[key])]
        assert [event for event in events if event.startswith(key.encode() + b":")] == [
            f"{key}:{number}".encode() for number in range(4 - count, 4)
        ]


def test_bookmarks_survive_a_killed_server_and_are_deleted_with_their_scope(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path) as server:
        with StreamManager(server.controller_uri) as manager:
            manager.create_scope("sc")
            manager.create_stream("sc", "st")
            manager.bookmarks("sc").create("kept", manager.stream_info("sc", "st").tail)
        server.kill()
    with nadi.embedded(tmp_path) as server, StreamManager(server.controller_uri) as manager:
        assert [b.name for b in manager.bookmarks("sc").list()] == ["kept"]
        assert manager.list_streams("sc") == ["st"]
        manager.seal_stream("sc", "st")
        manager.delete_stream("sc", "st")
        assert manager.delete_scope("sc")
        manager.create_scope("sc")
        assert manager.bookmarks("sc").list() == []


# --- the cut a number of events before another ---


def write_all(manager: nadi.StreamManager, stream: str, events: list[bytes], key: str | None = None) -> None:
    with manager.create_writer("home", stream) as writer:
        for number, event in enumerate(events):
            writer.write_event(event, key or f"{number}")


def between(manager: nadi.StreamManager, start: nadi.StreamCut, end: nadi.StreamCut) -> list[bytes]:
    with manager.create_reader("home", start.stream, start=start, end=end) as reader:
        return [event for _, block in reader for event in block]


def test_before_in_one_segment_returns_the_last_events(manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "one", 1)
    events = [b"%d" % number * (1 + number % 40) for number in range(3000)] + [bytes(300_000), b"", b"last"]
    write_all(manager, "one", events)
    cuts = manager.cuts("home", "one")
    tail, head = cuts.tail(), cuts.head()
    for count in (0, 1, 2, 3, 4, 17, 2000, 3002, 3003, 3004, 10_000):
        assert between(manager, cuts.before(tail, count), tail) == (events[-count:] if count else []), count
    middle = cuts.after(head, 1000)
    assert between(manager, cuts.before(middle, 10), middle) == events[990:1000]
    assert cuts.before(head, 5) == cuts.settled(head)
    with pytest.raises(InvalidArgumentError):
        cuts.before(tail, -1)


def test_before_counts_events_over_splits_and_merges(manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "scaled", 2)
    written: list[list[bytes]] = []
    for ranges in ([(0.0, 0.3), (0.3, 0.5)], [(0.0, 0.3)], [(0.0, 0.5)]):
        written.append([b"%d-%d" % (len(written), number) for number in range(40)])
        write_all(manager, "scaled", written[-1])
        low = [s for s in manager.current_segments("home", "scaled") if s.high <= ranges[-1][1]]
        manager.scale_stream("home", "scaled", [s.segment_id for s in low], ranges)
    written.append([b"3-%d" % number for number in range(40)])
    write_all(manager, "scaled", written[-1])
    cuts = manager.cuts("home", "scaled")
    tail = cuts.tail()
    for count in (1, 39, 40, 41, 79, 100, 159, 160, 161):
        start = cuts.before(tail, count)
        cuts.check(start)
        assert len(between(manager, start, tail)) == min(count, 160), count
    low = [s for s in manager.current_segments("home", "scaled") if s.high <= 0.5]
    manager.truncate_stream(cuts.after(cuts.head(), 50))
    assert len(between(manager, cuts.before(tail, 30), tail)) == 30
    assert len(between(manager, cuts.before(tail, 1000), tail)) == 110
    manager.truncate_stream(tail)
    assert between(manager, cuts.before(tail, 10), tail) == []


def test_before_takes_the_latest_events_of_all_segments(
    manager: nadi.StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuts_module, "_SAME_TIME_MS", 1000)
    manager.create_stream("home", "uneven", 2)
    low, high = manager.current_segments("home", "uneven")
    keys = {s.segment_id: next(f"{n}" for n in range(100) if s.takes_any([f"{n}"])) for s in (low, high)}
    write_all(manager, "uneven", [b"old" * 100] * 50, keys[low.segment_id])
    time.sleep(2.5)  # the index has a resolution of one second
    write_all(manager, "uneven", [b"new" * 100] * 50, keys[high.segment_id])
    cuts = manager.cuts("home", "uneven")
    tail = cuts.tail()
    assert between(manager, cuts.before(tail, 20), tail) == [b"new" * 100] * 20
    assert sorted(between(manager, cuts.before(tail, 60), tail)) == [b"new" * 100] * 50 + [b"old" * 100] * 10


def test_came_by_returns_arrival_times(manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "times", 1)
    began_ms = time.time_ns() // 1_000_000
    write_all(manager, "times", [b"x" * 5000] * 4)
    ended_ms = time.time_ns() // 1_000_000
    cuts = manager.cuts("home", "times")
    times = cuts.arrival_times(0, [0, 5008, 10016, 15024])
    assert all(at is not None and began_ms <= at <= ended_ms + 10_000 for at in times)
    assert times == sorted(times, key=lambda at: at or 0)
    assert cuts.arrival_times(0, []) == []
    manager.truncate_stream(cuts.after(cuts.head(), 2))
    assert cuts.arrival_times(0, [0, 10016]) == [None, times[2]]
