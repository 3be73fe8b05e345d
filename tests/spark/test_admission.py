"""Limits of a query's batch: bytes, events, bytes per segment, and the minimum to start one."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from nadi.client.reading import segment_range
from nadi.spark.reading import admission
from nadi.spark.reading.progress import StreamView

from .queries import Home, Query

pytestmark = pytest.mark.spark


def make(home: Home, name: str, events: int, size: int = 92, segments: int = 1) -> None:
    home.manager.create_stream("home", name, segments)
    write(home, name, events, size)


def write(home: Home, name: str, events: int, size: int = 92) -> None:
    with home.manager.create_writer("home", name) as writer:
        for number in range(events):
            writer.write_event(f"k{number % 16}:{number}".encode().ljust(size, b"."), f"k{number % 16}")


def test_limited_backlog_is_read_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    make(home, "once", 2000, segments=3)
    query = Query(home, "once", maxBytesPerTrigger="20000")
    read: list[str] = []
    whole = segment_range.read_segment_range

    def noted(*given: Any) -> Any:
        read.append(given[1])
        return whole(*given)

    monkeypatch.setattr("nadi.spark.reading.progress.read_segment_range", noted)
    assert len(query.run()) == 2000
    assert read == [], "planning asks where events end"
    assert 9 <= len(query.batches) <= 13
    assert all(len(batch) <= 225 for batch in query.batches)


@pytest.mark.parametrize("segments", [1, 3])
def test_batch_has_max_events(home: Home, segments: int) -> None:
    name = f"rows-{segments}"
    make(home, name, 1000, segments=segments)
    query = Query(home, name, maxOffsetsPerTrigger="70")
    assert len(query.run()) == 1000
    assert [len(batch) for batch in query.batches] == [70] * 14 + [20]


def test_events_are_shared_among_streams(home: Home) -> None:
    for name, events in (("dealt-a", 300), ("dealt-b", 2), ("dealt-c", 300)):
        make(home, name, events)
    query = Query(home, stream_pattern="dealt-.", maxOffsetsPerTrigger="100")
    query.trigger()
    assert len(query.batches[0]) == 100
    tails = {name: home.manager.cuts("home", name) for name in ("dealt-a", "dealt-b", "dealt-c")}
    ends = query.offsets[-1]["streams"]
    behind = [cuts.bytes_between(cuts.named(ends[name]["cut"]), cuts.tail()) // 100 for name, cuts in tails.items()]
    assert behind == [251, 0, 251]
    assert len(query.run()) == 602
    few = Query(home, stream_pattern="dealt-.", maxOffsetsPerTrigger="1")
    for _ in range(6):
        few.trigger()
    read = {name for one in few.offsets for name, at in one["streams"].items() if at != few.offsets[0]["streams"][name]}
    assert read == set(tails), "no stream waits for the others to be read"


def test_segment_gives_at_most_its_share(home: Home) -> None:
    make(home, "parts", 1000, segments=4)
    query = Query(home, "parts", maxBytesPerSegment="5000")
    query.trigger()
    (end,) = [home.manager.cuts("home", "parts").named(query.offsets[-1]["cut"])]
    assert all(4_000 <= offset <= 5_700 for offset in end.positions.values())
    assert len(query.run()) == 1000


@pytest.mark.parametrize("limit", [{"maxBytesPerTrigger": "1000"}, {"maxBytesPerSegment": "300"}])
def test_events_larger_than_a_share_are_read(home: Home, limit: dict[str, str]) -> None:
    name = f"large-{next(iter(limit)).lower()}"
    make(home, name, 5, segments=2)
    write(home, name, 12, size=200_000)
    write(home, name, 5)
    query = Query(home, name, **limit)
    assert len(query.run()) == 22
    assert max(map(len, query.batches)) <= 10


def test_batch_waits_for_min_events(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    class Clock:
        monotonic = staticmethod(lambda: now[0])

    monkeypatch.setattr(admission, "time", Clock)
    make(home, "enough", 3, segments=2)
    query = Query(home, "enough", minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    assert query.trigger(), "the first batch doesn't wait"
    counted: list[int] = []
    take = StreamView.take

    async def noted(self: Any, piece: Any, events: int) -> Any:
        found = await take(self, piece, events)
        counted.append(found[0])
        return found

    monkeypatch.setattr(StreamView, "take", noted)
    for _ in range(3):
        write(home, "enough", 3)
        assert not query.trigger()
        assert not query.trigger()
    assert sum(counted) == 9, "each is counted once"
    write(home, "enough", 3)
    assert query.trigger()
    assert len(query.batches[-1]) == 12
    write(home, "enough", 1)
    now[0] += 29.9
    assert not query.trigger()
    now[0] += 0.1
    assert query.trigger()
    assert len(query.batches[-1]) == 1
    write(home, "enough", 1)
    assert not query.trigger()
    once = query.reader.latestOffset(query.offsets[-1], ReadAllAvailable())
    assert len(query.read(query.offsets[-1], once)) == 1, "a trigger of once waits for nothing"
    query.reader.prepareForTriggerAvailableNow()
    assert query.trigger(), "nor does an available-now query"
