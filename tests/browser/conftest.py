"""A headless browser and a real server. Without Chromium these tests are skipped."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import nadi
from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Return the path of Chromium, if installed."""
    return os.environ.get("NADI_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The browser of a module. Its driver keeps an event loop running in this thread, which other modules may not
    want."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'nadi[dev]'")
    path = chromium()
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium, or set NADI_CHROMIUM")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()  # the first page is slow
        page.set_content("<p>nadi</p>")
        page.screenshot()
        page.close()
        yield browser
        browser.close()


# Draws 20 times a second: at 60, each page takes a whole processor
SELDOM = """const later = window.setTimeout;
window.requestAnimationFrame = (draw) => later(() => draw(performance.now()), 50);
window.cancelAnimationFrame = window.clearTimeout;"""


@contextmanager
def checked_page(browser: Any, *, seldom: bool = True, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """A page, and a list of errors of its scripts and violations of its security policy."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    if seldom:
        context.add_init_script(SELDOM)
    page = context.new_page()
    page.set_default_timeout(60_000)  # other tests run at the same time
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda entry: errors.append(entry.text) if "Content Security Policy" in entry.text else None)
    yield page, errors
    context.close()


@pytest.fixture(scope="module")
def context_options() -> dict[str, Any]:
    return {}


@pytest.fixture(scope="module")
def shared_page(browser: Any, context_options: dict[str, Any]) -> Iterator[tuple[Any, list[str]]]:
    with checked_page(browser, **context_options) as page:
        yield page


@pytest.fixture
def page(shared_page: tuple[Any, list[str]]) -> Iterator[Any]:
    """The module's page, empty: a second page starts more slowly. Errors of scripts and violations of its security
    policy fail the test."""
    page, errors = shared_page
    errors.clear()
    yield page
    page.unroute_all()
    if page.url.startswith("http"):
        page.evaluate("localStorage.clear()")
    page.goto("about:blank")
    assert not errors


@pytest.fixture
def own_page(browser: Any) -> Iterator[Any]:
    """A page for scripts or a clock of the test, or its own pace."""
    with checked_page(browser, seldom=False) as (page, errors):
        yield page
    assert not errors


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
    """A scope per test, with a stream of two segments."""
    name = re.sub("[^a-z0-9]", "-", request.node.name)[:90]
    assert manager.create_scope(name)
    manager.create_stream(name, "meters", 2)
    return str(name)
