"""A real browser without a window, and a real server for it. Without Chromium these tests are skipped, and say so."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

import nadi
from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Where there is a Chromium."""
    return os.environ.get("NADI_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """While it is there this thread has a loop that runs, so tests of other modules could have none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'nadi[dev]'")
    found = chromium()
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium, or name one in NADI_CHROMIUM")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page()  # the first one of all takes its time
        page.set_content("<p>nadi</p>")
        page.screenshot()
        page.close()
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of its own; a script's error, or something that its policy forbids, fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)  # beside other tests
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    yield page
    context.close()
    assert not wrong


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with nadi.embedded(tmp_path_factory.mktemp("data"), rest_port=0) as server:
        yield server


@pytest.fixture(scope="package")
def manager(server: EmbeddedServer) -> Iterator[StreamManager]:
    with StreamManager(server.controller_uri) as manager:
        yield manager


@pytest.fixture
def scope(manager: StreamManager, request: pytest.FixtureRequest) -> str:
    """A scope of the test's own, with a stream of two segments."""
    name = re.sub("[^a-z0-9]", "-", request.node.name)[:90]
    assert manager.create_scope(name)
    manager.create_stream(name, "meters", 2)
    return str(name)
