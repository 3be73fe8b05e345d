"""A stream with ten thousand segments is shown at once and stays responsive."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from nadi.client import StreamManager
from nadi.standalone.embedded import EmbeddedServer
from nadi.testing import fill_stream
from tests.browser.support import SLACK, Figures, until

COUNT = 10_000
FIRST_PAINT_MS, INTERACTION_MS = 1_000 * SLACK, 100 * SLACK
PAINTED = """
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const painted = async () => {  // drawn in the next frame, and then presented
        await frame();
        await frame();
        await new Promise((done) => setTimeout(done));
    };
"""
LABEL = "document.querySelector('.picture canvas')?.getAttribute('aria-label') ?? ''"


@pytest.fixture
def page(own_page: Any) -> Any:
    return own_page


@pytest.fixture(scope="module")
def wide(manager: StreamManager) -> str:
    """A scope with a stream of this many current segments, and a bookmark."""
    manager.create_scope("wide")
    manager.create_stream("wide", "many", COUNT)
    fill_stream(manager, "wide", "many", [b"x"] * 100)
    manager.bookmarks("wide").create("here", manager.cuts("wide", "many").tail())
    return "wide"


@pytest.mark.slow  # measures durations
def test_view_of_ten_thousand_segments_is_fast(
    page: Any, server: EmbeddedServer, wide: str, record_property: Figures
) -> None:
    page.goto(f"{server.rest_uri}/#/stream/{wide}/many")
    page.get_by_role("heading", name="many").wait_for()
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    until(page, f"({LABEL}).includes('{COUNT} segments')")
    drawn_ms = page.evaluate("performance.now()")
    page.get_by_role("table").get_by_text("here").wait_for()
    page.get_by_text("10,000 segments").first.wait_for()
    bookmarks_ms = page.evaluate("performance.now()")
    took = page.evaluate(
        f"""async () => {{
            {PAINTED}
            const over = document.querySelector("canvas.over");
            const box = over.getBoundingClientRect();
            const at = (x) => ({{ clientX: box.left + x, clientY: box.top + 120, pointerId: 1, bubbles: true }});
            const isZoom = (one) => /^(All|1 min|10 min)$/.test(one.textContent);
            const zooms = [...document.querySelectorAll("button")].filter(isZoom);
            const wheel = (deltaY) => new WheelEvent("wheel", {{ ...at(500), deltaY, cancelable: true }});
            const acts = [
                ...[300, 420, 600].map((x) => () => over.dispatchEvent(new PointerEvent("pointermove", at(x)))),
                ...[-120, 120, -300].map((deltaY) => () => over.dispatchEvent(wheel(deltaY))),
                ...zooms.map((button) => () => button.click()),
                () => document.querySelector("[aria-label='Switch theme']").click(),
            ];
            const took = [];
            for (const act of acts) {{
                await painted();
                const began = performance.now();
                act();
                await painted();
                took.push(performance.now() - began);
            }}
            return took;
        }}"""
    )
    record_property("first paint, drawn, bookmarks, ms", [round(paint_ms), round(drawn_ms), round(bookmarks_ms)])
    record_property("interactions, ms", [round(duration) for duration in took])
    assert paint_ms < FIRST_PAINT_MS
    assert statistics.median(took) < INTERACTION_MS, took


@pytest.mark.slow  # as above
def test_history_of_ten_thousand_segments_is_drawn_quickly(
    page: Any, server: EmbeddedServer, record_property: Figures
) -> None:
    page.goto(server.rest_uri)
    page.get_by_role("searchbox").wait_for()
    took = page.evaluate(
        """async () => {
            const at = document.querySelector("script[src]").src.replace("app.js", "");
            const { picture } = await import(at + "picture.js");
            const { spansOf } = await import(at + "spans.js");
            const made = picture({ height: 300, label: "many", onPick() {}, onRange() {} });
            document.getElementById("main").replaceChildren(made.node);
            const now = Date.now();
            const segments = Array.from({ length: 10000 }, (_, i) => ({
                segment_id: i, low: (i % 10) / 10, high: (i % 10 + 1) / 10,
                created_ms: now - 1e9 + Math.floor(i / 10) * 1e6,
                replaced_ms: i < 9990 ? now - 1e9 + (Math.floor(i / 10) + 1) * 1e6 : null, start_offset: 0,
                end_offset: (i * 7919) % 1e6,
            }));
            const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
            await painted();
            const took = [];
            for (let i = 0; i < 9; i++) {
                const began = performance.now();
                if (i < 3) made.show({ spans: spansOf(segments, [], now) });
                else made.zoom(i % 2 ? 0.5 : 2);
                await painted();
                await painted();
                took.push(performance.now() - began);
            }
            return took.sort((a, b) => a - b);
        }"""
    )
    record_property("drawn, ms", [round(duration) for duration in took])
    assert took[len(took) // 2] < INTERACTION_MS, took
    assert "10000 segments" in page.locator(".picture canvas").first.get_attribute("aria-label")
