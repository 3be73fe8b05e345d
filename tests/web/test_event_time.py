"""Spans, replays and positions by event time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import numpy as np
import pytest

from nadi.client import StreamManager
from tests.support.waiting import until
from tests.web.support import error_of, messages, played

START = datetime(2025, 1, 1, tzinfo=UTC)
MONDAY = datetime(2025, 11, 3, tzinfo=UTC)
HOUR_MS, DAY_MS, WEEK_MS = 3_600_000, 86_400_000, 7 * 86_400_000
FASTEST = 604_800  # a week per second


def ms(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def write(
    manager: StreamManager,
    scope: str,
    times: Iterable[datetime | None],
    keys: Sequence[str] = "abcde",
    stream: str = "meters",
) -> list[int]:
    """Write an event with each time, or without; return the times in ms since 1970."""
    events = [{"wh": 1} if time is None else {"read_at": time.isoformat()} for time in times]
    with manager.create_writer(scope, stream) as writer:
        writer.write_batch(
            [json.dumps(event).encode() for event in events], [keys[i % len(keys)] for i in range(len(events))]
        )
    return [ms(datetime.fromisoformat(str(event["read_at"]))) for event in events if "read_at" in event]


def by_event_time(manager: StreamManager, scope: str) -> str:
    manager.update_stream(scope, "meters", event_time="read_at")
    return f"/v1/data/{scope}/streams/meters"


def span_of(rest: httpx.Client, path: str, **query: str) -> dict[str, Any]:
    """Wait until event times are indexed, and return the span."""
    span: dict[str, Any] = {}

    def is_known() -> bool:
        span.update(rest.get(f"{path}/span", params=query).raise_for_status().json())
        return span["bytesUnknown"] is None

    until(is_known)
    return span


def times_of(events: list[dict[str, Any]]) -> list[int]:
    return [event["time"] for event in events]


@pytest.fixture
def year(manager: StreamManager, scope: str) -> tuple[str, list[int]]:
    """A year of hourly events, except for two weeks in August, written at once; and their times."""
    hours = [START + timedelta(hours=hour) for hour in range(365 * 24)]
    path = by_event_time(manager, scope)
    return path, write(manager, scope, (hour for hour in hours if not (hour.month == 8 and hour.day < 15)))


def test_span_by_event_time_has_ends_and_distribution(rest: httpx.Client, year: tuple[str, list[int]]) -> None:
    path, times = year
    span = span_of(rest, path)
    assert (span["head"]["time"], span["tail"]["time"], span["eventTime"]) == (times[0], times[-1], "read_at")
    steps = np.sum([segment["bytes"] for segment in span["steps"]], axis=0)
    each = len(json.dumps({"read_at": START.isoformat()})) + 8
    assert steps.sum() == len(times) * each
    counted, borders = np.histogram(times, len(steps), (times[0], times[-1]))
    assert np.abs(steps / each - counted).mean() < counted.mean() / 10
    august = (borders[:-1] > ms(datetime(2025, 8, 3, tzinfo=UTC))) & (
        borders[1:] < ms(datetime(2025, 8, 13, tzinfo=UTC))
    )
    assert august.sum() > 5
    assert steps[august].max() < steps.mean() / 4, "an index entry spans it"
    arrival = span_of(rest, path, by="arrival")
    assert (arrival["eventTime"], arrival["steps"]) == (None, [])
    assert arrival["tail"]["time"] - arrival["head"]["time"] < DAY_MS


def test_replay_of_a_week_by_event_time(rest: httpx.Client, year: tuple[str, list[int]]) -> None:
    path, times = year
    begins, ends = ms(MONDAY), ms(MONDAY) + WEEK_MS
    expected = [time for time in times if begins <= time < ends]
    week: dict[str, str | int] = {"from": begins, "to": ends}
    assert times_of(played(rest, f"{path}/play", speed=FASTEST, **week)) == expected
    first = rest.get(f"{path}/events", params={**week, "most": 2}).json()
    assert (times_of(first["events"]), first["next"]) == (expected[:2], expected[2])
    positions: dict[str, str | int] = {"start": "event:2025-11-03", "end": "event:2025-11-10", "most": 200}
    assert times_of(rest.get(f"{path}/events", params=positions).json()["events"]) == expected
    assert played(rest, f"{path}/play", speed=FASTEST, **{"from": ends, "to": begins}) == []


def test_replay_ends_within_its_range(rest: httpx.Client, year: tuple[str, list[int]]) -> None:
    path, times = year
    last = max(time for time in times if time < ms(MONDAY) + WEEK_MS)
    with rest.stream("GET", f"{path}/play", params={"speed": FASTEST, "from": last, "to": last + 1}) as response:
        assert [batch["at"] for kind, batch in messages(response) if kind == "batch"][-1] in (last, last + 1)


def test_replay_by_event_time_counts_skipped_events(rest: httpx.Client, year: tuple[str, list[int]]) -> None:
    path, times = year
    seen = passed = 0
    with rest.stream(
        "GET", f"{path}/play", params={"speed": FASTEST, "from": ms(datetime(2025, 7, 1, tzinfo=UTC))}
    ) as response:
        for kind, batch in messages(response):
            if kind == "batch":
                assert not batch["isBehind"]
                seen, passed = seen + len(batch["events"]), passed + batch["passed"]
    assert seen + passed == sum(time >= ms(datetime(2025, 7, 1, tzinfo=UTC)) for time in times)


def test_positions_by_event_time_are_accepted_everywhere(
    rest: httpx.Client, manager: StreamManager, scope: str, year: tuple[str, list[int]]
) -> None:
    path, _ = year
    cuts = manager.cuts(scope, "meters")
    monday, at = cuts.at_event_time(MONDAY).as_text(), {"at": "event:2025-11-03"}
    assert rest.get(f"{path}/cut", params=at).json()["cut"] == monday
    assert rest.get(f"{path}/cut", params={"at": "event:2025-11-03T00:00+00:00"}).json()["cut"] == monday
    bookmark = rest.post(f"/v1/data/{scope}/bookmarks", json={"name": "monday", "streamName": "meters", **at}).json()
    assert bookmark["cut"] == monday
    assert 0 <= ms(MONDAY) - bookmark["time"] <= 2 * DAY_MS, "accurate to an index entry"
    both = {"start": "event:2025-11-03", "end": "event:2025-11-10"}
    week = rest.post(f"/v1/data/{scope}/slices", json={"name": "week", "streamName": "meters", **both}).json()
    start, end = cuts.between(MONDAY, MONDAY + timedelta(days=7))
    assert (week["start"]["cut"], week["end"]["cut"]) == (start.as_text(), end.as_text())
    assert len(played(rest, f"{path}/play", speed=FASTEST, slice="week")) == 7 * 24
    for query, least in (({}, 0), ({"by": "arrival"}, ms(datetime.now(UTC)) - DAY_MS)):
        (listed,) = rest.get(f"/v1/data/{scope}/bookmarks", params=query).json()
        (named,) = rest.get(f"/v1/data/{scope}/slices", params=query).json()
        for time in (listed["time"], named["start"]["time"], named["end"]["time"]):
            assert (time >= least) if least else abs(time - ms(MONDAY)) < WEEK_MS + 2 * DAY_MS
    with rest.stream("GET", f"{path}/tail", params={"start": "event:2025-12-31"}) as tail:
        counts: list[int] = []
        for _, batch in messages(tail):
            counts += [batch["passed"] + len(batch["events"])]
            if sum(counts) >= 24:
                break
    assert sum(counts) == 24
    truncation = rest.post(f"{path}/truncation", json={"at": "event:2025-07-01"}).json()
    assert truncation["cut"] == manager.cuts(scope, "meters").head().as_text()
    head_ms = span_of(rest, path)["head"]["time"]
    assert 0 <= ms(datetime(2025, 7, 1, tzinfo=UTC)) - head_ms <= 2 * DAY_MS
    assert times_of(rest.get(f"{path}/events").json()["events"]) == [ms(datetime(2025, 7, 1, tzinfo=UTC))]
    for wrong in ("event:yesterday", "event:2025-11-03T00:00", "event:"):
        error_of(rest.get(f"{path}/cut", params={"at": wrong}), 400)


def test_late_events_are_due_with_the_latest_before_them(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    path = by_event_time(manager, scope)
    hours = [START + timedelta(hours=hour) for hour in (0, 1, 5, 2, 6, 3, 7, 4)]
    times = write(manager, scope, hours, "a")
    events = played(rest, f"{path}/play", speed=FASTEST)
    assert times_of(events) == times
    assert [event.get("due", event["time"]) for event in events] == np.maximum.accumulate(times).tolist()
    within = {"from": times[0] + 2 * HOUR_MS, "to": times[0] + 6 * HOUR_MS}
    assert times_of(played(rest, f"{path}/play", speed=FASTEST, **within)) == [times[i] for i in (2, 3, 5, 7)]
    span = span_of(rest, path)
    assert (span["head"]["time"], span["tail"]["time"]) == (times[0], times[0] + 7 * HOUR_MS)


def test_event_times_before_1970_are_supported(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = by_event_time(manager, scope)
    days = [datetime(1969, 12, 25, tzinfo=UTC) + timedelta(days=day) for day in range(14)]
    times = write(manager, scope, days)
    span = span_of(rest, path)
    assert (span["head"]["time"], span["tail"]["time"]) == (times[0], times[-1])
    assert times[0] < 0 < times[-1]
    query = {"from": times[2], "to": times[9]}
    assert times_of(played(rest, f"{path}/play", speed=FASTEST, **query)) == times[2:9]
    assert rest.get(f"{path}/events", params={"from": times[3]}).json()["events"][0]["time"] == times[3]


def test_replay_by_event_time_counts_events_without_time(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    """One segment has no event times at all, the other one only later events, as after an update of the stream."""
    write(manager, scope, [None] * 50, "abcdefgh")
    path = by_event_time(manager, scope)
    end = manager.cuts(scope, "meters").tail()
    segments = [event.segment_id for event in manager.read_events(scope, "meters", end=end)]
    assert set(segments) == {0, 1}
    assert span_of(rest, path)["head"]["time"] is None
    assert played(rest, f"{path}/play", speed=FASTEST) == []
    assert len(played(rest, f"{path}/play", by="arrival")) == 50
    times = write(manager, scope, (START + timedelta(hours=hour) for hour in range(30)), "a")
    write(manager, scope, [None] * 7, "a")
    late = write(manager, scope, [START + timedelta(hours=31)], "a")
    write(manager, scope, [None] * 9, "a")
    span = span_of(rest, path)
    assert (span["head"]["time"], span["tail"]["time"], len(span["steps"])) == (times[0], late[0], 1)
    seen, timeless = list[int](), 0
    with rest.stream("GET", f"{path}/play", params={"speed": FASTEST, "from": times[0]}) as response:
        for kind, batch in messages(response):
            if kind == "batch":
                seen += times_of(batch["events"])
                timeless += batch["timeless"]
    assert seen == times + late
    in_both = segments.count(span["steps"][0]["segment"])
    assert timeless == in_both + 7 + 9, "the segment without event times isn't read"


def test_replay_from_a_time_without_an_index(rest: httpx.Client, year: tuple[str, list[int]]) -> None:
    path, times = year
    begins = ms(MONDAY)
    events = played(rest, f"{path}/play", speed=FASTEST, **{"from": begins, "to": begins + DAY_MS})
    assert times_of(events) == [time for time in times if begins <= time < begins + DAY_MS]


def test_replay_of_a_scaled_stream_is_ordered_by_event_time(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    path = by_event_time(manager, scope)
    times = write(manager, scope, (START + timedelta(hours=hour) for hour in range(100)))
    manager.scale_stream(scope, "meters", [0, 1], [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
    times += write(manager, scope, (START + timedelta(hours=hour) for hour in range(100, 200)))
    for _ in range(2):  # first without, then with the index
        assert times_of(played(rest, f"{path}/play", speed=FASTEST)) == times
        span_of(rest, path)


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("streams/meters/span?by=event-time", "event_time"),
        ("streams/meters/play?by=event-time", "event_time"),
        ("streams/meters/events?by=noon", "noon"),
        ("streams/meters/span?by=noon", "noon"),
        ("streams/meters/groups?by=noon", "noon"),
        ("bookmarks?by=noon", "noon"),
        ("streams/meters/play?to=noon", "to"),
        ("streams/meters/play?speed=604801", "speed"),
    ],
)
def test_invalid_clock_or_time_is_rejected(rest: httpx.Client, manager: StreamManager, query: str, word: str) -> None:
    manager.create_scope("no-times")
    manager.create_stream("no-times", "meters")
    assert word in error_of(rest.get(f"/v1/data/no-times/{query}"), 400)
