"""One stream: its tail, its picture, places made by pointing, and changes after a question."""

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


def test_the_tail_is_shown_as_text_json_and_pictures_and_never_as_markup(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    opened(page, server, scope)
    page.get_by_text("Nothing has come").wait_for()
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


def test_what_the_tail_leaves_out_is_counted(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    opened(page, server, scope)
    page.get_by_text("Nothing has come").wait_for()
    fill_stream(manager, scope, "meters", [b"event %d" % i for i in range(170)])
    told = """[...document.querySelectorAll(".events .event")].reduce((sum, one) =>
        sum + (one.matches(".gap") ? parseInt(one.textContent) : 1), 0)"""
    page.get_by_text("event 169").wait_for()
    until(page, f"{told} === 170")
    page.get_by_role("button", name="Hold").click()
    fill_stream(manager, scope, "meters", [b"held"] * 5)
    until(page, "document.querySelector('[role=status].grow').textContent.match(/(\\d+) not shown/)?.[1] >= 5")
    page.get_by_role("button", name="Hold").click()
    page.get_by_text("more came while it was held.").wait_for()
    until(page, f"{told} === 175")


def test_a_place_whose_time_is_not_known_is_said(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    manager.bookmarks(scope).create("lost", manager.cuts(scope, "meters").tail())

    def timeless(route: Any) -> None:
        found = route.fetch().json()
        route.fulfill(json=[one | {"time": None} for one in found])

    page.route("**/bookmarks?*", timeless)
    opened(page, server, scope)
    page.get_by_role("link", name="lost", exact=True).click()
    page.get_by_text("When the stream stood there isn't known.").wait_for()


def test_a_chosen_stretch_is_played_by_its_key(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    opened(page, server, scope)
    page.locator("canvas.over").hover(position={"x": 300, "y": 150})
    page.mouse.down()
    page.mouse.move(700, 300)
    page.mouse.up()
    page.get_by_role("link", name="Play it").wait_for()
    page.keyboard.press(" ")
    until(page, "/from=\\d+&to=\\d+/.test(location.hash)")


def test_a_bookmark_is_made_by_pointing_renamed_and_deleted(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    fill_stream(manager, scope, "meters", [b"x"] * 10)
    opened(page, server, scope)
    page.locator("canvas.over").click(position={"x": 700, "y": 150})
    page.get_by_role("button", name="Bookmark…", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("two words")
    dialog.get_by_role("button", name="Make it").click()
    assert dialog.is_visible()  # a name that can't be is not sent
    dialog.get_by_label("Name").fill("dinner")
    dialog.get_by_label("Note").fill("<i>as it began</i>")
    dialog.get_by_role("button", name="Make it").click()
    places = page.get_by_role("table", name="Bookmarks and slices")
    places.get_by_role("link", name="dinner", exact=True).wait_for()
    assert manager.bookmarks(scope).get("dinner").note == "<i>as it began</i>"
    page.get_by_role("button", name="Rename bookmark dinner").click()
    dialog.get_by_label("New name").fill("supper")
    dialog.get_by_role("button", name="Rename").click()
    page.get_by_role("button", name="Delete bookmark supper").click()
    dialog.get_by_role("button", name="Delete").click()
    page.get_by_text("None yet.").wait_for()
    assert manager.bookmarks(scope).list() == []


def test_a_slice_is_made_by_dragging_and_a_name_that_is_taken_is_said(
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
    dialog.get_by_role("button", name="Make it").click()
    dialog.get_by_role("alert").get_by_text("taken").wait_for()
    dialog.get_by_label("Name").fill("mine")
    dialog.get_by_role("button", name="Make it").click()
    page.get_by_role("table").get_by_role("link", name="mine", exact=True).wait_for()
    assert manager.slices(scope).get("mine").stream == "meters"


def test_a_segment_is_split_and_two_are_merged(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    manager.create_stream(scope, "other", 3)
    opened(page, server, scope)
    page.get_by_role("tab", name="Change").click()
    page.get_by_role("button", name="Split…").click()
    page.get_by_role("dialog").get_by_role("button", name="Split").click()
    until(page, "document.querySelector('.facts').textContent.includes('3 segments of 4')")
    assert len(manager.current_segments(scope, "meters")) == 3
    page.get_by_role("button", name="Merge…").click()
    page.get_by_role("dialog").get_by_role("button", name="Merge").click()
    until(page, "document.querySelector('.facts').textContent.includes('2 segments of 5')")
    until(page, "document.querySelector('.picture canvas').ariaLabel.startsWith('Segments over time: 5 segments')")


def test_a_stream_is_sealed_only_by_who_types_its_name(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    opened(page, server, scope)
    page.get_by_role("tab", name="Change").click()
    page.get_by_role("button", name="Seal…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("Type the stream")).fill("metres")
    dialog.get_by_role("button", name="Seal it").click()
    dialog.get_by_text("That is not the stream's name").wait_for()
    assert not manager.stream_info(scope, "meters").is_sealed
    dialog.get_by_label(re.compile("Type the stream")).fill("meters")
    dialog.get_by_role("button", name="Seal it").click()
    page.locator(".facts", has_text="sealed").wait_for()
    assert manager.stream_info(scope, "meters").is_sealed


def test_a_truncation_deletes_what_lies_before_the_moment(
    page: Any, server: EmbeddedServer, manager: StreamManager, scope: str
) -> None:
    with writing(manager, scope, "meters", lambda i: b"%d" % i + b"x" * 2000, 0.02):
        opened(page, server, scope)
        page.wait_for_timeout(6000)  # moments are known to a second, and a slow machine writes little
        while sum(manager.stream_info(scope, "meters").tail.positions.values()) < 200_000:  # on a slow machine
            page.wait_for_timeout(200)
    page.locator("canvas.over").click(position={"x": 900, "y": 150})
    page.get_by_role("button", name="Truncate before…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("Type the stream")).fill("meters")
    dialog.get_by_role("button", name="Delete what lies before").click()
    page.get_by_text("The stream is truncated.").wait_for()
    assert any(offset > 0 for offset in manager.cuts(scope, "meters").head().positions.values())


def test_reader_groups_and_transactions(page: Any, server: EmbeddedServer, manager: StreamManager, scope: str) -> None:
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


def test_a_stream_that_is_not_there_is_said(page: Any, server: EmbeddedServer, scope: str) -> None:
    page.goto(f"{server.rest_uri}/#/stream/{scope}/none")
    page.get_by_role("alert").get_by_text("There is no stream").wait_for()
