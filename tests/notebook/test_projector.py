"""The kernel's side of a player, without a browser: requests, responses, limits and closing."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nadi.client import StreamManager
from nadi.client.blocking.face import inside
from nadi.limits import NOTEBOOK_AHEAD, NOTEBOOK_READERS
from nadi.notebook import projector as tested
from nadi.notebook.projector import Projector
from nadi.testing import fill_stream
from nadi.web.reading import playing
from tests.support.waiting import until

JPEG = b"\xff\xd8\xff\xe0" + b"0" * 100
LIMIT_S = 60.0


class Browser:
    """A stand-in for a widget's script: sends requests, and collects the responses."""

    def __init__(self, manager: StreamManager, scope: str, stream: str = "meters") -> None:
        self.thread, core = inside(manager)
        self.responses: queue.Queue[tuple[str, str, Any]] = queue.Queue()
        self.projector = Projector(core, scope, stream, self._hear)

    def _hear(self, head: dict[str, str], body: bytes) -> None:
        self.responses.put((head["id"], head["kind"], json.loads(body)))

    def say(self, kind: str, name: str, **more: Any) -> None:
        self.thread.call(self.projector.receive, {"kind": kind, "id": name, **more})

    def hear(self, name: str, *kinds: str) -> tuple[str, Any]:
        """Return the next message, which must belong to that request."""
        found, kind, body = self.responses.get(timeout=LIMIT_S)
        assert (found, kind in kinds) == (name, True), (found, kind, body)
        return kind, body

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of the next non-empty batch: an idle stream sends an empty batch every two seconds."""
        while not (found := self.hear(name, "batch")[1]["events"]):
            self.say("more", name)
        return list(found)

    def ask(self, kind: str, name: str, **more: Any) -> Any:
        self.say(kind, name, **more)
        return self.hear(name, "answer")[1]

    def refused(self, name: str, status: int) -> str:
        body = self.hear(name, "refused")[1]
        assert body["status"] == status, body
        return str(body["error"])

    def settled(self) -> int:
        """Return the number of requests in progress, after all sent messages were handled."""
        return self.thread.result(self.projector.__len__)

    def until_idle(self) -> None:
        ends = time.monotonic() + LIMIT_S
        while self.settled():
            assert time.monotonic() < ends
            time.sleep(0.01)


@pytest.fixture(autouse=True)
def _never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late playback skips events."""
    monkeypatch.setattr(playing, "PAGE_BEHIND_S", 600.0)


@pytest.fixture
def one_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail sends nothing after its first batch until that is acknowledged."""
    monkeypatch.setattr(tested, "NOTEBOOK_AHEAD", 1)


@pytest.fixture
def browser(manager: StreamManager, scope: str) -> Iterator[Browser]:
    browser = Browser(manager, scope)
    yield browser
    browser.thread.call(browser.projector.close)
    browser.until_idle()


def played(browser: Browser, name: str, **asked: Any) -> list[dict[str, Any]]:
    browser.say("play", name, **asked)
    events: list[dict[str, Any]] = []
    while True:
        kind, batch = browser.hear(name, "batch", "end")
        if kind == "end":
            return events
        events += batch["events"]
        browser.say("more", name)


def test_known_returns_the_streams_data(manager: StreamManager, scope: str, browser: Browser) -> None:
    tail = fill_stream(manager, scope, "meters", [b"x"] * 10)
    manager.bookmarks(scope).create("here", tail, note="<i>")
    manager.slices(scope).create("all", manager.cuts(scope, "meters").head(), tail)
    found = browser.ask("known", "a", places=True)
    assert [one["segment_id"] for one in found["segments"]] == [0, 1]
    assert [one["segment_id"] for one in found["loads"]] == [0, 1]
    assert (found["span"]["tail"]["cut"], found["span"]["isSealed"]) == (tail.as_text(), False)
    assert [(one["name"], one["note"]) for one in found["bookmarks"]] == [("here", "<i>")]
    assert [(one["name"], one["end"]["cut"]) for one in found["slices"]] == [("all", tail.as_text())]
    assert browser.ask("known", "b")["bookmarks"] is None


def test_a_stream_is_known_and_played_by_its_events_own_time(
    manager: StreamManager, scope: str, browser: Browser
) -> None:
    manager.update_stream(scope, "meters", event_time="at")
    fill_stream(manager, scope, "meters", [b'{"at": %d}' % (day * 86_400) for day in range(-3, 4)], "a")
    until(lambda: browser.ask("known", "a")["span"]["bytesUnknown"] is None)
    span = browser.ask("known", "b")["span"]
    assert (span["eventTime"], span["head"]["time"], span["tail"]["time"]) == ("at", -3 * 86_400_000, 3 * 86_400_000)
    days = {"from": str(-2 * 86_400_000), "to": str(2 * 86_400_000), "speed": "604800"}
    assert [one["time"] // 86_400_000 for one in played(browser, "p", **days)] == [-2, -1, 0, 1]
    assert browser.ask("known", "c", by="arrival")["span"]["eventTime"] is None
    assert len(played(browser, "q", by="arrival", speed="1000")) == 7


def test_a_slice_is_played_and_nothing_else(manager: StreamManager, scope: str, browser: Browser) -> None:
    fill_stream(manager, scope, "meters", [b"before"] * 3, "a")
    start = manager.cuts(scope, "meters").tail()
    end = fill_stream(manager, scope, "meters", [b'{"w": 1}', JPEG, b"\xff\x00"], "a")
    fill_stream(manager, scope, "meters", [b"after"], "a")
    manager.slices(scope).create("some", start, end)
    found = played(browser, "p", slice="some", speed="100", pauses="skip")
    assert [(one.get("text"), one.get("media")) for one in found] == [
        ('{"w": 1}', None),
        (None, "image/jpeg"),
        (None, None),
    ]
    first = browser.ask("first", "f", slice="some", most=2)["events"]
    assert [one["offset"] for one in first] == [one["offset"] for one in found[:2]]
    assert len(played(browser, "whole", speed="1000")) == 7


def test_from_its_start_on_a_slice_is_whole(manager: StreamManager, scope: str, browser: Browser) -> None:
    cuts = []
    with manager.create_writer(scope, "meters") as writer:
        for i in range(30):
            writer.write_event(b"%d" % i, "a")
            if i in (9, 19):
                writer.flush()
                cuts.append(manager.cuts(scope, "meters").tail())
            time.sleep(0.02)
    manager.slices(scope).create("some", *cuts)
    (seen,) = browser.ask("known", "k", places=True)["slices"]
    found = played(browser, "p", slice="some", **{"from": seen["start"]["time"]}, speed=100)
    assert [one["text"] for one in found] == [str(i) for i in range(10, 20)]
    first = browser.ask("first", "f", slice="some", **{"from": seen["start"]["time"]})["events"]
    assert first[0]["text"] == "10"


def test_tail_sends_new_events_and_ends_with_the_stream(manager: StreamManager, scope: str, browser: Browser) -> None:
    fill_stream(manager, scope, "meters", [b"before"])
    browser.say("tail", "t")
    assert browser.hear("t", "batch")[1]["events"] == []
    browser.say("more", "t")
    fill_stream(manager, scope, "meters", [b"last"])
    assert [one["text"] for one in browser.events("t")] == ["last"]
    manager.seal_stream(scope, "meters")
    browser.say("more", "t")
    while browser.hear("t", "batch", "end")[0] == "batch":
        browser.say("more", "t")
    browser.until_idle()


def test_batches_in_flight_are_limited(manager: StreamManager, scope: str, browser: Browser) -> None:
    stop = threading.Event()

    def write() -> None:
        with manager.create_writer(scope, "meters") as writer:
            while not stop.wait(0.01):
                writer.write_event(b"x")

    def size() -> int:
        return sum(manager.stream_info(scope, "meters").tail.positions.values())

    writing = threading.Thread(target=write)
    writing.start()
    try:
        browser.say("tail", "t")
        for _ in range(NOTEBOOK_AHEAD):
            browser.hear("t", "batch")
        before = size()
        until(lambda: size() > before + 100 * 9)  # much that is to come with one batch, in two segments
        with pytest.raises(queue.Empty):
            browser.responses.get(timeout=1.0)
        browser.say("more", "t")
        late = browser.hear("t", "batch")[1]
        assert len(late["events"]) + late["passed"] > 20 or late["isBehind"]
        with pytest.raises(queue.Empty):
            browser.responses.get(timeout=0.5)
        for _ in range(NOTEBOOK_AHEAD * 5):  # extra acknowledgements don't allow more batches
            browser.say("more", "t")
        for _ in range(NOTEBOOK_AHEAD):
            browser.hear("t", "batch")
        with pytest.raises(queue.Empty):
            browser.responses.get(timeout=0.5)
    finally:
        stop.set()
        writing.join()


@pytest.mark.usefixtures("one_ahead")
def test_silent_browser_is_refused(
    scope: str, browser: Browser, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tested, "NOTEBOOK_SILENCE_S", 0.2)
    browser.say("tail", "t")
    browser.hear("t", "batch")
    assert "0.2 s" in browser.refused("t", 503)
    browser.until_idle()


@pytest.mark.usefixtures("one_ahead")
def test_stopped_request_ends_silently(manager: StreamManager, scope: str, browser: Browser) -> None:
    browser.say("tail", "t")
    browser.hear("t", "batch")
    browser.say("stop", "t")
    browser.until_idle()
    browser.say("more", "t")
    fill_stream(manager, scope, "meters", [b"x"])
    assert browser.ask("first", "f")["events"]  # and nothing of the tail came before that


@pytest.mark.usefixtures("one_ahead")
def test_concurrent_requests_are_limited(scope: str, browser: Browser) -> None:
    for i in range(NOTEBOOK_READERS):
        browser.say("tail", f"t{i}")
    for _ in range(NOTEBOOK_READERS):
        assert browser.responses.get(timeout=LIMIT_S)[1] == "batch"
    browser.say("known", "one-more")
    assert "try again" in browser.refused("one-more", 503)
    browser.say("tail", "t0")
    assert "choose another" in browser.refused("t0", 400)
    browser.say("stop", "t0")
    while browser.settled() == NOTEBOOK_READERS:
        time.sleep(0.01)
    assert browser.ask("known", "again")["span"]["isSealed"] is False


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"kind": "nothing", "id": "x"}, "nothing"),
        ({"id": "x"}, "kind"),
        ({"kind": "play", "id": "x", "speed": "0"}, "speed"),
        ({"kind": "play", "id": "x", "speed": "nan"}, "speed"),
        ({"kind": "play", "id": "x", "pauses": "both"}, "pauses"),
        ({"kind": "play", "id": "x", "from": 1 << 60}, "from"),
        ({"kind": "first", "id": "x", "most": 10**9}, "most"),
        ({"kind": "first", "id": "x", "other": 1}, "other"),
        ({"kind": "first", "id": "x", "slice": "none"}, "none"),
        ({"kind": "play", "id": "x", "end": "nowhere"}, "nowhere"),
        ({"kind": "play", "id": "x", "end": "tail", "slice": "a"}, "slice"),
    ],
)
def test_invalid_requests_are_refused(scope: str, browser: Browser, message: Any, words: str) -> None:
    browser.thread.call(browser.projector.receive, message)
    assert words in browser.refused("x", 400)
    browser.until_idle()


@pytest.mark.parametrize("message", [None, 5, [], {}, {"id": 7}, {"kind": "tail", "id": "x" * 65}, "known"])
def test_message_without_an_id_gets_no_response(scope: str, browser: Browser, message: Any) -> None:
    browser.thread.call(browser.projector.receive, message)
    assert browser.ask("known", "after")["span"]["isSealed"] is False


def test_a_slice_of_another_stream_is_refused(manager: StreamManager, scope: str, browser: Browser) -> None:
    tail = fill_stream(manager, scope, "other", [b"x"])
    manager.slices(scope).create("its", manager.cuts(scope, "other").head(), tail)
    browser.say("play", "p", slice="its")
    assert "other" in browser.refused("p", 400)


@pytest.mark.usefixtures("one_ahead")
def test_closed_projector_refuses_requests(scope: str, browser: Browser) -> None:
    browser.say("tail", "t")
    browser.hear("t", "batch")
    browser.thread.call(browser.projector.close)
    browser.until_idle()
    browser.say("known", "late")
    assert "closed" in browser.refused("late", 400)
