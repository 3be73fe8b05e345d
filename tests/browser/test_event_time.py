"""A stream by event time: picture, replay, dates; and a history by arrival."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer
from tests.browser.support import until
from tests.browser.test_player import mode

START, MONDAY = datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 11, 3, tzinfo=UTC)
HOURS = [START + timedelta(hours=hour) for hour in range(365 * 24)]
LABEL = "document.querySelector('.picture canvas')?.getAttribute('aria-label') ?? ''"
VALUES = "Number(/: (\\d+) values/.exec(document.querySelector('canvas.fill')?.getAttribute('aria-label') ?? '')?.[1])"
SEEN = "document.querySelector('.view').dataset.events"


def ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


@pytest.fixture(scope="module")
def grid(manager: StreamManager) -> str:
    """A scope with a stream of a year of readings that arrived within a second or so; the last hundred lack a time."""
    manager.create_scope("grid")
    manager.create_stream("grid", "meters", segments=2, event_time="read_at")
    events = [{"read_at": hour.isoformat(), "wh": hour.hour} for hour in HOURS] + [{"wh": 0}] * 100
    with manager.create_writer("grid", "meters") as writer:
        writer.write_batch(
            [json.dumps(event).encode() for event in events], [f"meter {number % 5}" for number in range(len(events))]
        )
    return "grid"


@pytest.fixture(scope="module")
def context_options() -> dict[str, Any]:
    return {"timezone_id": "Europe/London"}


def test_imported_year_is_drawn_and_replayed_by_event_time(page: Any, server: EmbeddedServer, grid: str) -> None:
    page.goto(f"{server.rest_uri}/#/stream/{grid}/meters")
    until(page, f"/^Segments over time: 2 segments from 2024-12-\\d\\d .* to 2026-01-0\\d/.test({LABEL})")
    assert page.get_by_label("Clock").locator("option").all_inner_texts() == ["by event time (read_at)", "by arrival"]
    page.get_by_text("Play", exact=True).first.click()
    mode(page, "playing")
    assert page.get_by_label("Speed").input_value() == "86400"  # all of it within ten minutes
    until(page, f"Number({SEEN}) > 40")
    assert re.match(r"2025-01-0\d", page.locator(".clock").inner_text())
    page.get_by_label("Clock").select_option("arrival")
    until(page, f"!({LABEL}).includes('2025')")
    mode(page, "live")  # the events arrived at once
    until(page, f"({VALUES}) > 0")
    page.get_by_label("Clock").select_option("")
    mode(page, "playing")
    until(page, "/^2025-01/.test(document.querySelector('.clock').textContent)")


def test_replay_of_a_week_shows_each_event(page: Any, server: EmbeddedServer, grid: str) -> None:
    week = f"from={ms(MONDAY)}&to={ms(MONDAY + timedelta(days=7))}"
    expected = sum(MONDAY <= hour < MONDAY + timedelta(days=7) for hour in HOURS)
    assert expected == 7 * 24
    for _ in range(4):  # a busy machine skips events
        page.goto("about:blank")
        page.goto(f"{server.rest_uri}/#/play/{grid}/meters?{week}")
        mode(page, "playing")
        assert page.get_by_label("Speed").input_value() == "3600"
        page.get_by_label("Speed").select_option("86400")
        page.get_by_text("End.", exact=True).wait_for()
        mode(page, "paused")
        if int(page.evaluate(SEEN)) >= expected:
            break
    assert page.evaluate(SEEN) == str(expected)
    page.get_by_label("Period shown in the chart").select_option("86400000")
    until(page, f"({VALUES}) === 24")  # of the last day


def test_go_to_a_date_and_bookmark_it(page: Any, server: EmbeddedServer, manager: StreamManager, grid: str) -> None:
    page.goto(f"{server.rest_uri}/#/play/{grid}/meters")
    mode(page, "playing")
    page.keyboard.press(" ")
    page.get_by_label("Go to a date").fill("2025-11-03T00:00")
    page.get_by_role("button", name="JSON").click()
    page.get_by_text('"2025-11-03T00:00:00+00:00"').wait_for()
    assert page.locator(".clock").inner_text().startswith("2025-11-03 00:00:00")
    page.get_by_role("button", name="Bookmark…").click()
    page.get_by_label("Name").fill("monday")
    page.get_by_role("button", name="Create").click()
    page.get_by_text("Created bookmark monday.").wait_for()
    cuts = manager.cuts(grid, "meters")
    assert manager.bookmarks(grid).get("monday").cut == cuts.at_event_time(MONDAY)
    page.goto("about:blank")
    page.goto(f"{server.rest_uri}/#/play/{grid}/meters?bookmark=monday")
    page.get_by_label("Speed").select_option("604800")
    page.get_by_text("End.", exact=True).wait_for()
    assert page.evaluate(SEEN) == str(sum(hour >= MONDAY for hour in HOURS))


def test_missing_event_times_are_reported(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    manager.update_stream(scope, "meters", event_time="at")
    with manager.create_writer(scope, "meters") as writer:
        writer.write_event(b'{"time": 1}', routing_key="a")
    page.goto(f"{server.rest_uri}/#/stream/{scope}/meters")
    page.get_by_text("No event has a valid time in at.").wait_for()


def test_chart_shows_last_events_of_an_idle_stream(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    """Live mode shows the last events; a replay from a bookmark ends at once, and its events stay visible."""
    with manager.create_writer(scope, "meters") as writer:
        for number in range(100):
            if number == 50:
                writer.flush()
                manager.bookmarks(scope).create("half", manager.cuts(scope, "meters").tail())
            writer.write_event(b'{"number": %d}' % number, routing_key="a")
    page.wait_for_timeout(21_000)  # longer than the period that live mode shows
    for query, count in (("", 10), ("?bookmark=half", 50)):
        page.goto("about:blank")
        page.goto(f"{server.rest_uri}/#/play/{scope}/meters{query}")
        mode(page, "live")
        page.get_by_label("Period shown in the chart").select_option("10000")
        until(page, f"({VALUES}) === {count}")
        assert page.evaluate(SEEN) == str(count)
