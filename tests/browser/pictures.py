"""Take the pictures of docs/page.md anew: `python -m tests.browser.pictures [NAME…]`, into docs/images.

The examples run meanwhile: the smart-meter demo, with its server and Spark, and the camera. It takes a few minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.browser.conftest import chromium
from tests.browser.support import until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
NAMES = ("page-streams", "page-stream", "page-chart", "page-camera")
MOST_BYTES = 200_000


@contextmanager
def example(module: str, *options: str) -> Iterator[str]:
    """A running example; gives the address of its page."""
    command = [sys.executable, "-u", "-m", f"examples.{module}", "--page", "0", *options]
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
    )
    try:
        assert running.stdout is not None
        for line in running.stdout:
            if found := re.search(r"the live page is at (\S+)", line):
                yield found[1]
                break
        else:
            raise AssertionError(f"{module} ended with {running.wait()}")
    finally:
        running.terminate()
        running.communicate(timeout=60)


def opened(browser: Any, url: str, theme: str) -> Any:
    page = browser.new_context(viewport=SIZE, color_scheme=theme, locale="en-GB", timezone_id="Europe/Paris").new_page()
    page.goto(url)
    page.locator(".health", has_text="healthy").wait_for()
    return page


def shot(page: Any, name: str) -> None:
    page.mouse.move(5, 795)
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    assert path.stat().st_size < MOST_BYTES, f"{path} has {path.stat().st_size:,} bytes"
    print(path.relative_to(ROOT), f"{path.stat().st_size:,} bytes", flush=True)


def smart_meters(browser: Any, names: set[str]) -> None:
    """While the demo's live week is played, and Spark finds slices in it."""
    with example("smart_meters", "--chart", str(Path(tempfile.mkdtemp()) / "weeks.png")) as at:
        streams = opened(browser, at, "light")
        stream = opened(browser, f"{at}/#/stream/home/meters", "light")
        dark = opened(browser, f"{at}/#/stream/home/meters", "dark")
        chart = opened(browser, f"{at}/#/play/home/meters", "light")
        loads = f"{at}/v1/scopes/home/streams/slices/load"
        waited(streams, lambda: any(one["events_per_s"][1] > 0 for one in httpx.get(loads).json()))
        stream.get_by_role("button", name="1 min").click()
        dark.get_by_role("button", name="1 min").click()
        chart.get_by_label("Field").select_option("wh")
        streams.wait_for_timeout(6_000)
        for page, name in (
            (streams, "page-streams"),
            (stream, "page-stream"),
            (dark, "page-stream-dark"),
            (chart, "page-chart"),
        ):
            if not names or name in names:
                shot(page, name)


def waited(page: Any, condition: Callable[[], bool], limit_s: int = 300) -> None:
    for _ in range(2 * limit_s):
        if condition():
            return
        page.wait_for_timeout(500)
    raise AssertionError(f"not within {limit_s} s")


def camera(browser: Any, names: set[str]) -> None:
    """The slice of a car, paused in its middle."""
    with example("camera", "--stay", "--seconds", "18") as at:
        loads = f"{at}/v1/data/camera/slices"
        page = opened(browser, at, "dark")
        waited(page, lambda: httpx.get(loads).status_code == 200 and len(httpx.get(loads).json()) > 2)
        page.goto(f"{at}/#/play/camera/camera?slice=car-2")
        until(page, "Number(document.querySelector('canvas.fill')?.dataset.frames) > 20")
        page.keyboard.press(" ")
        page.wait_for_timeout(1_000)
        shot(page, "page-camera")


def main(names: set[str]) -> None:
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        if not names or "page-camera" in names:
            camera(browser, names)
        if not names or names - {"page-camera"}:
            smart_meters(browser, names)
        browser.close()


if __name__ == "__main__":
    main(set(sys.argv[1:]))
