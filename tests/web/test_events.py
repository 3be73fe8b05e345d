"""Events for a browser: the tail, replays by arrival, and many, fast and slow readers."""

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


def test_tail_sends_only_new_events(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    write(manager, scope, b"before")
    with events_of(rest, f"/v1/data/{scope}/streams/meters/tail") as events:
        write(manager, scope, b'{"w": 1}', "größer".encode(), b"\xff\x00", JPEG, b"")
        sent = [next(events) for _ in range(5)]
    assert [event.get("text") for event in sent] == ['{"w": 1}', "größer", None, None, ""]
    assert base64.b64decode(sent[2]["base64"]) == b"\xff\x00"
    assert (base64.b64decode(sent[3]["base64"]), sent[3]["media"]) == (JPEG, "image/jpeg")
    assert sent[1]["offset"] == sent[0]["offset"] + 16
    assert abs(sent[0]["time"] - time.time() * 1000) < 60_000


def test_tail_with_start_begins_there(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    write(manager, scope, b"before")
    cut = manager.cuts(scope, "meters").tail()
    write(manager, scope, b"after")
    with events_of(rest, f"/v1/data/{scope}/streams/meters/tail", start=cut.as_text()) as events:
        assert next(events)["text"] == "after"


def test_tail_of_a_sealed_stream_ends(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    with events_of(rest, f"/v1/data/{scope}/streams/meters/tail") as events:
        write(manager, scope, b"last")
        manager.seal_stream(scope, "meters")
        assert [event["text"] for event in events] == ["last"]


def test_tail_counts_events_that_exceed_a_batch(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    count = 20_000
    with rest.stream("GET", f"/v1/data/{scope}/streams/meters/tail") as response:
        received = messages(response)
        next(received)
        writing = threading.Thread(target=write, args=(manager, scope, *(b"%d" % i for i in range(count))))
        writing.start()
        shown = passed = last = 0
        for _, batch in received:
            assert len(batch["events"]) <= PAGE_BATCH_EVENTS
            shown, passed = shown + len(batch["events"]), passed + batch["passed"]
            last = int(batch["events"][-1]["text"]) if batch["events"] else last
            if last == count - 1:
                break
        writing.join()
    assert passed > 0
    assert shown + passed == count


def test_tail_truncates_long_events(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    with events_of(rest, f"/v1/data/{scope}/streams/meters/tail") as events:
        write(manager, scope, ("é" * PAGE_TEXT_BYTES).encode())
        event = next(events)
    assert event["sizeBytes"] == 2 * PAGE_TEXT_BYTES
    assert event["text"] == "é" * (PAGE_TEXT_BYTES // 2)


# --- replay -----------------------------------------------------------------------------------------


def paced(manager: StreamManager, scope: str, *events: str, every_s: float) -> list[float]:
    """Write events at a fixed rate; return the time of each in ms since 1970."""
    writer, moments = manager.create_writer(scope, "meters"), []
    for event in events:
        moments.append(time.time() * 1000)
        writer.write_event(event.encode(), routing_key="a")
        writer.flush()
        time.sleep(every_s)
    return moments


def longest_delay_ms(moments: list[float], every_s: float) -> float:
    """Return the writer's longest stall in ms; reported times may be later by this."""
    return max(later - earlier for earlier, later in pairwise([*moments, time.time() * 1000])) - every_s * 1000


def lasted(rest: httpx.Client, path: str, count: int, **query: Any) -> float:
    """Replay this many events; return the duration in seconds."""
    start = time.monotonic()
    assert len(played(rest, path, **query)) == count
    return time.monotonic() - start


def test_replay_keeps_order_and_pace(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/streams/meters/play"
    texts = [f"{i} " + "x" * 500 for i in range(40)]
    moments = paced(manager, scope, *texts, every_s=0.1)
    late_ms = longest_delay_ms(moments, 0.1)
    start = time.monotonic()
    events = played(rest, path)
    lasted_s = time.monotonic() - start
    assert [event["text"] for event in events] == texts
    times = [event["time"] for event in events]
    assert times == sorted(times)
    assert max(abs(time_ms - written_ms) for time_ms, written_ms in zip(times, moments, strict=True)) < 1_500 + late_ms
    assert lasted_s > 2.5
    most_s = 4 + (moments[-1] - moments[0]) / 1000
    if lasted_s > most_s:  # the machine stalled
        until(lambda: lasted(rest, path, 40) < most_s)
    until(lambda: lasted(rest, path, 40, speed=10) < most_s / 6)


def test_replay_between_positions_and_from_a_time(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path, cuts = f"/v1/data/{scope}/streams/meters/play", manager.cuts(scope, "meters")
    write(manager, scope, b"before")
    start = cuts.tail()
    moments = paced(manager, scope, *("abcdef"[i] * 3000 for i in range(6)), every_s=0.7)
    late_ms = longest_delay_ms(moments, 0.7)
    end = cuts.tail()
    write(manager, scope, b"after")
    manager.slices(scope).create("middle", start, end)
    manager.bookmarks(scope).create("mark", start)
    fast = {"speed": 5, "pauses": "skip"}
    whole = played(rest, path, slice="middle", **fast)
    assert [event["text"][0] for event in whole] == list("abcdef")
    assert played(rest, path, start="mark", end=end.as_text(), **fast) == whole
    later = played(rest, path, slice="middle", **fast, **{"from": whole[3]["time"]})
    assert [event["text"][0] for event in later] == list("def")
    assert abs(whole[3]["time"] - moments[3]) < 1_500 + late_ms


@pytest.mark.parametrize("size", [20, 2_000])  # a low rate, with times accurate to 10 s, and a high one
def test_slice_start_time_is_not_after_its_events(
    rest: httpx.Client, manager: StreamManager, scope: str, size: int
) -> None:
    cuts = manager.cuts(scope, "meters")
    moments, positions = [], [cuts.head()]
    for part in range(3):
        moments.append(paced(manager, scope, *(f"{part}{i} " + "x" * size for i in range(8)), every_s=0.1))
        positions.append(cuts.tail())
    created_ms = manager.segment_history(scope, "meters")[0].created_ms
    late_ms = time.time() * 1000 - created_ms - 3 * 8 * 100  # in total, as times are interpolated at low rates
    for part in range(3):
        manager.slices(scope).create(f"part-{part}", positions[part], positions[part + 1])
    slices = {named["name"]: named for named in rest.get(f"/v1/data/{scope}/slices").json()}
    path = f"/v1/data/{scope}/streams/meters"
    for part in range(3):
        named = slices[f"part-{part}"]
        begins_ms, ends_ms = named["start"]["time"], named["end"]["time"]
        query = {"slice": named["name"], "from": begins_ms, "most": 100}
        events = rest.get(f"{path}/events", params=query).json()["events"]
        assert [event["text"][:2] for event in events] == [f"{part}{i}" for i in range(8)]
        assert begins_ms <= events[0]["time"] <= events[-1]["time"] <= ends_ms
        # also in the middle, where no entry marks the start
        assert abs(begins_ms - moments[part][0]) < 1_000 + late_ms
        assert abs(ends_ms - moments[part][-1]) < 1_000 + late_ms
    assert rest.get(f"{path}/span").json()["head"]["time"] == slices["part-0"]["start"]["time"]


def test_replay_of_a_fast_stream_has_even_times(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    """A second contains more bytes than one read, and than one step of the index look-back."""
    path = f"/v1/data/{scope}/streams/meters/play"
    moments = paced(manager, scope, *(f"{i:03} " + "x" * 20_000 for i in range(120)), every_s=0.03)
    late_ms = longest_delay_ms(moments, 0.03)
    events = played(rest, path, speed=4)
    times = [event["time"] for event in events]
    assert [event["text"][:3] for event in events] == [f"{i:03}" for i in range(120)]
    assert times == sorted(times)
    assert max(later - earlier for earlier, later in pairwise(times)) < 150 + late_ms
    assert max(abs(time_ms - written_ms) for time_ms, written_ms in zip(times, moments, strict=True)) < 500 + late_ms
    later = played(rest, path, speed=4, **{"from": times[100]})
    assert [(event["text"][:3], event["time"]) for event in later] == [(f"{i:03}", times[i]) for i in range(100, 120)]


def test_span_of_a_truncated_stream_starts_at_its_head(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    moments = paced(manager, scope, *("x" * 5_000 for _ in range(30)), every_s=0.1)
    late_ms = longest_delay_ms(moments, 0.1)
    cuts = manager.cuts(scope, "meters")
    manager.truncate_stream(cuts.after(cuts.head(), 20))
    path = f"/v1/data/{scope}/streams/meters"
    head_ms = rest.get(f"{path}/span").json()["head"]["time"]
    (first,) = rest.get(f"{path}/events", params={"from": head_ms}).json()["events"]
    assert head_ms <= first["time"]
    assert abs(head_ms - moments[20]) < 1_200 + late_ms


def test_replay_over_scaling_keeps_the_order_of_keys(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
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
    texts, passed = list[str](), 0
    with rest.stream("GET", f"/v1/data/{scope}/streams/meters/play") as response:
        for kind, batch in messages(response):
            if kind == "batch":
                texts += [event["text"] for event in batch["events"]]
                passed += batch["passed"]
                assert not batch["isBehind"]
    for key in keys:
        numbers = [int(text[1:]) for text in texts if text[0] == key]
        assert numbers == sorted(numbers)
    assert len(texts) + passed == 4 * 25 * len(keys)


def test_replay_keeps_or_skips_pauses(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/streams/meters/play"
    write(manager, scope, b"x" * 20_000)
    time.sleep(4)
    write(manager, scope, b"y" * 20_000)
    assert lasted(rest, path, 2, pauses="keep") > 3
    until(lambda: lasted(rest, path, 2, pauses="skip") < 2.5)  # repeated in case the machine stalls


def test_events_returns_the_first_events_of_a_range(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/streams/meters/events"
    assert rest.get(path).json()["events"] == []
    paced(manager, scope, *(f"{i} {'x' * 5000}" for i in range(4)), every_s=1.1)
    first = rest.get(path).json()
    assert [event["text"][0] for event in first["events"]] == ["0"]
    assert first["next"] > first["at"] == first["events"][0]["time"]
    steps = [rest.get(path, params={"from": first["next"], "most": 2}).json()]
    assert [event["text"][0] for event in steps[0]["events"]] == ["1", "2"]
    assert len(rest.get(path, params={"most": 200}).json()["events"]) == 4


def test_events_with_which_last_returns_the_last_events(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    """The player shows these first for an idle stream."""
    path = f"/v1/data/{scope}/streams/meters/events"
    assert rest.get(path, params={"which": "last"}).json()["events"] == []
    write(manager, scope, *(b"%d" % i for i in range(7)))
    manager.bookmarks(scope).create("mark", manager.cuts(scope, "meters").tail())
    write(manager, scope, *(b"%d" % i for i in range(7, 12)))

    def last(**query: str) -> list[str]:
        response = rest.get(path, params={"which": "last", **query})
        return [event["text"][:5] for event in response.raise_for_status().json()["events"]]

    assert last(most="3") == ["9", "10", "11"]
    assert last(most="10", start="mark") == ["7", "8", "9", "10", "11"]
    assert last(most="2", end="mark") == ["5", "6"]
    write(manager, scope, *(b"%5d" % i * 20_000 for i in range(30)))
    large = last(most="30")
    assert large == [f"{i:5}" for i in range(30)][-len(large) :]  # only the latest fit into the response
    assert large
    assert rest.get(path, params={"which": "middle"}).json() == {"error": "which must be first or last, not 'middle'"}


def test_replay_from_the_start_time_contains_all_events(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
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
def test_invalid_replay_fails_with_a_status(
    rest: httpx.Client, manager: StreamManager, query: str, status: int, word: str
) -> None:
    manager.create_scope("words")
    fill_stream(manager, "words", "meters", [b"x"])
    assert word in error_of(rest.get(f"/v1/data/words/streams/meters/{query}"), status)
    assert rest.get(f"/v1/data/words/streams/none/{query}").status_code in (404, status)


# --- many and slow readers ---------------------------------------------------------------------------


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[tuple[EmbeddedServer, StreamManager, httpx.Client]]:
    """A server that allows few readers, with a stream."""
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


def test_replay_that_is_too_fast_skips_events(
    crowded: tuple[EmbeddedServer, StreamManager, httpx.Client],
) -> None:
    _, manager, rest = crowded
    fill_stream(manager, "sc", "meters", [b"%06d" % i + b"x" * 1000 for i in range(60_000)])
    start = time.monotonic()
    events = played(rest, f"{METERS}/play", speed=1000)
    assert time.monotonic() - start < 60
    assert 0 < len(events) < 60_000


def test_readers_above_the_limit_are_rejected_until_one_leaves(
    crowded: tuple[EmbeddedServer, StreamManager, httpx.Client],
) -> None:
    _, manager, rest = crowded
    with events_of(rest, TAIL) as first, events_of(rest, TAIL) as second:
        error_of(rest.get(TAIL), 503)  # one address gets half of four
        assert rest.get(f"{METERS}/events").status_code == 200
        write(manager, "sc", b"x")
        assert next(first)["text"] == next(second)["text"] == "x"
    for _ in range(10):
        _wait_for_capacity(rest)


def _wait_for_capacity(rest: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    while True:
        with rest.stream("GET", TAIL) as response:
            if response.status_code == 200:
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def _writing(manager: StreamManager) -> Iterator[None]:
    """Write 100 MB, and then small events until the end of the context."""
    stop = threading.Event()

    def write_all() -> None:
        fill_stream(manager, "sc", "meters", [b"%05d" % i + b"x" * 50_000 for i in range(2_000)])
        while not stop.wait(0.1):
            write(manager, "sc", b"the last")

    thread = threading.Thread(target=write_all)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_blocked_reader_neither_delays_others_nor_uses_memory(
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
            assert next(event for event in events if event["text"] == "the last")
        assert process.memory_info().rss - before < 150 * MIB  # includes some cache
        assert rest.get("/ping").status_code == 200


def test_server_stop_does_not_wait_for_readers(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path, rest_port=0) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        manager.create_stream("sc", "meters", 1)
        with httpx.Client(base_url=server.rest_uri, timeout=60) as rest, events_of(rest, TAIL) as events:
            manager.close()
            start = time.monotonic()
            server.stop()
            assert time.monotonic() - start < 60  # the server would end by itself after two minutes
            with pytest.raises((httpx.HTTPError, AssertionError)):  # interrupted, or an error message
                next(events)
