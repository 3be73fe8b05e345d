"""Search on the page: queries with words, bounds, keys and clicks, over unusual texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.client import StreamManager
from nadi.search import backfill_parts, indexes, standing_queries
from nadi.standalone.embedded import EmbeddedServer
from tests.access.support import PASSWORD, guarded, user
from tests.browser.support import until

pytest.importorskip("tantivy", reason="search needs tantivy")

EVIL = '<img src=x onerror="window.hacked=1"> needle <script>window.hacked=1</script>'
HUGE = json.dumps({"message": "huge " + "x " * 100_000}).encode()
LEVELS = ("info", "warning", 'od"d\\')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server whose scope `home` has `logs` with an index and standing queries, and `plain` without an index."""
    folder = tmp_path_factory.mktemp("search")
    environment = {"NADI_REST_SEARCH": str(folder / "shards"), "NADI_SEARCH_CACHE": str(folder / "cache")}
    with (
        nadi.embedded(folder / "data", rest_port=0, environment=environment) as server,
        StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        for stream in ("logs", "plain", "hits", "elsewhere", "codes"):
            manager.create_stream("home", stream)
        catalog = indexes(manager, "home")
        catalog.create("logs", "message:text,level:keyword,ok:bool,ms:long", where=str(folder / "shards"))
        catalog.create("elsewhere", "message:text", where=str(folder / "other"))
        catalog.create("codes", "code:keyword", where=str(folder / "shards"))
        with manager.create_writer("home", "codes") as writer:
            writer.write_event(json.dumps({"code": "<b>a</b>", "more": 12.50}).encode())
        with manager.create_writer("home", "logs") as writer:
            for number in range(50):
                event = {"message": f"line {number} of 🎭🎭 words", "level": LEVELS[number % 3], "ok": number % 2 == 0}
                writer.write_event(json.dumps(event | {"ms": number}, ensure_ascii=False).encode())
            writer.write_event(json.dumps({"message": EVIL, "level": "evil"}).encode())
            writer.write_event(HUGE)
        for part in (*backfill_parts(manager, "home", "logs"), *backfill_parts(manager, "home", "codes")):
            part.index()
        queries = standing_queries(manager, "home")
        queries.create("logs", "hits", start="head")
        queries.add("logs", {"fives": "line ms:<5"})
        yield server


def opened(page: Any, server: EmbeddedServer, query: str = "", stream: str = "logs") -> None:
    page.goto(f"{server.rest_uri}/#/search/home/{stream}{query}")
    until(page, "document.querySelector('.hits')?.getAttribute('aria-busy') === 'false'")


def search(page: Any, query: str) -> str:
    """Type a query; return the summary of its hits."""
    page.get_by_role("searchbox", name="Query").fill(query)
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.hits').getAttribute('aria-busy') === 'false'")
    return str(page.locator(".panel .head .grow").first.inner_text())


def test_hits_have_marked_words_and_no_markup(page: Any, site: EmbeddedServer) -> None:
    opened(page, site)
    assert search(page, "needle") == "1 to 1 of 1 events"
    hit = page.get_by_role("list", name="Hits").get_by_role("listitem")
    assert hit.locator("mark").all_inner_texts() == ["needle"]
    assert EVIL in hit.locator("p").inner_text()
    hit.get_by_text("Full event").click()
    hit.locator("pre .key", has_text='"level"').wait_for()
    assert hit.locator("img, script").count() == 0
    assert page.evaluate("window.hacked") is None
    assert re.search(r"segment 0\.0 offset \d+", hit.inner_text())
    assert search(page, "words ms:7") == "1 to 1 of 1 events"
    assert hit.locator("mark").all_inner_texts() == ["words"]  # after characters of two UTF-16 units
    assert search(page, "nowhere") == "No matching events."


def test_search_pages_and_orders(page: Any, site: EmbeddedServer) -> None:
    opened(page, site, "?query=line&order=oldest")
    summary = page.locator(".panel .head .grow").first
    first = page.locator(".hit p").first
    summary.get_by_text("1 to 20 of 50 events").wait_for()
    assert first.inner_text().startswith("line 0 of")
    assert page.get_by_role("button", name="Previous").is_disabled()
    page.get_by_role("button", name="Next").click()
    summary.get_by_text("21 to 40 of 50 events").wait_for()
    page.get_by_role("button", name="Next").click()
    summary.get_by_text("41 to 50 of 50 events").wait_for()
    assert first.inner_text().startswith("line 40 of")
    assert page.get_by_role("button", name="Next").is_disabled()
    page.get_by_role("button", name="Previous").click()
    summary.get_by_text("21 to 40 of 50 events").wait_for()
    page.get_by_label("Order").select_option("best")
    summary.get_by_text("1 to 20 of 50 events").wait_for()
    until(page, "/order=best/.test(location.hash)")
    assert re.search(r"\d\.\d\d", page.locator(".hit .row").first.inner_text())
    page.go_back()  # the previous query is in the history
    page.get_by_text("line 0 of").first.wait_for()
    until(page, "document.querySelector('[aria-label=Order]').value === 'oldest'")


def test_query_error_is_shown_until_the_next_query(page: Any, site: EmbeddedServer) -> None:
    opened(page, site)
    page.get_by_role("searchbox", name="Query").fill("(line")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("character 1").wait_for()
    assert page.locator(".hit").first.is_hidden()
    assert search(page, "line") == "1 to 20 of 50 events"
    assert page.locator(".stream > [role=alert]").is_hidden()


def test_counts_by_time_and_value_refine_the_query(page: Any, site: EmbeddedServer) -> None:
    opened(page, site, "?query=line")
    bars = page.get_by_role("group", name="Events over time").get_by_role("button")
    bars.first.wait_for()
    counts = [int(re.match(r"\d+", bar.get_attribute("aria-label"))[0]) for bar in bars.all()]  # type: ignore[index]
    assert sum(counts) == 50
    page.get_by_label("Count by").select_option("level")
    values = page.get_by_role("group", name="Events by level").get_by_role("button")
    values.first.wait_for()
    assert sorted(value.inner_text().split("\n")[0] for value in values.all()) == sorted(LEVELS)
    values.filter(has_text="od").click()  # a value with a quote and a backslash
    page.locator(".panel .head .grow").get_by_text("1 to 16 of 16 events").wait_for()
    page.get_by_label("Count by").select_option("ok")
    page.get_by_role("group", name="Events by ok").get_by_role("button").filter(has_text="true").click()
    page.locator(".panel .head .grow").get_by_text("1 to 8 of 8 events").wait_for()
    assert page.get_by_role("searchbox", name="Query").input_value() == 'line level:"od\\"d\\\\" ok:"true"'
    opened(page, site, "?query=line")
    page.get_by_label("Count by").select_option("_arrival_time")
    bars.first.wait_for()
    bars.first.click()
    until(page, "/since=\\d+&until=\\d+/.test(location.hash)")
    assert page.get_by_label("From", exact=True).input_value() < page.get_by_label("To", exact=True).input_value()


def test_counts_by_time_use_a_round_step(page: Any, site: EmbeddedServer) -> None:
    day = 86_400_000
    first = 20_000 * day + 7_654_321
    intervals: list[str] = []

    def two_counts(route: Any) -> None:
        intervals.append(re.search(r"interval=(\d+)", route.request.url)[1])  # type: ignore[index]
        step = int(intervals[-1]) * 1000
        buckets = [(first // step * step, 3), ((first + 300 * day) // step * step, 4)]
        counts = [{"value": datetime.fromtimestamp(ms / 1000, UTC).isoformat(), "events": n} for ms, n in buckets]
        route.fulfill(json=counts)

    span = {"head": {"cut": "", "time": first}, "tail": {"cut": "", "time": first + 330 * day}, "isSealed": False}
    page.route("**/span", lambda route: route.fulfill(json=span))
    page.route("**/search/counts?*", two_counts)
    opened(page, site)
    bars = page.get_by_role("group", name="Events over time")
    bars.wait_for()
    assert intervals == ["604800"]  # a week
    assert 47 <= bars.locator("> *").count() <= 49
    labels = [bar.get_attribute("aria-label") for bar in bars.get_by_role("button").all()]
    assert [label.split()[0] for label in labels] == ["3", "4"]


def test_search_with_bounds_and_routing_key(page: Any, site: EmbeddedServer) -> None:
    opened(page, site, "?query=line&until=1000")
    page.get_by_text("No matching events.").wait_for()
    assert page.get_by_label("To", exact=True).input_value().startswith("1970-01-01")
    page.get_by_label("To", exact=True).fill("")
    page.get_by_label("Routing key").fill("a key")
    page.keyboard.press("Enter")
    page.get_by_text("1 to 20 of 50 events").wait_for()  # all are in one segment
    until(page, "/key=a\\+key/.test(location.hash) && !/until/.test(location.hash)")
    opened(page, site, "?query=line&since=4102444800000")  # of the next century
    page.get_by_text("No matching events.").wait_for()
    opened(page, site, "?query=line&since=999999999999999&until=x")  # malformed
    page.get_by_role("alert").wait_for()


def test_index_state_and_standing_queries_are_shown(page: Any, site: EmbeddedServer) -> None:
    opened(page, site)
    page.get_by_text("up to date").first.wait_for()
    page.get_by_text("52 events indexed").wait_for()
    page.get_by_role("button", name="level", exact=True).click()
    assert page.get_by_role("searchbox", name="Query").input_value() == "level:"
    table = page.get_by_role("table", name="Standing queries")
    table.get_by_text("line ms:<5").wait_for()
    page.get_by_text("0 hits of 0 events").wait_for()
    page.get_by_text("no matcher is running").wait_for()
    table.get_by_role("button", name="Search with fives").click()
    page.get_by_text("1 to 5 of 5 events").wait_for()


def test_event_without_text_field_is_shown_completely(page: Any, site: EmbeddedServer) -> None:
    opened(page, site, stream="codes")
    assert search(page, '"<b>a</b>"') == "1 to 1 of 1 events"
    hit = page.get_by_role("list", name="Hits").get_by_role("listitem")
    assert hit.locator(".lit").inner_text() == "12.5"
    assert '"<b>a</b>"' in hit.inner_text()
    assert hit.locator("b, mark, details").count() == 0


def test_huge_event_is_truncated_with_a_note(page: Any, site: EmbeddedServer) -> None:
    opened(page, site)
    assert search(page, "huge") == "1 to 1 of 1 events"
    page.get_by_text("Full event").click()
    page.get_by_text(f"{len(HUGE):,} bytes in total").wait_for()


def test_scope_and_stream_of_a_search_are_selectable(page: Any, site: EmbeddedServer) -> None:
    page.goto(site.rest_uri)
    page.get_by_role("link", name="Search events").click()
    page.get_by_role("link", name="home", exact=True).click()
    page.get_by_role("link", name="logs", exact=True).wait_for()
    assert page.get_by_role("link", name="plain", exact=True).count() == 0
    page.get_by_role("link", name="logs", exact=True).click()
    page.get_by_text("1 to 20 of 52 events").wait_for()
    page.get_by_label("Stream", exact=True).select_option("elsewhere")
    page.get_by_role("alert").get_by_text("NADI_REST_SEARCH").wait_for()
    page.goto(f"{site.rest_uri}/#/stream/home/plain")
    page.get_by_role("link", name="Search", exact=True).click()
    page.get_by_role("alert").get_by_text("nadi search create").wait_for()
    page.goto(f"{site.rest_uri}/#/search/none")
    page.get_by_role("alert").get_by_text("'none'").wait_for()


def test_search_uses_the_signed_in_users_permissions(page: Any, tmp_path: Path) -> None:
    with guarded(tmp_path, rest_port=0) as server:
        with nadi.StreamManager(server.controller_uri, credentials=user("root")) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "logs")
            indexes(manager, "home").create("logs", "message:text", where=str(tmp_path / "shards"))
        page.goto(f"{server.rest_uri}/#/search/home/logs")
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("User").fill("stranger")
        dialog.get_by_label("Password").fill(PASSWORD)
        dialog.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").get_by_text("READ").first.wait_for()
        assert page.get_by_text("events indexed").count() == 0
