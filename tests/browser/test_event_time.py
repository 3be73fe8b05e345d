"""A stream by its events' own time: its picture, playing by the day, dates; and a history by its arrival."""

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
    """A scope with a stream of a year of readings, all of which came within a second or so; its last hundred have no
    time."""
    manager.create_scope("grid")
    manager.create_stream("grid", "meters", segments=2, event_time="read_at")
    events = [{"read_at": hour.isoformat(), "wh": hour.hour} for hour in HOURS] + [{"wh": 0}] * 100
    with manager.create_writer("grid", "meters") as writer:
        writer.write_batch(
            [json.dumps(event).encode() for event in events], [f"meter {number % 5}" for number in range(len(events))]
        )
    return "grid"


@pytest.fixture
def page(browser: Any) -> Any:
    """One in London, where it is winter."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="Europe/London")
    page = context.new_page()
    page.set_default_timeout(60_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    context.close()
    assert not wrong


def test_an_imported_year_is_drawn_and_played_by_its_own_time(page: Any, server: EmbeddedServer, grid: str) -> None:
    page.goto(f"{server.rest_uri}/#/stream/{grid}/meters")
    until(page, f"/^Segments over time: 2 segments from 2024-12-\\d\\d .* to 2026-01-0\\d/.test({LABEL})")
    assert page.get_by_label("By which time").locator("option").all_inner_texts() == ["by read_at", "by arrival"]
    page.get_by_text("Play", exact=True).first.click()
    mode(page, "playing")
    assert page.get_by_label("Speed").input_value() == "86400"  # all of it within ten minutes
    until(page, f"Number({SEEN}) > 40")
    assert re.match(r"2025-01-0\d", page.locator(".clock").inner_text())
    page.get_by_label("By which time").select_option("arrival")
    until(page, f"!({LABEL}).includes('2025')")
    mode(page, "live")  # it came at once, and is over
    until(page, f"({VALUES}) > 0")
    page.get_by_label("By which time").select_option("")
    mode(page, "playing")
    until(page, "/^2025-01/.test(document.querySelector('.clock').textContent)")


def test_a_week_is_played_and_each_of_its_events_is_seen(page: Any, server: EmbeddedServer, grid: str) -> None:
    week = f"from={ms(MONDAY)}&to={ms(MONDAY + timedelta(days=7))}"
    page.goto(f"{server.rest_uri}/#/play/{grid}/meters?{week}")
    mode(page, "playing")
    assert page.get_by_label("Speed").input_value() == "3600"
    page.get_by_label("Speed").select_option("86400")
    page.get_by_text("The end.").wait_for()
    mode(page, "paused")
    wanted = sum(MONDAY <= hour < MONDAY + timedelta(days=7) for hour in HOURS)
    assert (page.evaluate(SEEN), wanted) == (str(wanted), 7 * 24)
    page.get_by_label("How much time the chart shows").select_option("86400000")
    until(page, f"({VALUES}) === 24")  # of the last day


def test_one_goes_to_a_date_and_makes_a_bookmark_there(
    page: Any, server: EmbeddedServer, manager: StreamManager, grid: str
) -> None:
    page.goto(f"{server.rest_uri}/#/play/{grid}/meters")
    mode(page, "playing")
    page.keyboard.press(" ")
    page.get_by_label("Go to a date").fill("2025-11-03T00:00")
    page.get_by_role("button", name="JSON").click()
    page.get_by_text('"2025-11-03T00:00:00+00:00"').wait_for()
    assert page.locator(".clock").inner_text().startswith("2025-11-03 00:00:00")
    page.get_by_role("button", name="Bookmark…").click()
    page.get_by_label("Name").fill("monday")
    page.get_by_role("button", name="Make it").click()
    page.get_by_text("Bookmark monday is made.").wait_for()
    cuts = manager.cuts(grid, "meters")
    assert manager.bookmarks(grid).get("monday").cut == cuts.at_event_time(MONDAY)
    page.goto("about:blank")
    page.goto(f"{server.rest_uri}/#/play/{grid}/meters?bookmark=monday")
    page.get_by_label("Speed").select_option("604800")
    page.get_by_text("The end.").wait_for()
    assert page.evaluate(SEEN) == str(sum(hour >= MONDAY for hour in HOURS))


def test_a_time_that_no_event_has_is_said(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    manager.update_stream(scope, "meters", event_time="at")
    with manager.create_writer(scope, "meters") as writer:
        writer.write_event(b'{"time": 1}', routing_key="a")
    page.goto(f"{server.rest_uri}/#/stream/{scope}/meters")
    page.get_by_text("No event has a time in at.").wait_for()


def test_a_history_that_came_at_once_is_seen_though_nothing_comes_any_more(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    """Play shows the last of it; from a bookmark it passes at once, and stays to be seen."""
    with manager.create_writer(scope, "meters") as writer:
        for number in range(100):
            if number == 50:
                writer.flush()
                manager.bookmarks(scope).create("half", manager.cuts(scope, "meters").tail())
            writer.write_event(b'{"number": %d}' % number, routing_key="a")
    page.wait_for_timeout(21_000)  # what came lately was then; a window of the chart is shorter
    for query, count in (("", 10), ("?bookmark=half", 50)):
        page.goto("about:blank")
        page.goto(f"{server.rest_uri}/#/play/{scope}/meters{query}")
        mode(page, "live")
        page.get_by_label("How much time the chart shows").select_option("10000")
        until(page, f"({VALUES}) === {count}")
        assert page.evaluate(SEEN) == str(count)
