"""Events for a browser: the tail, stretches played as they came, and many, fast and slow readers."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

import nadi
from nadi.client import StreamManager
from nadi.limits import MIB, PAGE_BATCH_EVENTS, PAGE_TEXT_BYTES
from nadi.standalone.embedded import EmbeddedServer
from nadi.testing import fill_stream
from tests.support.waiting import until
from tests.web.support import error_of, events_of, messages, played

JPEG = b"\xff\xd8\xff\xe0" + b"0" * 100


def write(manager: StreamManager, scope: str, *events: bytes) -> None:
    writer = manager.create_writer(scope, "meters")
    for event in events:
        writer.write_event(event, routing_key="a")
    writer.flush()


# --- the tail ---------------------------------------------------------------------------------------


def test_the_tail_tells_what_comes_and_nothing_that_came(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    write(manager, scope, b"before")
    with events_of(rest, f"/v1/data/{scope}/streams/meters/tail") as events:
        write(manager, scope, b'{"w": 1}', "größer".encode(), b"\xff\x00", JPEG, b"")
        found = [next(events) for _ in range(5)]
    assert [one.get("text") for one in found] == ['{"w": 1}', "größer", None, None, ""]
    assert base64.b64decode(found[2]["base64"]) == b"\xff\x00"
    assert (base64.b64decode(found[3]["base64"]), found[3]["media"]) == (JPEG, "image/jpeg")
    assert found[1]["offset"] == found[0]["offset"] + 16
    assert abs(found[0]["time"] - time.time() * 1000) < 60_000


def test_the_tail_goes_on_from_a_place(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    write(manager, scope, b"before")
    cut = manager.cuts(scope, "meters").tail()
    write(manager, scope, b"after")
    with events_of(rest, f"/v1/data/{scope}/streams/meters/tail", start=cut.as_text()) as events:
        assert next(events)["text"] == "after"


def test_the_tail_ends_with_the_stream(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    with events_of(rest, f"/v1/data/{scope}/streams/meters/tail") as events:
        write(manager, scope, b"last")
        manager.seal_stream(scope, "meters")
        assert [one["text"] for one in events] == ["last"]


def test_of_more_than_can_be_shown_the_latest_is_and_the_rest_is_counted(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    count = 20_000
    with rest.stream("GET", f"/v1/data/{scope}/streams/meters/tail") as response:
        told = messages(response)
        next(told)
        writing = threading.Thread(target=write, args=(manager, scope, *(b"%d" % i for i in range(count))))
        writing.start()
        shown = passed = last = 0
        for _, batch in told:
            assert len(batch["events"]) <= PAGE_BATCH_EVENTS
            shown, passed = shown + len(batch["events"]), passed + batch["passed"]
            last = int(batch["events"][-1]["text"]) if batch["events"] else last
            if last == count - 1:
                break
        writing.join()
    assert passed > 0
    assert shown + passed == count


def test_what_is_too_long_for_a_browser_is_cut_off(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    with events_of(rest, f"/v1/data/{scope}/streams/meters/tail") as events:
        write(manager, scope, ("é" * PAGE_TEXT_BYTES).encode())
        found = next(events)
    assert found["sizeBytes"] == 2 * PAGE_TEXT_BYTES
    assert found["text"] == "é" * (PAGE_TEXT_BYTES // 2)


# --- playing ----------------------------------------------------------------------------------------


def paced(manager: StreamManager, scope: str, *events: str, every_s: float) -> list[float]:
    """Write events at a pace; return when each was written, in ms since 1970."""
    writer, moments = manager.create_writer(scope, "meters"), []
    for event in events:
        moments.append(time.time() * 1000)
        writer.write_event(event.encode(), routing_key="a")
        writer.flush()
        time.sleep(every_s)
    return moments


def held_up(moments: list[float], every_s: float) -> float:
    """For how many ms at most the writing stood still against its pace: times may be told as much later."""
    return max(later - earlier for earlier, later in pairwise([*moments, time.time() * 1000])) - every_s * 1000


def lasted(rest: httpx.Client, path: str, count: int, **query: Any) -> float:
    """How many seconds playing so many events takes."""
    began = time.monotonic()
    assert len(played(rest, path, **query)) == count
    return time.monotonic() - began


def test_a_stretch_is_played_as_it_came(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/streams/meters/play"
    texts = [f"{i} " + "x" * 500 for i in range(40)]
    moments = paced(manager, scope, *texts, every_s=0.1)
    late_ms = held_up(moments, 0.1)
    began = time.monotonic()
    found = played(rest, path)
    lasted_s = time.monotonic() - began
    assert [one["text"] for one in found] == texts
    times = [one["time"] for one in found]
    assert times == sorted(times)
    assert max(abs(told - when) for told, when in zip(times, moments, strict=True)) < 1_500 + late_ms
    assert lasted_s > 2.5
    most_s = 4 + (moments[-1] - moments[0]) / 1000
    if lasted_s > most_s:  # the machine stopped meanwhile
        until(lambda: lasted(rest, path, 40) < most_s)
    until(lambda: lasted(rest, path, 40, speed=10) < most_s / 6)


def test_a_stretch_is_played_between_places_and_from_a_moment_on(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    path, cuts = f"/v1/data/{scope}/streams/meters/play", manager.cuts(scope, "meters")
    write(manager, scope, b"before")
    start = cuts.tail()
    moments = paced(manager, scope, *("abcdef"[i] * 3000 for i in range(6)), every_s=0.7)
    late_ms = held_up(moments, 0.7)
    end = cuts.tail()
    write(manager, scope, b"after")
    manager.slices(scope).create("middle", start, end)
    manager.bookmarks(scope).create("mark", start)
    fast = {"speed": 5, "pauses": "skip"}
    whole = played(rest, path, slice="middle", **fast)
    assert [one["text"][0] for one in whole] == list("abcdef")
    assert played(rest, path, start="mark", end=end.as_text(), **fast) == whole
    later = played(rest, path, slice="middle", **fast, **{"from": whole[3]["time"]})
    assert [one["text"][0] for one in later] == list("def")
    assert abs(whole[3]["time"] - moments[3]) < 1_500 + late_ms


@pytest.mark.parametrize("size", [20, 2_000])  # few bytes a second, whose times are known to 10 s, and many
def test_a_young_slice_begins_no_later_than_its_events(
    rest: httpx.Client, manager: StreamManager, scope: str, size: int
) -> None:
    cuts = manager.cuts(scope, "meters")
    moments, places = [], [cuts.head()]
    for part in range(3):
        moments.append(paced(manager, scope, *(f"{part}{i} " + "x" * size for i in range(8)), every_s=0.1))
        places.append(cuts.tail())
    made_ms = manager.segment_history(scope, "meters")[0].created_ms
    late_ms = time.time() * 1000 - made_ms - 3 * 8 * 100  # in all, for few bytes are taken to have come evenly
    for part in range(3):
        manager.slices(scope).create(f"part-{part}", places[part], places[part + 1])
    told = {one["name"]: one for one in rest.get(f"/v1/data/{scope}/slices").json()}
    path = f"/v1/data/{scope}/streams/meters"
    for part in range(3):
        one = told[f"part-{part}"]
        begins_ms, ends_ms = one["start"]["time"], one["end"]["time"]
        asked = {"slice": one["name"], "from": begins_ms, "most": 100}
        found = rest.get(f"{path}/events", params=asked).json()["events"]
        assert [event["text"][:2] for event in found] == [f"{part}{i}" for i in range(8)]
        assert begins_ms <= found[0]["time"] <= found[-1]["time"] <= ends_ms
        # in the middle too, though only the end's time is told
        assert abs(begins_ms - moments[part][0]) < 1_000 + late_ms
        assert abs(ends_ms - moments[part][-1]) < 1_000 + late_ms
    assert rest.get(f"{path}/span").json()["head"]["time"] == told["part-0"]["start"]["time"]


def test_the_times_of_a_fast_stream_are_even(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    """More comes in a second than is read at a time, and than one looks back for a time."""
    path = f"/v1/data/{scope}/streams/meters/play"
    moments = paced(manager, scope, *(f"{i:03} " + "x" * 20_000 for i in range(120)), every_s=0.03)
    late_ms = held_up(moments, 0.03)
    found = played(rest, path, speed=4)
    times = [one["time"] for one in found]
    assert [one["text"][:3] for one in found] == [f"{i:03}" for i in range(120)]
    assert times == sorted(times)
    assert max(later - earlier for earlier, later in pairwise(times)) < 150 + late_ms
    assert max(abs(told - when) for told, when in zip(times, moments, strict=True)) < 500 + late_ms
    later = played(rest, path, speed=4, **{"from": times[100]})
    assert [(one["text"][:3], one["time"]) for one in later] == [(f"{i:03}", times[i]) for i in range(100, 120)]


def test_a_truncated_stream_begins_when_what_is_left_came(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    moments = paced(manager, scope, *("x" * 5_000 for _ in range(30)), every_s=0.1)
    late_ms = held_up(moments, 0.1)
    cuts = manager.cuts(scope, "meters")
    manager.truncate_stream(cuts.after(cuts.head(), 20))
    path = f"/v1/data/{scope}/streams/meters"
    head_ms = rest.get(f"{path}/span").json()["head"]["time"]
    (first,) = rest.get(f"{path}/events", params={"from": head_ms}).json()["events"]
    assert head_ms <= first["time"]
    assert abs(head_ms - moments[20]) < 1_200 + late_ms


def test_segments_that_follow_each_other_are_played_in_the_order_of_keys(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    writer, keys = manager.create_writer(scope, "meters"), "abcdefgh"
    for step, ranges in enumerate([None, [(0.0, 0.2), (0.2, 0.5)], [(0.5, 0.8), (0.8, 1.0)], [(0.0, 0.6), (0.6, 1.0)]]):
        if ranges is not None:
            low, high = ranges[0][0], ranges[-1][1]
            replaced = [s.segment_id for s in manager.current_segments(scope, "meters") if low <= s.low < high]
            manager.scale_stream(scope, "meters", replaced, ranges)
        for i in range(25):
            for key in keys:
                writer.write_event(f"{key}{step * 25 + i}".encode(), routing_key=key)
        writer.flush()
    found, passed = [], 0
    with rest.stream("GET", f"/v1/data/{scope}/streams/meters/play") as response:
        for kind, batch in messages(response):
            if kind == "batch":
                found += [one["text"] for one in batch["events"]]
                passed += batch["passed"]
                assert not batch["isBehind"]
    for key in keys:
        mine = [int(text[1:]) for text in found if text[0] == key]
        assert mine == sorted(mine)
    assert len(found) + passed == 4 * 25 * len(keys)


def test_pauses_are_kept_or_skipped(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/streams/meters/play"
    write(manager, scope, b"x" * 20_000)
    time.sleep(4)
    write(manager, scope, b"y" * 20_000)
    assert lasted(rest, path, 2, pauses="keep") > 3
    until(lambda: lasted(rest, path, 2, pauses="skip") < 2.5)  # once the machine doesn't stop meanwhile


def test_the_first_events_of_a_stretch(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/streams/meters/events"
    assert rest.get(path).json()["events"] == []
    paced(manager, scope, *(f"{i} {'x' * 5000}" for i in range(4)), every_s=1.1)
    first = rest.get(path).json()
    assert [one["text"][0] for one in first["events"]] == ["0"]
    assert first["next"] > first["at"] == first["events"][0]["time"]
    steps = [rest.get(path, params={"from": first["next"], "most": 2}).json()]
    assert [one["text"][0] for one in steps[0]["events"]] == ["1", "2"]
    assert len(rest.get(path, params={"most": 200}).json()["events"]) == 4


def test_events_which_is_last_are_those_at_the_end(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    """What the player shows first of a stream to which nothing comes."""
    path = f"/v1/data/{scope}/streams/meters/events"
    assert rest.get(path, params={"which": "last"}).json()["events"] == []
    write(manager, scope, *(b"%d" % i for i in range(7)))
    manager.bookmarks(scope).create("mark", manager.cuts(scope, "meters").tail())
    write(manager, scope, *(b"%d" % i for i in range(7, 12)))

    def last(**query: str) -> list[str]:
        answer = rest.get(path, params={"which": "last", **query})
        return [one["text"][:5] for one in answer.raise_for_status().json()["events"]]

    assert last(most="3") == ["9", "10", "11"]
    assert last(most="10", start="mark") == ["7", "8", "9", "10", "11"]
    assert last(most="2", end="mark") == ["5", "6"]
    write(manager, scope, *(b"%5d" % i * 20_000 for i in range(30)))
    large = last(most="30")
    assert large == [f"{i:5}" for i in range(30)][-len(large) :]  # the latest, where not all can be sent at once
    assert large
    assert rest.get(path, params={"which": "middle"}).status_code == 400


def test_from_the_time_of_its_start_a_stretch_has_all_of_its_events(
    rest: httpx.Client, manager: StreamManager, scope: str
) -> None:
    path = f"/v1/data/{scope}/streams/meters"
    write(manager, scope, b"before")
    manager.bookmarks(scope).create("mark", manager.cuts(scope, "meters").tail())
    write(manager, scope, *(b"%d" % i for i in range(5)))
    head_ms = rest.get(f"{path}/span").json()["head"]["time"]
    (mark,) = rest.get(f"/v1/data/{scope}/bookmarks").json()
    for query, count in (({"from": head_ms}, 6), ({"from": 0}, 6), ({"from": mark["time"], "start": "mark"}, 5)):
        assert len(rest.get(f"{path}/events", params={**query, "most": 9}).json()["events"]) == count
        assert len(played(rest, f"{path}/play", **query)) == count


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("play?speed=0", 400, "speed"),
        ("play?speed=nan", 400, "speed"),
        ("play?speed=1_000", 400, "speed"),
        ("play?from=x", 400, "from"),
        ("play?pauses=maybe", 400, "pauses"),
        ("play?slice=none", 404, "none"),
        ("play?start=nowhere", 404, "nowhere"),
        ("play?start=tail&end=head", 400, ""),
        ("play?slice=a&start=head", 400, "slice"),
        ("events?most=0", 400, "most"),
        ("events?most=201", 400, "most"),
        ("tail?start=2026-11-14T00:00", 400, "zone"),
    ],
)
def test_what_can_not_be_played_is_said_at_once(
    rest: httpx.Client, manager: StreamManager, query: str, status: int, word: str
) -> None:
    manager.create_scope("words")
    fill_stream(manager, "words", "meters", [b"x"])
    assert word in error_of(rest.get(f"/v1/data/words/streams/meters/{query}"), status)
    assert rest.get(f"/v1/data/words/streams/none/{query}").status_code in (404, status)


# --- many, and slow ones -----------------------------------------------------------------------------


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[tuple[EmbeddedServer, StreamManager, httpx.Client]]:
    """A server that lets few read; with a stream."""
    few = {"NADI_LIMITS": "page_readers=4,send_timeout_s=600"}
    with (
        nadi.embedded(tmp_path, rest_port=0, environment=few) as server,
        StreamManager(server.controller_uri) as manager,
        httpx.Client(base_url=server.rest_uri, timeout=60) as rest,
    ):
        manager.create_scope("sc")
        manager.create_stream("sc", "meters", 1)
        yield server, manager, rest


METERS = "/v1/data/sc/streams/meters"
TAIL = f"{METERS}/tail"


def test_playing_that_is_too_fast_for_reading_passes_over(
    crowded: tuple[EmbeddedServer, StreamManager, httpx.Client],
) -> None:
    _, manager, rest = crowded
    fill_stream(manager, "sc", "meters", [b"%06d" % i + b"x" * 1000 for i in range(60_000)])
    began = time.monotonic()
    found = played(rest, f"{METERS}/play", speed=1000)
    assert time.monotonic() - began < 60
    assert 0 < len(found) < 60_000


def test_no_more_read_than_may_and_who_leaves_makes_room(
    crowded: tuple[EmbeddedServer, StreamManager, httpx.Client],
) -> None:
    _, manager, rest = crowded
    with events_of(rest, TAIL) as first, events_of(rest, TAIL) as second:
        assert "close a page" in error_of(rest.get(TAIL), 503)  # half of four, from one address
        assert rest.get(f"{METERS}/events").status_code == 200
        write(manager, "sc", b"x")
        assert next(first)["text"] == next(second)["text"] == "x"
    for _ in range(10):
        _wait_for_room(rest)


def _wait_for_room(rest: httpx.Client) -> None:
    ends = time.monotonic() + 60
    while True:
        with rest.stream("GET", TAIL) as response:
            if response.status_code == 200:
                return
        assert time.monotonic() < ends
        time.sleep(0.02)


@contextmanager
def _writing(manager: StreamManager) -> Iterator[None]:
    """Write 100 MB, and then something small again and again, all the while."""
    is_over = threading.Event()

    def write_all() -> None:
        fill_stream(manager, "sc", "meters", [b"%05d" % i + b"x" * 50_000 for i in range(2_000)])
        while not is_over.wait(0.1):
            write(manager, "sc", b"the last")

    thread = threading.Thread(target=write_all)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_browser_that_takes_nothing_holds_up_nobody_and_takes_no_memory(
    crowded: tuple[EmbeddedServer, StreamManager, httpx.Client],
) -> None:
    server, manager, rest = crowded
    at = urlsplit(server.rest_uri)
    with socket.create_connection((at.hostname or "", at.port or 0)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(f"GET {TAIL} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert slow.recv(15) == b"HTTP/1.1 200 OK"
        process = psutil.Process(server.pid)
        fill_stream(manager, "sc", "meters", [b"z" * 10_000] * 200)
        before = process.memory_info().rss
        with events_of(rest, TAIL) as events, _writing(manager):
            assert next(one for one in events if one["text"] == "the last")
        assert process.memory_info().rss - before < 150 * MIB  # of which the cache may be some
        assert rest.get("/ping").status_code == 200


def test_a_stop_of_the_server_waits_for_no_reader(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, rest_port=0) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        manager.create_stream("sc", "meters", 1)
        with httpx.Client(base_url=server.rest_uri, timeout=60) as rest, events_of(rest, TAIL) as events:
            manager.close()
            began = time.monotonic()
            server.stop()
            assert time.monotonic() - began < 60  # and not until it ends itself, after two minutes
            with pytest.raises((httpx.HTTPError, AssertionError)):  # broken off, or said to be
                next(events)
