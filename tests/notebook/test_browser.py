"""The player in a real browser, with the kernel's side.

The test transports messages and buffers like a notebook. Skipped without playwright and Chromium.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nadi.client import StreamManager
from nadi.testing import fill_stream
from tests.browser.conftest import browser
from tests.browser.support import png, writing
from tests.notebook.support import Cell
from tests.support.waiting import until

__all__ = ["browser"]  # a fixture


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1000, "height": 640})
    page.set_default_timeout(60_000)
    yield page
    page.close()


def taken(cell: Cell) -> int:
    return sum(one["kind"] == "more" for one in cell.asked)


def shot(page: Any, name: str) -> None:
    if folder := os.environ.get("NADI_PICTURES_OF_TESTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def test_a_slice_is_played_paused_and_scrubbed(page: Any, manager: StreamManager, scope: str) -> None:
    numbers = (json.dumps({"power": i % 7, "room": "kitchen"}).encode() for i in range(200))
    tail = fill_stream(manager, scope, "meters", numbers, "a")
    manager.slices(scope).create("all", manager.cuts(scope, "meters").head(), tail)
    cell = Cell(page, manager, scope, named="all")
    player = page.locator(".player")
    page.wait_for_selector(".view[data-events]")
    canvas = page.get_by_label("Line chart of power")  # a number of JSON is drawn by itself
    canvas.wait_for()
    assert page.get_by_label("Range to play").input_value() == "slice:all"
    shot(page, "chart")
    page.locator(".player[data-mode=paused]").wait_for()  # the end
    cell.until_idle()
    asked = next(one for one in cell.asked if one["kind"] == "play")
    assert (asked["slice"], asked["speed"]) == ("all", "1")
    page.get_by_role("button", name="JSON").click()
    page.locator("canvas.over").click(position={"x": 500, "y": 70})
    page.locator("pre", has_text="kitchen").wait_for()
    page.get_by_role("button", name="Next event (.)").click()
    page.get_by_label("Speed").first.select_option("0.1")
    page.get_by_label("Play (Space)").click()
    page.locator(".player[data-mode=playing]").wait_for()
    page.keyboard.press(".")  # a step pauses
    assert player.get_attribute("data-mode") == "paused"
    assert cell.troubles == []


def test_live_events_are_shown_until_the_cell_ends(page: Any, manager: StreamManager, scope: str) -> None:
    with writing(manager, scope, "meters", lambda number: png(number % 256)):
        cell = Cell(page, manager, scope)
        page.locator("canvas[data-frames]").wait_for()  # pictures are shown by themselves
        page.wait_for_function(
            "() => Number(document.querySelector('#cell > div').shadowRoot.querySelector('canvas[data-frames]')"
            ".dataset.frames) > 20"
        )
        assert page.locator(".player").get_attribute("data-mode") == "live"
        page.evaluate("document.body.dataset.jpThemeLight = 'false'")
        page.wait_for_function("() => document.querySelector('#cell > div').dataset.theme === 'dark'")
        shot(page, "picture-dark")
        until(lambda: page.wait_for_timeout(20) or taken(cell) > 10)  # each batch is acknowledged
        style = page.evaluate("getComputedStyle(document.querySelector('#other td')).padding")
        assert style == "1px"  # the notebook's own, not the player's
        page.evaluate("window.end()")
        cell.until_idle()
        assert page.evaluate("window.listening()") == 0
        assert cell.troubles == []


def test_player_waits_for_a_silent_kernel(page: Any, manager: StreamManager, scope: str) -> None:
    fill_stream(manager, scope, "meters", [b"x"] * 5)
    cell = Cell(page, manager, scope)
    page.locator(".player[data-mode=live]").wait_for()
    cell.projector.receive = lambda message: None  # type: ignore[method-assign]
    page.get_by_text("Waiting for the kernel…").wait_for()
    del cell.projector.receive
    page.get_by_text("Waiting for the kernel…").wait_for(state="detached")
    assert cell.troubles == []
