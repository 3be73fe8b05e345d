"""The player: pictures as a video, numbers as a chart, JSON; pause, seek, speed, live mode, keyboard."""

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
    """A scope with a stream of pictures, a slice of it, and a stream of numbers."""
    manager.create_scope("recorded")
    for stream in ("camera", "meters"):
        manager.create_stream("recorded", stream)
    with (  # times are only accurate to a second if a segment receives 4 KiB in it
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


def mode(page: Any, expected: str) -> None:
    page.locator(f".player[data-mode='{expected}']").wait_for()


def frames(page: Any) -> int:
    return int(page.locator("canvas.fill").get_attribute("data-frames") or 0)


def test_pictures_are_replayed_as_a_video_until_paused(page: Any, server: EmbeddedServer, recorded: str) -> None:
    opened(page, server, "camera", "?slice=all")
    mode(page, "playing")
    for _ in range(2):
        page.keyboard.press("[")  # a quarter of the speed: a slow machine draws fewer pictures per second
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
    for _ in range(2):
        page.keyboard.press("]")
    page.keyboard.press(" ")
    mode(page, "playing")
    page.get_by_text("End.", exact=True).wait_for()
    mode(page, "paused")


def test_replay_to_the_end_continues_live(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    """Each event is shown once, whether replayed, or written before or after the tail is connected."""
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


def test_speed_eight_is_eight_times_as_fast(page: Any, server: EmbeddedServer, recorded: str) -> None:
    def lasted_s() -> float:
        page.reload()
        page.get_by_label("Speed").select_option("8")
        start = time.monotonic()
        page.get_by_text("End.", exact=True).wait_for()
        return time.monotonic() - start

    opened(page, server, "camera", "?slice=all")
    waited_until(lambda: lasted_s() < 4)  # repeated in case the machine stalls
    page.keyboard.press("[")
    assert page.get_by_label("Speed").input_value() == "4"


def test_click_on_the_scrub_bar_seeks(page: Any, server: EmbeddedServer, recorded: str) -> None:
    opened(page, server, "camera", "?slice=all")
    until(page, "Number(document.querySelector('canvas.fill')?.dataset.frames) > 2")
    page.keyboard.press(" ")
    mode(page, "paused")
    before, count = page.locator(".clock").inner_text(), frames(page)
    page.locator("canvas.over").click(position={"x": 800, "y": 70})
    until(page, f"Number(document.querySelector('canvas.fill').dataset.frames) > {count}")
    until(page, f"document.querySelector('.clock').innerText > {json.dumps(before)}")


def test_numbers_are_shown_as_a_chart_split_by_a_field(page: Any, server: EmbeddedServer, recorded: str) -> None:
    opened(page, server, "meters", "?from=1")
    page.get_by_role("img", name="Line chart of wh").wait_for()
    assert page.get_by_label("Field").input_value() == "wh"
    assert page.get_by_label("Split by").input_value() == "meter"
    page.get_by_role("button", name="JSON").click()
    page.locator(".screen pre .key", has_text='"wh"').wait_for()
    page.get_by_role("button", name="Picture").click()
    assert page.get_by_role("button", name="Picture").get_attribute("aria-pressed") == "true"


def test_live_mode_shows_new_events(page: Any, server: EmbeddedServer, manager: StreamManager, recorded: str) -> None:
    opened(page, server, "meters", "?from=1")
    mode(page, "playing")
    page.keyboard.press("l")
    mode(page, "live")
    assert page.get_by_role("button", name="Live").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="JSON").click()
    with writing(manager, "recorded", "meters", lambda i: b'{"now": %d}' % i):
        page.locator(".screen pre .key", has_text='"now"').wait_for()


def test_bookmark_key_creates_a_bookmark_at_the_playback_position(
    page: Any, server: EmbeddedServer, manager: StreamManager, recorded: str
) -> None:
    opened(page, server, "camera", "?slice=all")
    until(page, "Number(document.querySelector('.view')?.dataset.events) > 40")
    page.keyboard.press("b")
    page.get_by_role("dialog").get_by_label("Name").fill("scene")
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    page.get_by_text("Created bookmark scene.").wait_for()
    assert (
        manager.bookmarks("recorded").get("scene").cut.positions != manager.cuts("recorded", "camera").head().positions
    )


def test_play_after_the_end_starts_over(page: Any, server: EmbeddedServer, recorded: str) -> None:
    opened(page, server, "camera", "?slice=all")
    page.get_by_label("Speed").select_option("16")
    page.get_by_text("End.", exact=True).wait_for()
    count = frames(page)
    page.get_by_label("Speed").select_option("1")  # at 16, a slow machine draws only the last picture
    page.keyboard.press(" ")
    until(page, f"Number(document.querySelector('canvas.fill').dataset.frames) > {count + 3}")


def test_live_mode_leaves_a_selected_slice(page: Any, server: EmbeddedServer, recorded: str) -> None:
    """Resuming would otherwise continue at the end of the slice."""
    opened(page, server, "camera", "?slice=all")
    mode(page, "playing")
    assert page.get_by_label("Range to play").input_value() == "slice:all"
    page.keyboard.press("l")
    mode(page, "live")
    assert page.get_by_label("Range to play").input_value() == ""
    page.keyboard.press(" ")
    mode(page, "paused")
    page.keyboard.press(" ")
    mode(page, "live")


def test_replay_of_a_selected_range(page: Any, server: EmbeddedServer, manager: StreamManager, recorded: str) -> None:
    began_ms = manager.segment_history("recorded", "camera")[0].created_ms
    opened(page, server, "camera", f"?from={began_ms + 1_000}&to={began_ms + 4_000}")
    page.get_by_text("End.", exact=True).wait_for()
    assert page.get_by_label("Range to play").input_value() == "range"
    page.keyboard.press("Shift+ArrowRight")
    page.wait_for_timeout(300)
    assert page.locator(".player").get_attribute("data-mode") == "paused"
    count = frames(page)
    page.get_by_label("Range to play").select_option("")
    until(page, f"Number(document.querySelector('canvas.fill').dataset.frames) > {count + 3}")


def test_open_list_is_not_rebuilt(page: Any, server: EmbeddedServer, recorded: str) -> None:
    opened(page, server, "camera", "?slice=all")
    mode(page, "playing")
    page.evaluate("window.first = document.querySelector('[aria-label=\"Range to play\"] optgroup')")
    with page.expect_response(lambda response: "/slices?" in response.url):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # as when the user returns to the page
    page.wait_for_timeout(200)
    assert page.evaluate("window.first.isConnected")
