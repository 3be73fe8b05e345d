"""By the events' own time: what is told of a stream, what is played, and places in it."""

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
FASTEST = 604_800  # a week in a second


def ms(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def write(
    manager: StreamManager,
    scope: str,
    times: Iterable[datetime | None],
    keys: Sequence[str] = "abcde",
    stream: str = "meters",
) -> list[int]:
    """Write an event of each time, in this order; return the times of those that have one, in ms since 1970."""
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
    """Once the events' times are read."""
    found: dict[str, Any] = {}

    def is_known() -> bool:
        found.update(rest.get(f"{path}/span", params=query).raise_for_status().json())
        return found["bytesUnknown"] is None

    until(is_known)
    return found


def times_of(events: list[dict[str, Any]]) -> list[int]:
    return [one["time"] for one in events]


@pytest.fixture
def year(manager: StreamManager, scope: str) -> tuple[str, list[int]]:
    """A year of hours, loaded at once, but for two weeks in August; and their times."""
    hours = [START + timedelta(hours=hour) for hour in range(365 * 24)]
    path = by_event_time(manager, scope)
    return path, write(manager, scope, (hour for hour in hours if not (hour.month == 8 and hour.day < 15)))


def test_a_span_by_event_time_has_the_first_and_the_last_time_and_how_events_lie_between(
    rest: httpx.Client, year: tuple[str, list[int]]
) -> None:
    path, times = year
    span = span_of(rest, path)
    assert (span["head"]["time"], span["tail"]["time"], span["eventTime"]) == (times[0], times[-1], "read_at")
    steps = np.sum([one["bytes"] for one in span["steps"]], axis=0)
    each = len(json.dumps({"read_at": START.isoformat()})) + 8
    assert steps.sum() == len(times) * each
    counted, borders = np.histogram(times, len(steps), (times[0], times[-1]))
    assert np.abs(steps / each - counted).mean() < counted.mean() / 10
    august = (borders[:-1] > ms(datetime(2025, 8, 3, tzinfo=UTC))) & (
        borders[1:] < ms(datetime(2025, 8, 13, tzinfo=UTC))
    )
    assert august.sum() > 5
    assert steps[august].max() < steps.mean() / 4, "a stretch of the index goes over it"
    arrival = span_of(rest, path, by="arrival")
    assert (arrival["eventTime"], arrival["steps"]) == (None, [])
    assert arrival["tail"]["time"] - arrival["head"]["time"] < DAY_MS


def test_a_week_is_played_by_event_time(rest: httpx.Client, year: tuple[str, list[int]]) -> None:
    path, times = year
    begins, ends = ms(MONDAY), ms(MONDAY) + WEEK_MS
    wanted = [time for time in times if begins <= time < ends]
    week: dict[str, str | int] = {"from": begins, "to": ends}
    assert times_of(played(rest, f"{path}/play", speed=FASTEST, **week)) == wanted
    first = rest.get(f"{path}/events", params={**week, "most": 2}).json()
    assert (times_of(first["events"]), first["next"]) == (wanted[:2], wanted[2])
    places: dict[str, str | int] = {"start": "event:2025-11-03", "end": "event:2025-11-10", "most": 200}
    assert times_of(rest.get(f"{path}/events", params=places).json()["events"]) == wanted
    assert played(rest, f"{path}/play", speed=FASTEST, **{"from": ends, "to": begins}) == []


def test_what_is_played_by_event_time_is_counted_wherever_it_begins(
    rest: httpx.Client, year: tuple[str, list[int]]
) -> None:
    path, times = year
    seen = passed = 0
    with rest.stream(
        "GET", f"{path}/play", params={"speed": FASTEST, "from": ms(datetime(2025, 7, 1, tzinfo=UTC))}
    ) as got:
        for kind, batch in messages(got):
            if kind == "batch":
                assert not batch["isBehind"]
                seen, passed = seen + len(batch["events"]), passed + batch["passed"]
    assert seen + passed == sum(time >= ms(datetime(2025, 7, 1, tzinfo=UTC)) for time in times)


def test_places_by_event_time_are_taken_wherever_a_place_is(
    rest: httpx.Client, manager: StreamManager, scope: str, year: tuple[str, list[int]]
) -> None:
    path, _ = year
    cuts = manager.cuts(scope, "meters")
    monday, at = cuts.at_event_time(MONDAY).as_text(), {"at": "event:2025-11-03"}
    assert rest.get(f"{path}/cut", params=at).json()["cut"] == monday
    assert rest.get(f"{path}/cut", params={"at": "event:2025-11-03T00:00+00:00"}).json()["cut"] == monday
    mark = rest.post(f"/v1/data/{scope}/bookmarks", json={"name": "monday", "streamName": "meters", **at}).json()
    assert mark["cut"] == monday
    assert 0 <= ms(MONDAY) - mark["time"] <= 2 * DAY_MS, "the last that lies before it, to a stretch of the index"
    both = {"start": "event:2025-11-03", "end": "event:2025-11-10"}
    made = rest.post(f"/v1/data/{scope}/slices", json={"name": "week", "streamName": "meters", **both}).json()
    start, end = cuts.between(MONDAY, MONDAY + timedelta(days=7))
    assert (made["start"]["cut"], made["end"]["cut"]) == (start.as_text(), end.as_text())
    assert len(played(rest, f"{path}/play", speed=FASTEST, slice="week")) == 7 * 24
    for query, least in (({}, 0), ({"by": "arrival"}, ms(datetime.now(UTC)) - DAY_MS)):
        (listed,) = rest.get(f"/v1/data/{scope}/bookmarks", params=query).json()
        (named,) = rest.get(f"/v1/data/{scope}/slices", params=query).json()
        for time in (listed["time"], named["start"]["time"], named["end"]["time"]):
            assert (time >= least) if least else abs(time - ms(MONDAY)) < WEEK_MS + 2 * DAY_MS
    with rest.stream("GET", f"{path}/tail", params={"start": "event:2025-12-31"}) as tail:
        found: list[int] = []
        for _, batch in messages(tail):
            found += [batch["passed"] + len(batch["events"])]
            if sum(found) >= 24:
                break
    assert sum(found) == 24
    gone = rest.post(f"{path}/truncation", json={"at": "event:2025-07-01"}).json()
    assert gone["cut"] == manager.cuts(scope, "meters").head().as_text()
    head_ms = span_of(rest, path)["head"]["time"]
    assert 0 <= ms(datetime(2025, 7, 1, tzinfo=UTC)) - head_ms <= 2 * DAY_MS
    assert times_of(rest.get(f"{path}/events").json()["events"]) == [ms(datetime(2025, 7, 1, tzinfo=UTC))]
    for wrong, word in (("event:yesterday", "yesterday"), ("event:2025-11-03T00:00", "zone"), ("event:", "time")):
        assert word in error_of(rest.get(f"{path}/cut", params={"at": wrong}), 400)


def test_events_out_of_order_are_due_with_the_latest_before_them(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    path = by_event_time(manager, scope)
    hours = [START + timedelta(hours=hour) for hour in (0, 1, 5, 2, 6, 3, 7, 4)]
    times = write(manager, scope, hours, "a")
    found = played(rest, f"{path}/play", speed=FASTEST)
    assert times_of(found) == times
    assert [one.get("due", one["time"]) for one in found] == np.maximum.accumulate(times).tolist()
    within = {"from": times[0] + 2 * HOUR_MS, "to": times[0] + 6 * HOUR_MS}
    assert times_of(played(rest, f"{path}/play", speed=FASTEST, **within)) == [times[i] for i in (2, 3, 5, 7)]
    span = span_of(rest, path)
    assert (span["head"]["time"], span["tail"]["time"]) == (times[0], times[0] + 7 * HOUR_MS)


def test_times_before_1970_are_times(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = by_event_time(manager, scope)
    days = [datetime(1969, 12, 25, tzinfo=UTC) + timedelta(days=day) for day in range(14)]
    times = write(manager, scope, days)
    span = span_of(rest, path)
    assert (span["head"]["time"], span["tail"]["time"]) == (times[0], times[-1])
    assert times[0] < 0 < times[-1]
    query = {"from": times[2], "to": times[9]}
    assert times_of(played(rest, f"{path}/play", speed=FASTEST, **query)) == times[2:9]
    assert rest.get(f"{path}/events", params={"from": times[3]}).json()["events"][0]["time"] == times[3]


def test_events_without_a_time_are_left_out_and_counted(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    """Of one segment all; and what lies before the first that has one, as in a stream that was updated later."""
    write(manager, scope, [None] * 50, "abcdefgh")
    path = by_event_time(manager, scope)
    end = manager.cuts(scope, "meters").tail()
    segments = [one.segment_id for one in manager.read_events(scope, "meters", end=end)]
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
    with rest.stream("GET", f"{path}/play", params={"speed": FASTEST, "from": times[0]}) as got:
        for kind, batch in messages(got):
            if kind == "batch":
                seen += times_of(batch["events"])
                timeless += batch["timeless"]
    assert seen == times + late
    in_both = segments.count(span["steps"][0]["segment"])
    assert timeless == in_both + 7 + 9, "the other segment, which has no times at all, isn't read"


def test_what_is_not_in_the_index_yet_is_played_from_a_time_as_well(
    rest: httpx.Client, year: tuple[str, list[int]]
) -> None:
    path, times = year
    begins = ms(MONDAY)
    found = played(rest, f"{path}/play", speed=FASTEST, **{"from": begins, "to": begins + DAY_MS})
    assert times_of(found) == [time for time in times if begins <= time < begins + DAY_MS]


def test_a_scaled_stream_is_played_by_event_time_in_its_order(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    path = by_event_time(manager, scope)
    times = write(manager, scope, (START + timedelta(hours=hour) for hour in range(100)))
    manager.scale_stream(scope, "meters", [0, 1], [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
    times += write(manager, scope, (START + timedelta(hours=hour) for hour in range(100, 200)))
    for _ in range(2):  # without the index, and then with it
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
        ("streams/meters/play?to=noon", "to is"),
        ("streams/meters/play?speed=604801", "speed"),
    ],
)
def test_a_time_that_a_stream_does_not_have_is_refused(
    rest: httpx.Client, manager: StreamManager, query: str, word: str
) -> None:
    manager.create_scope("no-times")
    manager.create_stream("no-times", "meters")
    assert word in error_of(rest.get(f"/v1/data/no-times/{query}"), 400)
