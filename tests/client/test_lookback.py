"""The cut some events before another one: which events lie between the two, over splits, merges and truncation."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import nadi
from nadi.client.places import cuts as lookback
from nadi.errors import InvalidArgumentError


@pytest.fixture(scope="module")
def manager(server: nadi.standalone.EmbeddedServer) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        yield manager


def write(manager: nadi.StreamManager, stream: str, events: list[bytes], key: str | None = None) -> None:
    with manager.create_writer("home", stream) as writer:
        for number, event in enumerate(events):
            writer.write_event(event, key or f"{number}")


def between(manager: nadi.StreamManager, start: nadi.StreamCut, end: nadi.StreamCut) -> list[bytes]:
    with manager.create_reader("home", start.stream, start=start, end=end) as reader:
        return [event for _, block in reader for event in block]


def test_in_one_segment_it_is_the_last_events(manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "one", 1)
    events = [b"%d" % number * (1 + number % 40) for number in range(3000)] + [bytes(300_000), b"", b"last"]
    write(manager, "one", events)
    cuts = manager.cuts("home", "one")
    tail, head = cuts.tail(), cuts.head()
    for count in (0, 1, 2, 3, 4, 17, 2000, 3002, 3003, 3004, 10_000):
        found = between(manager, cuts.before(tail, count), tail)
        assert found == (events[-count:] if count else []), count
    middle = cuts.after(head, 1000)
    assert between(manager, cuts.before(middle, 10), middle) == events[990:1000]
    assert cuts.before(head, 5) == cuts.settled(head)
    with pytest.raises(InvalidArgumentError, match="before no other"):
        cuts.before(tail, -1)


def test_over_splits_and_merges(manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "scaled", 2)
    written: list[list[bytes]] = []
    for ranges in ([(0.0, 0.3), (0.3, 0.5)], [(0.0, 0.3)], [(0.0, 0.5)]):
        written.append([b"%d-%d" % (len(written), number) for number in range(40)])
        write(manager, "scaled", written[-1])
        low = [s for s in manager.current_segments("home", "scaled") if s.high <= ranges[-1][1]]
        manager.scale_stream("home", "scaled", [s.segment_id for s in low], ranges)
    written.append([b"3-%d" % number for number in range(40)])
    write(manager, "scaled", written[-1])
    cuts = manager.cuts("home", "scaled")
    tail = cuts.tail()
    for count in (1, 39, 40, 41, 79, 100, 159, 160, 161):
        start = cuts.before(tail, count)
        cuts.check(start)
        assert len(between(manager, start, tail)) == min(count, 160), count
    low = [s for s in manager.current_segments("home", "scaled") if s.high <= 0.5]
    kept = cuts.after(cuts.head(), 50)
    manager.truncate_stream(kept)
    assert len(between(manager, cuts.before(tail, 30), tail)) == 30
    assert len(between(manager, cuts.before(tail, 1000), tail)) == 110
    manager.truncate_stream(tail)
    assert between(manager, cuts.before(tail, 10), tail) == []


def test_a_segment_that_was_idle_gives_nothing(manager: nadi.StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookback, "_SAME_TIME_MS", 1000)
    manager.create_stream("home", "uneven", 2)
    low, high = manager.current_segments("home", "uneven")
    keys = {s.segment_id: next(f"{n}" for n in range(100) if s.takes_any([f"{n}"])) for s in (low, high)}
    write(manager, "uneven", [b"old" * 100] * 50, keys[low.segment_id])
    time.sleep(2.5)  # the index leaves a second open
    write(manager, "uneven", [b"new" * 100] * 50, keys[high.segment_id])
    cuts = manager.cuts("home", "uneven")
    tail = cuts.tail()
    assert between(manager, cuts.before(tail, 20), tail) == [b"new" * 100] * 20
    assert sorted(between(manager, cuts.before(tail, 60), tail)) == [b"new" * 100] * 50 + [b"old" * 100] * 10


def test_by_when_events_had_come(manager: nadi.StreamManager) -> None:
    manager.create_stream("home", "times", 1)
    began_ms = time.time_ns() // 1_000_000
    write(manager, "times", [b"x" * 5000] * 4)
    ended_ms = time.time_ns() // 1_000_000
    cuts = manager.cuts("home", "times")
    found = cuts.came_by(0, [0, 5008, 10016, 15024])
    assert all(one is not None and began_ms <= one <= ended_ms + 10_000 for one in found)
    assert found == sorted(found, key=lambda one: one or 0)
    assert cuts.came_by(0, []) == []
    manager.truncate_stream(cuts.after(cuts.head(), 2))
    assert cuts.came_by(0, [0, 10016]) == [None, found[2]]
