"""The player: pictures as a video, numbers as a chart, JSON; paused, moved, faster, live; by keys, too."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer
from tests.browser.support import png, until, writing
from tests.support.waiting import until as waited_until


@pytest.fixture(scope="module")
def recorded(manager: StreamManager) -> str:
    """A scope with a stream of pictures, a slice of it, and one of numbers."""
    manager.create_scope("recorded")
    for stream in ("camera", "meters"):
        manager.create_stream("recorded", stream)
    with (  # times are known to a second only where a segment gets 4 KiB in one
        writing(manager, "recorded", "camera", lambda i: png(i % 256) + bytes(2_000), 0.04),
        writing(manager, "recorded", "meters", lambda i: b'{"meter": "m%d", "wh": %d.5}' % (i % 2, i), 0.04),
    ):
        time.sleep(6)
        while sum(manager.stream_info("recorded", "camera").tail.positions.values()) < 250_000:  # on a slow machine
            time.sleep(0.1)
    cuts = manager.cuts("recorded", "camera")
    manager.slices("recorded").create("all", cuts.head(), cuts.tail())
    return "recorded"


def opened(page: Any, server: EmbeddedServer, stream: str, query: str = "") -> None:
    page.goto(f"{server.rest_uri}/#/play/recorded/{stream}{query}")
    page.locator(".player").wait_for()


def mode(page: Any, wanted: str) -> None:
    page.locator(f".player[data-mode='{wanted}']").wait_for()


def frames(page: Any) -> int:
    return int(page.locator("canvas.fill").get_attribute("data-frames") or 0)


def test_pictures_are_played_as_a_video_and_stop_where_it_is_paused(
    page: Any, server: EmbeddedServer, recorded: str
) -> None:
    opened(page, server, "camera", "?slice=all")
    mode(page, "playing")
    until(page, "Number(document.querySelector('canvas.fill')?.dataset.frames) > 20")
    page.keyboard.press(" ")
    mode(page, "paused")
    before, seen = None, (page.locator(".clock").inner_text()[:23], frames(page))
    while seen != before:  # the last frames are being drawn
        page.wait_for_timeout(600)
        before, seen = seen, (page.locator(".clock").inner_text()[:23], frames(page))
    count = frames(page)
    page.keyboard.press(".")
    until(page, f"Number(document.querySelector('canvas.fill').dataset.frames) > {count}")
    page.keyboard.press(" ")
    mode(page, "playing")
    page.get_by_text("The end.").wait_for()
    mode(page, "paused")


def test_what_is_played_to_its_end_stays_and_goes_on_live(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    """Each event once, whether it was played, came while the tail was looked for, or after that."""
    with manager.create_writer(scope, "meters") as writer:
        for number in range(3):
            writer.write_event(b'{"number": %d}' % number, routing_key="a")
        writer.flush()
        page.goto(f"{server.rest_uri}/#/play/{scope}/meters?from=1")
        mode(page, "live")
        until(page, "document.querySelector('.view').dataset.events === '3'")
        page.wait_for_timeout(500)
        assert page.locator(".view").get_attribute("data-events") == "3"
        page.get_by_role("button", name="JSON").click()
        page.locator(".key", has_text='"number"').first.wait_for()
        writer.write_event(b'{"number": 3}', routing_key="a")
        writer.flush()
        until(page, "Number(document.querySelector('.view').dataset.events) > 3")
        page.wait_for_timeout(300)
        assert page.locator(".view").get_attribute("data-events") == "4"


def test_eight_times_as_fast_is_that(page: Any, server: EmbeddedServer, recorded: str) -> None:
    def lasted_s() -> float:
        page.reload()
        page.get_by_label("Speed").select_option("8")
        began = time.monotonic()
        page.get_by_text("The end.").wait_for()
        return time.monotonic() - began

    opened(page, server, "camera", "?slice=all")
    waited_until(lambda: lasted_s() < 4)  # once the machine doesn't stop meanwhile
    page.keyboard.press("[")
    assert page.get_by_label("Speed").input_value() == "4"


def test_a_moment_is_chosen_on_the_bar(page: Any, server: EmbeddedServer, recorded: str) -> None:
    opened(page, server, "camera", "?slice=all")
    until(page, "Number(document.querySelector('canvas.fill')?.dataset.frames) > 2")
    page.keyboard.press(" ")
    mode(page, "paused")
    before, count = page.locator(".clock").inner_text(), frames(page)
    page.locator("canvas.over").click(position={"x": 800, "y": 70})
    until(page, f"Number(document.querySelector('canvas.fill').dataset.frames) > {count}")
    until(page, f"document.querySelector('.clock').innerText > {json.dumps(before)}")


def test_numbers_are_a_chart_with_a_line_for_each(page: Any, server: EmbeddedServer, recorded: str) -> None:
    opened(page, server, "meters", "?from=1")
    page.get_by_role("img", name="Line chart of wh").wait_for()
    assert page.get_by_label("Field").input_value() == "wh"
    assert page.get_by_label("A line for each").input_value() == "meter"
    page.get_by_role("button", name="JSON").click()
    page.locator(".screen pre .key", has_text='"wh"').wait_for()
    page.get_by_role("button", name="Picture").click()
    assert page.get_by_role("button", name="Picture").get_attribute("aria-pressed") == "true"


def test_live_is_what_passes_now(page: Any, server: EmbeddedServer, manager: StreamManager, recorded: str) -> None:
    opened(page, server, "meters", "?from=1")
    mode(page, "playing")
    page.keyboard.press("l")
    mode(page, "live")
    assert page.get_by_role("button", name="Live").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="JSON").click()
    with writing(manager, "recorded", "meters", lambda i: b'{"now": %d}' % i):
        page.locator(".screen pre .key", has_text='"now"').wait_for()


def test_what_is_played_can_be_bookmarked(
    page: Any, server: EmbeddedServer, manager: StreamManager, recorded: str
) -> None:
    opened(page, server, "camera", "?slice=all")
    until(page, "Number(document.querySelector('.view')?.dataset.events) > 40")
    page.keyboard.press("b")
    page.get_by_role("dialog").get_by_label("Name").fill("scene")
    page.get_by_role("dialog").get_by_role("button", name="Make it").click()
    page.get_by_text("Bookmark scene is made.").wait_for()
    assert (
        manager.bookmarks("recorded").get("scene").cut.positions != manager.cuts("recorded", "camera").head().positions
    )


def test_what_has_ended_is_played_once_more(page: Any, server: EmbeddedServer, recorded: str) -> None:
    opened(page, server, "camera", "?slice=all")
    page.get_by_label("Speed").select_option("16")
    page.get_by_text("The end.").wait_for()
    count = frames(page)
    page.get_by_label("Speed").select_option("1")  # at 16 a slow machine draws the last picture alone
    page.keyboard.press(" ")
    until(page, f"Number(document.querySelector('canvas.fill').dataset.frames) > {count + 3}")


def test_live_is_of_the_whole_stream(page: Any, server: EmbeddedServer, recorded: str) -> None:
    """Or else what is played on from there would be at the end of a slice that nobody watches."""
    opened(page, server, "camera", "?slice=all")
    mode(page, "playing")
    assert page.get_by_label("What to play").input_value() == "slice:all"
    page.keyboard.press("l")
    mode(page, "live")
    assert page.get_by_label("What to play").input_value() == ""
    page.keyboard.press(" ")
    mode(page, "paused")
    page.keyboard.press(" ")
    mode(page, "live")


def test_a_stretch_is_played_as_a_slice_is(
    page: Any, server: EmbeddedServer, manager: StreamManager, recorded: str
) -> None:
    began_ms = manager.segment_history("recorded", "camera")[0].created_ms
    opened(page, server, "camera", f"?from={began_ms + 1_000}&to={began_ms + 4_000}")
    page.get_by_text("The end.").wait_for()
    assert page.get_by_label("What to play").input_value() == "stretch"
    page.keyboard.press("Shift+ArrowRight")
    page.wait_for_timeout(300)
    assert page.locator(".player").get_attribute("data-mode") == "paused"
    count = frames(page)
    page.get_by_label("What to play").select_option("")
    until(page, f"Number(document.querySelector('canvas.fill').dataset.frames) > {count + 3}")


def test_a_list_that_somebody_has_open_stays(page: Any, server: EmbeddedServer, recorded: str) -> None:
    opened(page, server, "camera", "?slice=all")
    mode(page, "playing")
    page.evaluate("window.first = document.querySelector('[aria-label=\"What to play\"] optgroup')")
    with page.expect_response(lambda response: "/slices?" in response.url):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # as when one comes back to it
    page.wait_for_timeout(200)
    assert page.evaluate("window.first.isConnected")
