"""The page's endpoints: rates, segments, transactions, cuts, bookmarks, slices, groups, and changes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from nadi.client import StreamManager
from nadi.testing import fill_stream
from tests.web.support import error_of


def eventually(read: Any, condition: Any, limit_s: float = 60.0) -> Any:
    """Call `read` until its result fulfils the condition, and return that."""
    deadline = time.monotonic() + limit_s
    while not condition(result := read()):
        assert time.monotonic() < deadline, result
        time.sleep(0.05)
    return result


def test_rates_of_all_streams_and_of_one_scope(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    manager.create_stream(scope, "quiet")
    manager.seal_stream(scope, "quiet")
    writer = manager.create_writer(scope, "meters")

    def write_and_read() -> dict[str, Any]:
        writer.write_event(b"x" * 92)
        writer.flush()
        rates = rest.get(f"/v1/scopes/{scope}/rates").json()
        assert [rate["streamName"] for rate in rates] == ["meters", "quiet"]
        assert (rates[1]["isSealed"], rates[1]["eventsPerSecond"]) == (True, 0.0)
        return dict(rates[0])

    rate = eventually(write_and_read, lambda rate: rate["bytesPerSecond"] > 0)
    assert (rate["scopeName"], rate["segments"], rate["isSealed"]) == (scope, 2, False)
    assert rate["bytesPerSecond"] == pytest.approx(100 * rate["eventsPerSecond"])
    rates = rest.get("/v1/rates").json()
    assert {rate["streamName"] for rate in rates if rate["scopeName"] == scope} == {"meters", "quiet"}
    assert not [rate for rate in rates if rate["streamName"].startswith("_")]
    assert "nosuch" in error_of(rest.get("/v1/scopes/nosuch/rates"), 404)


def test_scale_replaces_segments(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/scopes/{scope}/streams/meters"
    before = rest.get(f"{path}/segments").json()
    assert [(segment["low"], segment["high"], segment["replaced_ms"]) for segment in before] == [
        (0.0, 0.5, None),
        (0.5, 1.0, None),
    ]
    accepted = rest.post(f"{path}/scale", json={"segments": [0], "ranges": [[0.0, 0.2], [0.2, 0.5]]})
    assert (accepted.status_code, accepted.json()) == (202, {"epoch": 0})
    after = eventually(
        lambda: rest.get(f"{path}/segments").json(), lambda segments: segments[0]["replaced_ms"] is not None
    )
    assert [(segment["low"], segment["high"]) for segment in after[2:]] == [(0.0, 0.2), (0.2, 0.5)]
    assert after[2]["created_ms"] == after[0]["replaced_ms"]
    replaced = {"segments": [0], "ranges": [[0.0, 0.5]]}
    error_of(rest.post(f"{path}/scale", json=replaced), 409)
    wrong = {"segments": [1], "ranges": [[0.5, 0.7]]}
    eventually(
        lambda: rest.post(f"{path}/scale", json=wrong).status_code, lambda code: code != 409
    )  # until scaling is complete
    error_of(rest.post(f"{path}/scale", json=wrong), 400)
    error_of(rest.post(f"{path}/scale", json={"segments": [1], "ranges": [[0.5]]}), 400)
    error_of(rest.get(f"/v1/scopes/{scope}/streams/none/segments"), 404)


def test_transactions_lists_open_and_ended_ones(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/scopes/{scope}/streams/meters/transactions"
    assert rest.get(path).json() == []
    writer = manager.create_transaction_writer(scope, "meters", lease_ms=20_000)
    open_txn, ended = writer.begin_txn(), writer.begin_txn()
    ended.write_event(b"x")
    ended.commit()
    listed = eventually(lambda: rest.get(path).json(), lambda listed: listed[-1]["state"] == "COMMITTED")
    assert [txn["state"] for txn in listed] == ["OPEN", "COMMITTED"]
    assert listed[0]["leaseMs"] == 20_000
    assert abs(listed[0]["created"] - time.time() * 1000) < 60_000
    assert listed[0]["id"] != listed[1]["id"]
    open_txn.abort()
    eventually(
        lambda: rest.get(path).json(), lambda listed: {txn["state"] for txn in listed} == {"COMMITTED", "ABORTED"}
    )


def test_bookmark_create_list_rename_delete(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/bookmarks"
    assert rest.get(path).json() == []
    tail = fill_stream(manager, scope, "meters", [b"x"] * 10)
    response = rest.post(
        path, json={"name": "here", "streamName": "meters", "at": "tail", "note": "<i>", "tags": ["a"]}
    )
    assert response.status_code == 201
    bookmark = response.json()
    assert (bookmark["name"], bookmark["streamName"]) == ("here", "meters")
    assert (bookmark["note"], bookmark["tags"]) == ("<i>", ["a"])
    assert bookmark["cut"] == tail.as_text() == manager.bookmarks(scope).get("here").cut.as_text()
    assert abs(bookmark["time"] - time.time() * 1000) < 60_000
    again = {"name": "here", "streamName": "meters", "at": "head"}
    assert "here" in error_of(rest.post(path, json=again), 409)
    assert rest.put(f"{path}/here", json={"name": "there"}).json()["name"] == "there"
    assert [bookmark["name"] for bookmark in rest.get(path, params={"stream": "meters"}).json()] == ["there"]
    assert rest.get(path, params={"stream": "other"}).json() == []
    assert rest.delete(f"{path}/there").status_code == 204
    error_of(rest.delete(f"{path}/there"), 404)
    error_of(rest.put(f"{path}/there", json={"name": "x"}), 404)
    error_of(rest.post(path, json={"name": "a b", "streamName": "meters", "at": "tail"}), 400)
    error_of(rest.post(path, json={"name": "x", "streamName": "none", "at": "tail"}), 404)
    error_of(rest.post(path, json={"name": "x", "streamName": "meters", "at": "nowhere"}), 404)
    error_of(rest.get("/v1/data/nosuch/bookmarks"), 404)


def test_slice_create_list_rename_delete(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/slices"
    tail = fill_stream(manager, scope, "meters", [b"x"] * 10)
    response = rest.post(path, json={"name": "all", "streamName": "meters", "start": "head", "end": "tail"})
    assert response.status_code == 201
    named = response.json()
    assert (named["streamName"], named["end"]["cut"]) == ("meters", tail.as_text())
    assert named["start"]["time"] <= named["end"]["time"]
    back = {"name": "back", "streamName": "meters", "start": "tail", "end": "head"}
    error_of(rest.post(path, json=back), 400)
    assert rest.put(f"{path}/all", json={"name": "whole"}).json()["name"] == "whole"
    assert [named["name"] for named in rest.get(path).json()] == ["whole"]
    assert rest.delete(f"{path}/whole").status_code == 204
    error_of(rest.delete(f"{path}/whole"), 404)


def test_cut_and_span_have_times(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/streams/meters"
    empty = rest.get(f"{path}/span").json()
    assert empty["head"]["cut"] == empty["tail"]["cut"]
    assert empty["isSealed"] is False
    tail = fill_stream(manager, scope, "meters", [b"x"] * 10)
    full = rest.get(f"{path}/span").json()
    assert full["tail"]["cut"] == tail.as_text()
    assert abs(full["tail"]["time"] - time.time() * 1000) < 60_000
    later = datetime.now(UTC) + timedelta(hours=1)
    for place in ("tail", later.isoformat(), full["tail"]["cut"]):
        assert rest.get(f"{path}/cut", params={"at": place}).json()["cut"] == tail.as_text(), place
    error_of(rest.get(f"{path}/cut"), 400)
    error_of(rest.get(f"{path}/cut", params={"at": "2026-11-14T00:00"}), 400)
    error_of(rest.get(f"/v1/data/{scope}/streams/none/span"), 404)


def test_truncation_deletes_earlier_events(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    cut = fill_stream(manager, scope, "meters", [b"old"] * 10)
    fill_stream(manager, scope, "meters", [b"new"] * 4)
    path = f"/v1/data/{scope}/streams/meters/truncation"
    assert rest.post(path, json={"at": cut.as_text()}).json()["cut"] == cut.as_text()
    tail = manager.cuts(scope, "meters").tail()
    assert [event.data for event in manager.read_events(scope, "meters", end=tail)] == [b"new"] * 4
    error_of(rest.post(path, json={"at": "nowhere"}), 404)
    error_of(rest.post(path, json={}), 400)


def test_groups_have_position_and_lag(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/streams/meters/groups"
    assert rest.get(path).json() == []
    fill_stream(manager, scope, "meters", [b"x"] * 10)
    manager.reader_group_manager(scope).create_reader_group("billing", ["meters"])
    (group,) = rest.get(path).json()
    assert (group["readerGroupName"], group["scopeName"], group["readers"]) == ("billing", scope, 0)
    assert group["lagBytes"] == 90
    assert group["position"]["cut"] == manager.cuts(scope, "meters").head().as_text()
