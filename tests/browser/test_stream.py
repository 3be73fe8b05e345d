"""The view of a stream: tail, picture, bookmarks and slices, and operations."""

from __future__ import annotations

import re
from typing import Any

from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer
from nadi.testing import fill_stream
from tests.browser.support import png, until, writing

EVIL = b'<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


def opened(page: Any, server: EmbeddedServer, scope: str) -> None:
    page.goto(f"{server.rest_uri}/#/stream/{scope}/meters")
    page.get_by_role("heading", name="meters").wait_for()
    until(page, "document.querySelector('.facts').textContent.includes('of 2')")


def test_tail_shows_text_json_and_pictures_without_markup(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    opened(page, server, scope)
    page.get_by_text("No new events").wait_for()
    fill_stream(manager, scope, "meters", [EVIL, b'{"wh": 12.5, "meter": "<b>kitchen</b>"}', b"\xff\x00\x01"])
    fill_stream(manager, scope, "meters", [png(200)])
    log = page.get_by_role("log")
    log.get_by_text('<img src=x onerror="window.hacked=1">').wait_for()
    log.locator(".key", has_text='"wh"').wait_for()
    assert log.locator(".lit").first.inner_text() == "12.5"
    log.get_by_text("ff 00 01").wait_for()
    log.get_by_role("img", name="picture, image/png").wait_for()
    until(page, "document.querySelector('.events canvas').width === 16")
    assert log.locator("img, script, b").count() == 0
    assert page.evaluate("window.hacked") is None


def test_tail_counts_events_that_are_not_shown(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    opened(page, server, scope)
    page.get_by_text("No new events").wait_for()
    fill_stream(manager, scope, "meters", [b"event %d" % i for i in range(170)])
    total = """[...document.querySelectorAll(".events .event")].reduce((sum, one) =>
        sum + (one.matches(".gap") ? parseInt(one.textContent) : 1), 0)"""
    page.get_by_text("event 169").wait_for()
    until(page, f"{total} === 170")
    page.get_by_role("button", name="Pause").click()
    fill_stream(manager, scope, "meters", [b"pending"] * 5)
    until(page, "document.querySelector('[role=status].grow').textContent.match(/(\\d+) not shown/)?.[1] >= 5")
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("events arrived while paused.").wait_for()
    until(page, f"{total} === 175")


def test_bookmark_with_unknown_time_is_reported(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    manager.bookmarks(scope).create("lost", manager.cuts(scope, "meters").tail())

    def timeless(route: Any) -> None:
        bookmarks = route.fetch().json()
        route.fulfill(json=[bookmark | {"time": None} for bookmark in bookmarks])

    page.route("**/bookmarks?*", timeless)
    opened(page, server, scope)
    page.get_by_role("link", name="lost", exact=True).click()
    page.get_by_text("The time of this position is unknown.").wait_for()


def test_selected_range_is_replayed_by_key(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    opened(page, server, scope)
    page.locator("canvas.over").hover(position={"x": 300, "y": 150})
    page.mouse.down()
    page.mouse.move(700, 300)
    page.mouse.up()
    page.get_by_role("link", name="Play", exact=True).nth(1).wait_for()
    page.keyboard.press(" ")
    until(page, "/from=\\d+&to=\\d+/.test(location.hash)")


def test_bookmark_is_created_by_click_renamed_and_deleted(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    fill_stream(manager, scope, "meters", [b"x"] * 10)
    opened(page, server, scope)
    page.locator("canvas.over").click(position={"x": 700, "y": 150})
    page.get_by_role("button", name="Bookmark…", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("two words")
    dialog.get_by_role("button", name="Create").click()
    assert dialog.is_visible()  # an invalid name isn't sent
    dialog.get_by_label("Name").fill("dinner")
    dialog.get_by_label("Note").fill("<i>as it began</i>")
    dialog.get_by_role("button", name="Create").click()
    table = page.get_by_role("table", name="Bookmarks and slices")
    table.get_by_role("link", name="dinner", exact=True).wait_for()
    assert manager.bookmarks(scope).get("dinner").note == "<i>as it began</i>"
    page.get_by_role("button", name="Rename bookmark dinner").click()
    dialog.get_by_label("New name").fill("supper")
    dialog.get_by_role("button", name="Rename").click()
    page.get_by_role("button", name="Delete bookmark supper").click()
    dialog.get_by_role("button", name="Delete").click()
    page.get_by_text("No bookmarks or slices.").wait_for()
    assert manager.bookmarks(scope).list() == []


def test_slice_is_created_by_dragging_unless_its_name_exists(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    tail = fill_stream(manager, scope, "meters", [b"x"] * 10)
    manager.slices(scope).create("taken", manager.cuts(scope, "meters").head(), tail)
    opened(page, server, scope)
    box = page.locator("canvas.over").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(box["x"] + 800, box["y"] + 160, steps=4)
    page.mouse.up()
    page.get_by_role("button", name="Slice…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("taken")
    dialog.get_by_role("button", name="Create").click()
    dialog.get_by_role("alert").get_by_text("taken").wait_for()
    dialog.get_by_label("Name").fill("mine")
    dialog.get_by_role("button", name="Create").click()
    page.get_by_role("table").get_by_role("link", name="mine", exact=True).wait_for()
    assert manager.slices(scope).get("mine").stream == "meters"


def test_segments_are_split_and_merged(page: Any, server: EmbeddedServer, manager: StreamManager, scope: str) -> None:
    manager.create_stream(scope, "other", 3)
    opened(page, server, scope)
    page.get_by_role("tab", name="Operations").click()
    page.get_by_role("button", name="Split…").click()
    page.get_by_role("dialog").get_by_role("button", name="Split").click()
    until(page, "document.querySelector('.facts').textContent.includes('3 segments of 4')")
    assert len(manager.current_segments(scope, "meters")) == 3
    page.get_by_role("button", name="Merge…").click()
    page.get_by_role("dialog").get_by_role("button", name="Merge").click()
    until(page, "document.querySelector('.facts').textContent.includes('2 segments of 5')")
    until(page, "document.querySelector('.picture canvas').ariaLabel.startsWith('Segments over time: 5 segments')")


def test_seal_requires_the_streams_name(page: Any, server: EmbeddedServer, manager: StreamManager, scope: str) -> None:
    opened(page, server, scope)
    page.get_by_role("tab", name="Operations").click()
    page.get_by_role("button", name="Seal…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("Type the stream")).fill("metres")
    dialog.get_by_role("button", name="Seal", exact=True).click()
    dialog.get_by_text("This is not the stream's name").wait_for()
    assert not manager.stream_info(scope, "meters").is_sealed
    dialog.get_by_label(re.compile("Type the stream")).fill("meters")
    dialog.get_by_role("button", name="Seal", exact=True).click()
    page.locator(".facts", has_text="sealed").wait_for()
    assert manager.stream_info(scope, "meters").is_sealed


def test_truncate_deletes_events_before_the_moment(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    with writing(manager, scope, "meters", lambda i: b"%d" % i + b"x" * 2000, 0.02):
        opened(page, server, scope)
        page.wait_for_timeout(6000)  # times are accurate to a second, and a slow machine writes little
        while sum(manager.stream_info(scope, "meters").tail.positions.values()) < 200_000:  # on a slow machine
            page.wait_for_timeout(200)
    page.locator("canvas.over").click(position={"x": 900, "y": 150})
    page.get_by_role("button", name="Truncate before…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("Type the stream")).fill("meters")
    dialog.get_by_role("button", name="Delete events").click()
    page.get_by_text("Truncated the stream.").wait_for()
    assert any(offset > 0 for offset in manager.cuts(scope, "meters").head().positions.values())


def test_reader_groups_and_transactions_are_listed(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    fill_stream(manager, scope, "meters", [b"x"] * 10)
    manager.reader_group_manager(scope).create_reader_group("billing", ["meters"])
    manager.create_transaction_writer(scope, "meters").begin_txn()
    opened(page, server, scope)
    page.get_by_role("tab", name="Reader groups").click()
    row = page.get_by_role("table", name="Reader groups").get_by_role("row", name=re.compile("billing"))
    row.wait_for()
    assert "90 B" in row.inner_text()
    page.get_by_role("tab", name="Transactions").click()
    page.get_by_role("table", name="Transactions").get_by_text("open", exact=True).wait_for()


def test_missing_stream_is_reported(page: Any, server: EmbeddedServer, scope: str) -> None:
    page.goto(f"{server.rest_uri}/#/stream/{scope}/none")
    page.get_by_role("alert").get_by_text("none").first.wait_for()
