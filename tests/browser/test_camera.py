"""A camera's pictures, thirty a second, recorded and played as a video at its own pace and eight times as fast."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from examples.camera.recorder import record
from examples.camera.scene import car
from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer
from tests.browser.support import Figures, pace, until

pytest.importorskip("PIL", reason="no Pillow: pip install 'nadi[camera]'")
FPS, PICTURES = 30, 330
SHOWN = "Number(document.querySelector('canvas.fill')?.dataset.frames)"


@pytest.fixture(scope="module")
def road(manager: StreamManager) -> str:
    """A scope with eleven seconds of a camera: two cars, each with a bookmark and a slice, and a slice of all."""
    manager.create_scope("road")
    manager.create_stream("road", "camera")
    record(manager, "road", "camera", range(PICTURES), FPS)
    cuts = manager.cuts("road", "camera")
    manager.slices("road").create("all", cuts.head(), cuts.tail())
    return "road"


def opened(page: Any, server: EmbeddedServer, name: str) -> None:
    page.goto(f"{server.rest_uri}/#/play/road/camera?slice={name}")
    until(page, f"{SHOWN} > 1")


@pytest.mark.usefixtures("road")
def test_at_its_own_pace_it_is_a_video(page: Any, server: EmbeddedServer, record_property: Figures) -> None:
    opened(page, server, "all")
    seen = pace(page, for_s=4)
    record_property("x1", seen)
    assert abs(seen.speed - 1) < 0.1
    assert 4 < seen.frames_per_s < 33  # thirty, unless the machine is busy with other things


@pytest.mark.usefixtures("road")
def test_eight_times_as_fast_is_that(page: Any, server: EmbeddedServer, record_property: Figures) -> None:
    opened(page, server, "all")
    page.get_by_label("Speed").select_option("8")
    until(page, f"{SHOWN} > 6")
    seen = pace(page)
    record_property("x8", seen)
    assert abs(seen.speed - 8) < 0.8
    assert seen.frames_per_s > 4  # of the 240 pictures that a second has now
    page.get_by_text("The end.").wait_for()


@pytest.mark.usefixtures("road")
def test_a_slice_is_its_pictures_and_no_others(page: Any, server: EmbeddedServer) -> None:
    opened(page, server, "car-1")
    page.get_by_text("The end.").wait_for()
    one = car(1, FPS)
    assert page.locator(".view").get_attribute("data-events") == str(one.end - one.first)
    label = page.locator("canvas.fill").get_attribute("aria-label")
    assert label.endswith("640 by 360")


def test_playing_begins_at_a_bookmark(page: Any, server: EmbeddedServer, manager: StreamManager, road: str) -> None:
    opened(page, server, "car-1")
    page.keyboard.press(" ")
    page.get_by_label("What to play").select_option("bookmark:car-2-comes")
    until(page, "document.querySelector('.player').dataset.mode === 'playing'")
    page.keyboard.press(" ")
    said = page.locator(".clock").inner_text()[:19]
    made_s = manager.bookmarks(road).get("car-2-comes").made_at.timestamp()
    assert abs(datetime.fromisoformat(said).timestamp() - made_s) < 2.5
