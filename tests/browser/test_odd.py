"""Unusual events, addresses, clocks and servers: the page stays usable and reports problems."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import nadi
from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer
from nadi.testing import fill_stream
from tests.access.support import guarded
from tests.browser.support import png, until, writing

HOUR_MS = 3_600_000


def played(page: Any, server: EmbeddedServer, manager: StreamManager, scope: str, *events: bytes) -> None:
    """Open the player, paused after all of these events."""
    manager.create_stream(scope, "odd", 1)
    writer = manager.create_writer(scope, "odd")
    for event in events:
        writer.write_event(event, routing_key="a")
    writer.flush()
    manager.seal_stream(scope, "odd")
    page.goto(f"{server.rest_uri}/#/play/{scope}/odd")
    page.get_by_text("End.", exact=True).wait_for()


def until_chart_label_contains(page: Any, words: str) -> None:
    until(page, f"document.querySelector('canvas.fill')?.ariaLabel?.includes({json.dumps(words)})")


# --- events ---------------------------------------------------------------------------------------


def test_chart_draws_numbers_that_differ_by_less_than_a_step(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    played(page, server, manager, scope, *(b'{"nanos": %d}' % (1_764_147_847 * 10**9 + i * 300) for i in range(3)))
    until_chart_label_contains(page, "3 values")


def test_chart_ignores_huge_numbers(page: Any, server: EmbeddedServer, manager: StreamManager, scope: str) -> None:
    played(page, server, manager, scope, b'{"n": 1}', b'{"n": 1e999}', b'{"n": -1e308}', b'{"n": 1e308}', b'{"n": 2}')
    until_chart_label_contains(page, "2 values from 0 to 2.12")


def test_chart_supports_field_names_with_dots(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    events = (b'{"service.name": "web", "http": {"server.ms": {"p99": %d}}}' % i for i in range(5))
    played(page, server, manager, scope, *events)
    until_chart_label_contains(page, "of http.server.ms.p99: 5 values")


def test_chart_limits_the_list_of_fields(page: Any, server: EmbeddedServer, manager: StreamManager, scope: str) -> None:
    events = (json.dumps({"n": i} | {f"k{i}-{j}": "v" for j in range(20)}).encode() for i in range(150))
    played(page, server, manager, scope, *events)
    assert page.get_by_label("Split by").locator("option").count() < 100


def test_chart_does_not_split_by_unique_texts(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    """This would draw one line per event."""
    events = (json.dumps({"request": f"r{i}", "path": f"/{i % 3}", "ms": i}).encode() for i in range(100))
    played(page, server, manager, scope, *events)
    until_chart_label_contains(page, "of ms: 100 values")
    assert page.get_by_label("Split by").input_value() == "path"


def test_json_is_shown_unchanged(page: Any, server: EmbeddedServer, manager: StreamManager, scope: str) -> None:
    written = '{"b": 12345678901234567890, "2": 1.0, "1": [1e5, {}], "b": "{\\"a\\": [,}"}'
    played(page, server, manager, scope, written.encode())
    page.get_by_role("button", name="JSON").click()
    until(page, "document.querySelector('pre').textContent.includes('12345678901234567890')")
    lines = page.locator("pre").inner_text().split("\n")
    assert [line.strip() for line in lines] == [
        "{", '"b": 12345678901234567890,', '"2": 1.0,', '"1": [', "1e5,", "{}", "],", '"b": "{\\"a\\": [,}"', "}",
    ]  # fmt: skip


@pytest.mark.parametrize("event", [*(b"[" * n + b"]" * n for n in (7_000, 30_000)), b"[1" + b",1" * 30_000 + b"]"])
def test_deep_or_long_json_is_shown_quickly(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str, event: bytes
) -> None:
    played(page, server, manager, scope, b'{"before": 1}', event)
    page.get_by_role("button", name="JSON").click()
    began = time.monotonic()
    until(page, "document.querySelector('pre').textContent.replaceAll(/\\s/g, '').startsWith('[')")
    assert time.monotonic() - began < 20
    shown = page.evaluate("document.querySelector('pre').textContent.replaceAll(/\\s/g, '')")
    assert shown.encode() == event


def test_huge_picture_in_a_small_file_is_not_decoded(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    page.goto(f"{server.rest_uri}/#/stream/{scope}/meters")
    page.get_by_text("No new events").wait_for()
    fill_stream(manager, scope, "meters", [png(0, 8_000), png(200)])
    page.get_by_text("unreadable picture").wait_for()
    until(page, "document.querySelector('.events canvas')?.width === 16")


# --- player ---------------------------------------------------------------------------------------


def test_next_event_key_steps_through_events_of_one_moment(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    played(page, server, manager, scope, *(b'{"i": "<%d>"}' % i for i in range(12)))
    page.get_by_role("button", name="JSON").click()
    page.keyboard.press("Shift+ArrowLeft")
    until(page, "document.querySelector('pre').textContent.includes('<0>')")
    for i in range(1, 12):
        page.keyboard.press(".")
        until(page, f"document.querySelector('pre').textContent.includes('<{i}>')")
    page.keyboard.press(".")
    page.get_by_text("End.", exact=True).wait_for()


def test_live_mode_is_unavailable_for_a_sealed_stream(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    played(page, server, manager, scope, b'{"n": 1}')
    page.keyboard.press("l")
    page.wait_for_timeout(200)
    assert page.locator(".player").get_attribute("data-mode") == "paused"


def test_hidden_page_pauses_and_resumes_the_replay(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    with writing(manager, scope, "meters", lambda i: b'{"i": %d}' % i, 0.02):
        time.sleep(5)
    page.goto(f"{server.rest_uri}/#/play/{scope}/meters?from=1")
    page.get_by_label("Speed").select_option("0.1")  # slow enough not to end before it is hidden
    until(page, "Number(document.querySelector('.view')?.dataset.events) > 5")
    page.evaluate(
        """Object.defineProperty(document, "hidden", { get: () => window.isHidden, configurable: true });
        window.isHidden = true; document.dispatchEvent(new Event("visibilitychange"))"""
    )
    events = "document.querySelector('.view').dataset.events"
    before, seen = None, page.evaluate(events)
    while seen != before:  # pending events still arrive
        page.wait_for_timeout(1000)
        before, seen = seen, page.evaluate(events)
    page.evaluate('window.isHidden = false; document.dispatchEvent(new Event("visibilitychange"))')
    until(page, f"Number(document.querySelector('.view').dataset.events) > {seen}")
    assert page.locator(".player").get_attribute("data-mode") == "playing"


def test_zooming_out_is_limited(page: Any, server: EmbeddedServer, manager: StreamManager, scope: str) -> None:
    page.goto(f"{server.rest_uri}/#/stream/{scope}/meters")
    page.get_by_text("No new events").wait_for()
    zoom = page.get_by_role("button", name="Zoom out")
    for _ in range(150):
        zoom.dispatch_event("click")
    page.wait_for_timeout(300)
    page.get_by_role("button", name="10 min").click()
    until(page, "document.querySelector('.picture canvas').ariaLabel.includes(' segments from 20')")


@pytest.mark.parametrize("hours", [-2, 2])
def test_browser_with_a_wrong_clock_shows_current_events(
    own_page: Any, server: EmbeddedServer, manager: StreamManager, scope: str, hours: int
) -> None:
    page = own_page
    page.add_init_script(f"const real = Date.now; Date.now = () => real() + {hours * HOUR_MS};")
    with writing(manager, scope, "meters", lambda i: b'{"i": %d}' % i):
        page.goto(f"{server.rest_uri}/#/stream/{scope}/meters")
        page.get_by_role("button", name="1 min").click()
        page.locator(".facts", has_text="of 2").wait_for()
        until(page, "/from .* to /.test(document.querySelector('.picture canvas').ariaLabel)")
        page.wait_for_timeout(2500)
        label = page.locator(".picture canvas").first.get_attribute("aria-label")
        end = time.mktime(time.strptime(label.split(" to ")[1], "%Y-%m-%d %H:%M:%S"))
        assert abs(end - time.time()) < 30


# --- addresses, servers, and sign-in ---------------------------------------------------------------


@pytest.mark.parametrize("address", ["#/stream/%/x", "#/play/%E0%A4%A/x", "#/<script>"])
def test_invalid_address_shows_all_streams(page: Any, server: EmbeddedServer, address: str) -> None:
    page.goto(f"{server.rest_uri}/{address}")
    page.get_by_role("searchbox", name="Find a stream").wait_for()


@pytest.mark.parametrize("query", ["from=abc", "from=1&to=99999999999999999999", "from=-1", "from=1&to=NaN"])
def test_invalid_moments_are_ignored(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str, query: str
) -> None:
    fill_stream(manager, scope, "meters", [b'{"first": 1}'])
    page.goto(f"{server.rest_uri}/#/play/{scope}/meters?{query}")
    until(page, "Number(document.querySelector('.view')?.dataset.events) === 1")


@contextmanager
def stopped(server: EmbeddedServer) -> Iterator[None]:
    """Stop the server, which keeps its connections open."""
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("view", ["", "#/stream/sc/meters", "#/play/sc/meters"])
def test_page_reports_a_hanging_server_and_recovers(own_page: Any, tmp_path: Path, view: str) -> None:
    page = own_page
    with nadi.embedded(tmp_path, rest_port=0) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        manager.create_stream("sc", "meters", 2)
        page.clock.install()
        page.goto(f"{server.rest_uri}/{view}")
        page.locator(".health", has_text="healthy").wait_for()
        with stopped(server):
            page.clock.run_for(8_000)  # until the next request
            page.clock.run_for(25_000)
            page.locator("#banner").get_by_text("hasn't responded since").wait_for()
        for _ in range(10):
            page.clock.run_for(2_000)
            page.wait_for_timeout(100)
        page.locator("#banner").wait_for(state="hidden")
        page.locator(".health", has_text="healthy").wait_for()


def test_declined_sign_in_is_not_requested_again(page: Any, tmp_path: Path) -> None:
    with guarded(tmp_path, rest_port=0) as server:
        page.goto(server.rest_uri)
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        page.get_by_text("Reload the page").wait_for()
        page.wait_for_timeout(5500)
        assert page.get_by_role("dialog").count() == 0
