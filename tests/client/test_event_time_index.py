"""Cuts by events' own times, compared with plain Python, for events loaded at once, live and out of order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import nadi
from nadi.client import CutOrder
from nadi.client.segments.info import SegmentInfo, segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.client.stream_cuts import event_index
from nadi.errors import InvalidArgumentError
from nadi.model.event_time import EventTime

YEAR = datetime(2025, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def manager(server: nadi.standalone.EmbeddedServer) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("grid")
        yield manager


def check(manager: nadi.StreamManager, stream: str, times: dict[bytes, datetime], most: int, count: int = 40) -> None:
    """Check that cuts by time include all events that they must, and at most `most` others."""
    cuts = manager.cuts("grid", stream)
    head, tail = cuts.head(), cuts.tail()
    first, last = min(times.values()), max(times.values())
    chosen = random.Random(3)
    moments = [first, last, last + HOUR, first - HOUR, *(chosen.choice(list(times.values())) for _ in range(count))]
    for moment in moments:
        start, end = cuts.at_event_time(moment), cuts.after_event_time(moment)
        assert end is not None
        before = [event.data for event in manager.read_events("grid", stream, start=head, end=start)]
        assert all(times[event] < moment for event in before if event in times)
        assert sum(time < moment for time in times.values()) - len(before) <= most
        behind = [event.data for event in manager.read_events("grid", stream, start=end, end=tail)]
        assert all(times[event] >= moment for event in behind if event in times)
        assert sum(time >= moment for time in times.values()) - len(behind) <= most
        between = cuts.between(moment, moment + 24 * HOUR)
        events = [event.data for event in manager.read_events("grid", stream, start=between[0], end=between[1])]
        assert {event for event, time in times.items() if moment <= time < moment + 24 * HOUR} <= set(events)


def test_cuts_by_time_of_events_loaded_at_once(manager: nadi.StreamManager) -> None:
    manager.create_stream("grid", "year", 3, event_time="read_at")
    times = {
        msgspec.json.encode({"meter": meter, "read_at": YEAR + hour * HOUR}): YEAR + hour * HOUR
        for hour in range(24 * 60)
        for meter in range(5)
    }
    with manager.create_writer("grid", "year") as writer:
        writer.write_batch(list(times), [f"meter {number % 5}" for number in range(len(times))])
    check(manager, "year", times, most=3 * 20)


def test_cuts_by_time_include_all_events_despite_disorder_and_scaling(manager: nadi.StreamManager) -> None:
    manager.create_stream("grid", "odd", 1, event_time=EventTime("of.at", "ms"))
    chosen = random.Random(1)
    times: dict[bytes, datetime] = {}
    with manager.create_writer("grid", "odd") as writer:
        for ranges in ([(0.0, 0.4), (0.4, 1.0)], [(0.0, 1.0)], None):
            for number in range(400):
                late = chosen.choice([0, 0, 0, chosen.randrange(48)])
                time = datetime(1969, 12, 1, tzinfo=UTC) + (number - late) * HOUR
                event = msgspec.json.encode({"of": {"at": round(time.timestamp() * 1000)}, "n": len(times)})
                times[event] = time
                writer.write_event(event, f"{number % 7}")
                writer.write_event(b"no time \xff", "x")
                writer.write_event(b'{"of": {"at": "soon"}}', "y")
            writer.flush()
            if ranges is not None:
                ids = [piece.segment_id for piece in manager.current_segments("grid", "odd")]
                manager.scale_stream("grid", "odd", ids, ranges)
    check(manager, "odd", times, most=len(times), count=10)


def test_cuts_of_growing_times_are_exact_among_events_without_a_time(manager: nadi.StreamManager) -> None:
    manager.create_stream("grid", "gaps", 1, event_time="at")
    events = [msgspec.json.encode({"at": YEAR + hour * HOUR}) for hour in range(200)]
    with manager.create_writer("grid", "gaps") as writer:
        writer.write_batch([event for timed in events for event in (timed, b"no time", b"[]")], "k")
    cuts = manager.cuts("grid", "gaps")
    for hour in (1, 100, 198):
        start, end = cuts.between(YEAR + hour * HOUR, YEAR + (hour + 1) * HOUR)
        assert [event.data for event in manager.read_events("grid", "gaps", start=start, end=end)] == [events[hour]]


def test_cuts_by_time_follow_appends_and_truncation(manager: nadi.StreamManager) -> None:
    manager.create_stream("grid", "live", 1, event_time=EventTime("at", format="msgpack"))
    times = {msgspec.msgpack.encode({"at": YEAR + hour * HOUR}): YEAR + hour * HOUR for hour in range(300)}
    events = list(times)
    cuts = manager.cuts("grid", "live")
    assert cuts.at_event_time(YEAR) == cuts.after_event_time(YEAR) == cuts.head()
    with manager.create_writer("grid", "live") as writer:
        for part in (events[:100], events[100:101], events[101:]):
            writer.write_batch(part, ["k"] * len(part))
            check(manager, "live", {event: times[event] for event in events[: events.index(part[-1]) + 1]}, 20, 3)
        manager.truncate_stream(cuts.at_event_time(YEAR + 200 * HOUR))
        assert cuts.at_event_time(YEAR) == cuts.head() == cuts.after_event_time(YEAR)
        late = msgspec.msgpack.encode({"at": YEAR})
        writer.write_event(late, "k").result(60)
        assert cuts.at_event_time(YEAR) == cuts.head()
        assert cuts.after_event_time(YEAR + HOUR) == cuts.tail()


def test_reader_without_write_permission_gets_a_less_precise_cut(
    manager: nadi.StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.create_stream("grid", "closed", 1, event_time="at")

    async def refused(*_: object) -> None:
        raise nadi.errors.PermissionDeniedError("no")

    with manager.create_writer("grid", "closed") as writer:
        writer.write_batch([b'{"at": "2025-01-01T00:00Z"}'] * 5_000, ["k"] * 5_000)
    cuts = manager.cuts("grid", "closed")
    with monkeypatch.context() as patch:
        patch.setattr(event_index._SegmentIndexer, "index", refused)
        assert cuts.compare(cuts.at_event_time(YEAR + HOUR), cuts.tail()) is CutOrder.BEFORE
        assert cuts.after_event_time(YEAR) == cuts.tail()
    assert cuts.at_event_time(YEAR + HOUR) == cuts.tail()
    assert cuts.after_event_time(YEAR) == cuts.head()


def test_invalid_event_time_is_rejected() -> None:
    paths: list[Any] = [{"path": ""}, {"path": "a..b"}, {"path": 5}]
    options: list[Any] = [{"unit": "min"}, {"unit": ["s"]}, {"format": "xml"}]
    for arguments in [*paths, *({"path": "a"} | option for option in options)]:
        with pytest.raises(InvalidArgumentError):
            EventTime(**arguments)


def test_event_time_field_can_be_changed_and_removed(manager: nadi.StreamManager) -> None:
    manager.create_stream("grid", "changed", 1, event_time="a")
    with manager.create_writer("grid", "changed") as writer:
        writer.write_event(b'{"a": 1767225600, "b": 1000}', "k").result(60)
    cuts = manager.cuts("grid", "changed")
    assert cuts.at_event_time(2_000_000) == cuts.head()
    manager.update_stream("grid", "changed", event_time="b")
    assert cuts.at_event_time(2_000_000) == cuts.tail()
    assert manager.stream_configuration("grid", "changed").event_time == EventTime("b")
    manager.update_stream("grid", "changed", tags=["t"])
    assert manager.stream_configuration("grid", "changed").event_time == EventTime("b")
    manager.update_stream("grid", "changed", event_time=None)
    assert manager.stream_configuration("grid", "changed").event_time is None
    assert cuts.after_event_time(2_000_000) is None, "no writer has noted a time"


def test_cuts_by_time_distinguish_microseconds(manager: nadi.StreamManager) -> None:
    manager.create_stream("grid", "fine", 1, event_time=EventTime("at", "us"))
    with manager.create_writer("grid", "fine") as writer:
        writer.write_batch([b'{"at": %d}' % number for number in range(999_000, 1_003_000, 10)], ["k"] * 400)
    cuts = manager.cuts("grid", "fine")
    for us in (999_000, 1_000_005, 1_001_990, 1_002_990):
        time = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)
        end = cuts.after_event_time(time)
        assert end is not None
        assert cuts.events_between(cuts.head(), end) == -(-(us - 999_000) // 10)
        assert cuts.at_event_time(time) == end
        assert cuts.named(f"event:{time.isoformat()}", end=True) == end
        assert cuts.events_between(*cuts.between(time, time + timedelta(microseconds=10))) == 1
        with pytest.raises(InvalidArgumentError):
            cuts.between(time, time - timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("path", "form", "events", "seconds"),
    [
        ("at", "json", [b"[1]", b'{"at": [1]}', b'{"at": {}}', b'{"at": true}', b'{"at": 1e400}'], [None] * 5),
        ("of.at", "json", [b"[1]", b'{"of": {"at": [1]}}', b'{"of": {"at": {"a": 1}}}', b'{"of": 5}'], [None] * 4),
        (
            "at",
            "json",
            [b'{"at": 1, "x": 1e400}', b'{"at": 2, "x": %s}' % (b"9" * 5_000), b"5", b""],
            [1, 2, None, None],
        ),
        ("of.at", "json", [b'{"of": {"at": 1, "x": 1e400}}', b'{"of.at": "1970-01-01T00:00:02Z"}'], [1, 2]),
        ("at", "json", [b'{"at": 1, "at": 2}', b'{"\\ud83d": "\\ud83d", "at": 3}', b'{"at": "\\ud83d"}'], [2, 3, None]),
        ("at", "msgpack", [b"\x82\xa2at\x05\xa1x\xa1\xff", b"\x82\x90\x01\xa2at\x06", b"\x07"], [5, 6, None]),
        (
            "at",
            "msgpack",
            [b"\x81\xa2at\x91\x05", b"\x81\xa2at\x80", b"\x81\xa2at\xc3", b"\x81\xa2at\xd6\xff\0\0\0\7"],
            [None] * 3 + [7],
        ),
    ],
)
def test_time_of_an_event_does_not_depend_on_other_events(
    path: str, form: str, events: list[bytes], seconds: list[int | None]
) -> None:
    times = event_index.times_of(EventTime(path, format=form))  # type: ignore[arg-type]
    expected = [None if time is None else time * 1_000_000 for time in seconds]
    assert times(events).to_pylist() == expected
    assert [times([event])[0].as_py() for event in events] == expected


def test_error_of_one_segment_is_raised_unchanged(manager: nadi.StreamManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.create_stream("grid", "failing", 3, event_time="at")

    async def failed(*_: object) -> None:
        raise nadi.errors.UnavailableError("no")

    monkeypatch.setattr(event_index._SegmentIndexer, "index", failed)
    with pytest.raises(nadi.errors.UnavailableError):
        manager.cuts("grid", "failing").at_event_time(YEAR)


def test_stream_truncated_during_a_search_has_a_valid_cut(
    manager: nadi.StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.create_stream("grid", "going", 1, event_time="at")
    with manager.create_writer("grid", "going") as writer:
        writer.write_batch([b'{"at": %d}' % number for number in range(5_000)], ["k"] * 5_000)
    cuts = manager.cuts("grid", "going")
    expected = cuts.at_event_time(3_000_000)
    calls = list[str]()

    async def truncating(stores: SegmentStores, name: str) -> SegmentInfo:
        info = await segment_info(stores, name)
        calls.append(name)
        if len(calls) == 2:  # the call of `refine_cut`, after the index was extended
            await stores.controller.truncate_stream(expected)
        return info

    monkeypatch.setattr(event_index, "segment_info", truncating)
    assert cuts.at_event_time(2_000_000) == expected == cuts.head()
    assert len(calls) == 3
