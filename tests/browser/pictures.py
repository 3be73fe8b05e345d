"""Takes the pictures of docs/web-page.md into docs/images: `python -m tests.browser.pictures [EXAMPLE...]`, where
EXAMPLE is `camera`, `plays`, `event_time` or `smart_meters`.

It runs the examples, including the demo with Spark, and takes a few minutes. Check each picture afterwards.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

import nadi
from nadi.client import StreamManager
from tests.browser.conftest import chromium
from tests.browser.support import until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
MOST_BYTES = 200_000
LIMIT_S = 300


@contextmanager
def example(module: str, *options: str, ends: bool) -> Iterator[str]:
    """Run an example; yield the address of its page. ends: whether it ends by itself."""
    command = [sys.executable, "-u", "-m", f"examples.{module}", "--page", "0", *options]
    environment = {**os.environ, "COLUMNS": "200"}
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert running.stdout is not None
        matches = (re.search(r"the live page is at (\S+)", line) for line in running.stdout)
        address = next(filter(None, matches), None)
        assert address is not None, f"{module} ended with {running.wait()}"
        yield address[1]
        if ends:
            print(running.communicate(timeout=LIMIT_S)[0].splitlines()[-1])
    finally:
        running.terminate()
        running.communicate(timeout=60)


def opened(browser: Any, url: str, theme: str, height: int = 800) -> Any:
    context = browser.new_context(
        viewport={"width": 1280, "height": height}, color_scheme=theme, locale="en-GB", timezone_id="UTC"
    )
    page = context.new_page()
    page.goto(url)
    page.locator(".health", has_text="healthy").wait_for()
    return page


def shot(page: Any, name: str) -> None:
    page.mouse.move(5, page.viewport_size["height"] - 5)
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    assert path.stat().st_size < MOST_BYTES, f"{path} has {path.stat().st_size:,} bytes"
    print(path.relative_to(ROOT), f"{path.stat().st_size:,} bytes", flush=True)


def waited(page: Any, condition: Callable[[], bool]) -> None:
    for _ in range(4 * LIMIT_S):
        if condition():
            return
        page.wait_for_timeout(250)
    raise AssertionError(f"not within {LIMIT_S} s")


def smart_meters(browser: Any) -> None:
    """Pictures of the demo's live week, while Spark searches it for slices and a segment is split."""
    chart_of_demo = Path(tempfile.mkdtemp()) / "weeks.png"
    with example("smart_meters", "--chart", str(chart_of_demo), ends=True) as at:
        meters = f"{at}/v1/scopes/home/streams/meters"

        def rate() -> float:
            return float(sum(load["events_per_s"][1] for load in httpx.get(f"{meters}/load").json()))

        streams = opened(browser, at, "light", height=420)
        stream = opened(browser, f"{at}/#/stream/home/meters", "light")
        dark = opened(browser, f"{at}/#/stream/home/meters", "dark")
        chart = opened(browser, f"{at}/#/play/home/meters", "light")
        waited(streams, lambda: rate() > 500)  # the history
        waited(streams, lambda: rate() < 300)
        waited(streams, lambda: rate() > 500)  # the live week
        split = {"segments": [0], "ranges": [[0, 0.25], [0.25, 0.5]]}
        httpx.post(f"{meters}/scale", json=split, timeout=30).raise_for_status()
        chart.get_by_label("Field").select_option("wh")
        streams.wait_for_timeout(8_000)
        for page, name in ((streams, "streams"), (stream, "stream"), (dark, "stream-dark"), (chart, "chart")):
            shot(page, f"page-{name}")


def camera(browser: Any) -> None:
    """A picture of a car's slice, paused in its middle."""
    with example("camera", "--stay", "--seconds", "18", ends=False) as at:
        page = opened(browser, at, "dark")
        waited(page, lambda: len(httpx.get(f"{at}/v1/data/camera/slices").json()) > 2)
        page.goto(f"{at}/#/play/camera/camera?slice=car-2")
        until(page, "Number(document.querySelector('canvas.fill')?.dataset.frames) > 20")
        page.keyboard.press(" ")
        page.wait_for_timeout(1_000)
        shot(page, "page-camera")


def event_time(browser: Any) -> None:
    """A picture of a year of meter readings: some meters are new in May, some are silent in August."""
    start, events, keys = datetime(2025, 1, 1, tzinfo=UTC), list[bytes](), list[str]()
    for hour, meter in itertools.product(range(365 * 24), range(24)):
        if (meter % 6 == 0 and hour < 24 * 120) or (meter % 4 == 1 and 24 * 220 < hour < 24 * 231):
            continue
        at = start + timedelta(hours=hour)
        morning, evening = (math.exp(-(((at.hour - peak) / 2) ** 2)) for peak in (7, 19))
        kwh = round(
            (meter % 3 + 1) * (0.1 + 0.05 * math.cos(hour / 24 / 365 * 2 * math.pi) + 0.2 * morning + 0.3 * evening), 3
        )
        events.append(json.dumps({"read_at": at.isoformat(), "meter": f"meter {meter % 3 + 1}", "kwh": kwh}).encode())
        keys.append(f"meter {meter}")
    with nadi.embedded(tempfile.mkdtemp(), rest_port=0) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("grid")
        manager.create_stream("grid", "meters", segments=4, event_time="read_at")
        with manager.create_writer("grid", "meters") as writer:
            writer.write_batch(events, keys)
        cuts, autumn = manager.cuts("grid", "meters"), datetime(2025, 11, 3, tzinfo=UTC)
        manager.bookmarks("grid").create("heating", cuts.at_event_time(autumn - timedelta(days=33)))
        manager.slices("grid").create("week-45", *cuts.between(autumn, autumn + timedelta(days=7)))
        page = opened(browser, f"{server.rest_uri}/#/play/grid/meters", "light", height=680)
        page.locator(".player[data-mode='playing']").wait_for()
        page.get_by_label("Speed").select_option("86400")
        page.get_by_label("Go to a date").fill("2025-06-10T00:00")
        page.wait_for_timeout(14_000)
        page.locator("h1").click()
        shot(page, "page-event-time")


def plays(browser: Any) -> None:
    """A picture of a search for a ghost, or a crown near a king."""
    with example("plays", "--stay", ends=False) as at:
        page = opened(browser, f"{at}/#/search", "light", height=720)
        waited(page, lambda: "31,354 events indexed" in page.locator("main").inner_text() or _again(page, at))
        page.get_by_label("Count by").select_option("play")
        page.get_by_role("group", name="Events by play").wait_for()
        shot(page, "page-search")


def _again(page: Any, at: str) -> bool:
    page.goto(f"{at}/#/search")
    page.goto(f"{at}/#/search/plays/speeches?query=ghost+OR+%22crown+king%22~8&order=best")
    page.wait_for_timeout(2_000)
    return False


def main(names: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for take in (camera, plays, event_time, smart_meters):
            if not names or take.__name__ in names:
                take(browser)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
