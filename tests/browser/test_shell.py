"""The frame around every view: lost servers, sign-in, themes, keyboard shortcuts, and small screens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer
from nadi.testing import fill_stream
from tests.access.support import PASSWORD, guarded
from tests.browser.support import writing
from tests.support.ports import free_port

VIEWS = ("", "#/search/{scope}/meters", "#/stream/{scope}/meters", "#/play/{scope}/meters")


def test_page_reports_a_lost_server_and_recovers(page: Any, tmp_path: Path) -> None:
    port = free_port()
    with nadi.embedded(tmp_path, rest_port=port) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        manager.create_stream("sc", "meters", 2)
        page.goto(f"http://127.0.0.1:{port}/#/stream/sc/meters")
        page.get_by_text("No new events").wait_for()
        server.kill()
        page.locator("#banner").get_by_text("hasn't responded since").wait_for()
        page.locator(".health", has_text="no response").wait_for()
    with nadi.embedded(tmp_path, rest_port=port) as server, StreamManager(server.controller_uri) as manager:
        page.locator("#banner").wait_for(state="hidden")
        page.locator(".health", has_text="healthy").wait_for()
        with writing(manager, "sc", "meters", lambda _: b"it is back"):  # until the tail is connected
            page.get_by_role("log").get_by_text("it is back").first.wait_for()


def test_replay_resumes_when_the_server_returns(page: Any, tmp_path: Path) -> None:
    port = free_port()
    with nadi.embedded(tmp_path, rest_port=port) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        manager.create_stream("sc", "meters")
        with writing(manager, "sc", "meters", lambda i: bytes(2_000) + b"%d" % i):
            page.wait_for_timeout(4_000)
        page.goto(f"http://127.0.0.1:{port}/#/play/sc/meters?from=1")
        page.get_by_label("Speed").select_option("0.1")
        page.locator(".player[data-mode=playing]").wait_for()
        server.kill()
        page.get_by_text("Waiting for the server…").wait_for()
    with nadi.embedded(tmp_path, rest_port=port):
        page.get_by_text("Waiting for the server…").wait_for(state="detached")
        assert page.locator(".player").get_attribute("data-mode") == "playing"


def test_sign_in_uses_no_cookies_or_storage(page: Any, tmp_path: Path) -> None:
    with guarded(tmp_path, rest_port=0) as server:
        page.goto(server.rest_uri)
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("User").fill("root")
        dialog.get_by_label("Password").fill("guessed")
        dialog.get_by_role("button", name="Sign in").click()
        dialog.get_by_role("alert").wait_for()
        dialog.get_by_label("Password").fill(PASSWORD)
        dialog.get_by_role("button", name="Sign in").click()
        page.get_by_text("No streams yet").wait_for()
        assert page.context.cookies() == []
        assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]
        page.reload()
        dialog.get_by_label("User").wait_for()  # the credentials were forgotten


@pytest.mark.parametrize("system", ["dark", "light"])
def test_theme_follows_system_and_switch(browser: Any, server: EmbeddedServer, system: str) -> None:
    other = {"dark": "light", "light": "dark"}[system]
    with browser.new_context(color_scheme=system) as context:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(server.rest_uri)
        page.locator(".health").wait_for()
        theme = "document.documentElement.dataset.theme"
        assert page.evaluate(theme) == system
        page.keyboard.press("t")
        assert page.evaluate(theme) == other
        page.reload()
        page.locator(".health").wait_for()
        assert page.evaluate(theme) == other


def test_keyboard_shortcuts_are_listed(page: Any, server: EmbeddedServer) -> None:
    page.goto(server.rest_uri)
    page.locator(".health").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keyboard shortcuts").get_by_text("play or pause").wait_for()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0


@pytest.mark.parametrize("view", VIEWS)
def test_view_fits_a_phone_and_controls_have_names(
    browser: Any, server: EmbeddedServer, manager: StreamManager, scope_of_all: str, view: str
) -> None:
    with browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True) as context:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(f"{server.rest_uri}/{view.format(scope=scope_of_all)}")
        page.locator("main > div").wait_for()
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("document.getElementById('main').scrollWidth") <= 360
        nameless = page.evaluate(
            """[...document.querySelectorAll("button, a, input, select, canvas:not([aria-hidden])")]
                .filter((one) => !(one.textContent.trim() || one.getAttribute("aria-label") || one.labels?.length))
                .map((one) => one.outerHTML)"""
        )
        assert nameless == []


@pytest.fixture(scope="module")
def scope_of_all(manager: StreamManager) -> str:
    manager.create_scope("phone")
    fill_stream(manager, "phone", "meters", [b'{"wh": 1}'] * 10, segments=2)
    return "phone"
