"""A camera's pictures, thirty per second, are replayed as a video at speeds 1 and 8, on the page and in a notebook."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from examples.camera.recorder import record
from examples.camera.scene import car
from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer
from tests.browser.support import Figures, pace, until
from tests.notebook.support import Cell
from tests.support.waiting import until as waited_until

pytest.importorskip("PIL", reason="no Pillow: pip install 'nadi[camera]'")
FPS, PICTURES = 30, 720
SHOWN = "Number(document.querySelector('canvas.fill')?.dataset.frames)"
CELL = "document.querySelector('#cell > div').shadowRoot"


@pytest.fixture(scope="module")
def road(manager: StreamManager) -> str:
    """A scope with 24 seconds of camera pictures: a bookmark and a slice per car, and a slice of everything."""
    manager.create_scope("road")
    manager.create_stream("road", "camera")
    record(manager, "road", "camera", range(PICTURES), FPS)
    cuts = manager.cuts("road", "camera")
    manager.slices("road").create("all", cuts.head(), cuts.tail())
    return "road"


def opened(page: Any, server: EmbeddedServer, name: str) -> None:
    page.goto(f"{server.rest_uri}/#/play/road/camera?slice={name}")
    until(page, f"{SHOWN} > 1")


@pytest.mark.slow  # a browser can't keep the pace while other tests run
@pytest.mark.parametrize("speed", [1, 8])
@pytest.mark.usefixtures("road")
def test_camera_replay_keeps_the_pace(
    own_page: Any, server: EmbeddedServer, speed: int, record_property: Figures
) -> None:
    page = own_page
    opened(page, server, "all")
    page.get_by_label("Speed").select_option(str(speed))
    until(page, f"{SHOWN} > 10")
    seen = pace(page, FPS, for_s=4)
    record_property(f"page x{speed}", str(seen))
    assert seen.is_at(speed)
    assert seen.frames_per_s < 61


@pytest.mark.slow
@pytest.mark.usefixtures("road")
def test_camera_replay_in_a_notebook(page: Any, manager: StreamManager) -> None:
    cell = Cell(page, manager, "road", "camera", named="all")
    until(page, f"Number({CELL}.querySelector('canvas.fill')?.dataset.frames) > 10")
    page.get_by_label("Range to play").select_option("bookmark:car-2-comes")
    page.locator(".player[data-mode=playing]").wait_for()
    assert {message.get("slice", "") for message in cell.asked if message["kind"] == "play"} == {"all", ""}
    assert cell.troubles == []


@pytest.mark.slow  # as above
@pytest.mark.usefixtures("road")
def test_camera_replay_in_a_notebook_keeps_the_pace(
    own_page: Any, manager: StreamManager, record_property: Figures
) -> None:
    page = own_page
    cell = Cell(page, manager, "road", "camera", named="all")
    page.locator("canvas[data-frames]").wait_for()
    for speed in (1, 8):
        page.get_by_label("Speed").first.select_option(str(speed))
        before = page.evaluate(f"Number({CELL}.querySelector('canvas.fill').dataset.frames)")
        until(page, f"Number({CELL}.querySelector('canvas.fill').dataset.frames) > {before + 4}")
        seen = pace(page, FPS, root=CELL, for_s=4)
        record_property(f"notebook x{speed}", str(seen))
        assert seen.is_at(speed)
    assert cell.troubles == []


@pytest.mark.usefixtures("road")
def test_replay_of_a_slice_shows_exactly_its_pictures(page: Any, server: EmbeddedServer) -> None:
    first_car = car(1, FPS)

    def are_all_shown() -> bool:
        page.reload()
        page.get_by_text("End.", exact=True).wait_for()
        return bool(page.locator(".view").get_attribute("data-events") == str(first_car.end - first_car.first))

    opened(page, server, "car-1")
    waited_until(are_all_shown)  # repeated in case the machine stalls and pictures are skipped
    until(page, f"{SHOWN} > 1")
    label = page.locator("canvas.fill").get_attribute("aria-label")
    assert label.endswith("640 by 360")


def test_replay_starts_at_a_bookmark(page: Any, server: EmbeddedServer, manager: StreamManager, road: str) -> None:
    made_s = manager.bookmarks(road).get("car-2-comes").created_at.timestamp()

    def is_near_the_bookmark() -> bool:
        shown = page.locator(".clock").inner_text()[:19]
        return abs(datetime.fromisoformat(shown).timestamp() - made_s) < 2.5

    opened(page, server, "car-1")
    page.get_by_label("Speed").select_option("0.1")  # too slow to reach the bookmark from elsewhere
    assert not is_near_the_bookmark()
    page.get_by_label("Range to play").select_option("bookmark:car-2-comes")
    until(page, "document.querySelector('.player').dataset.mode === 'playing'")
    waited_until(is_near_the_bookmark)
