"""What the page asks for: rates, segments, transactions, cuts, bookmarks, slices, groups, and changes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from nadi.client import StreamManager
from nadi.testing import fill_stream
from tests.web.support import error_of


def eventually(look: Any, is_so: Any, limit_s: float = 60.0) -> Any:
    """What `look` returns once that is so."""
    ends = time.monotonic() + limit_s
    while not is_so(found := look()):
        assert time.monotonic() < ends, found
        time.sleep(0.05)
    return found


def test_rates_of_all_streams_and_of_a_scope(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    manager.create_stream(scope, "quiet")
    manager.seal_stream(scope, "quiet")
    writer = manager.create_writer(scope, "meters")

    def look() -> dict[str, Any]:
        writer.write_event(b"x" * 92)
        writer.flush()
        found = rest.get(f"/v1/scopes/{scope}/rates").json()
        assert [one["streamName"] for one in found] == ["meters", "quiet"]
        assert (found[1]["isSealed"], found[1]["eventsPerSecond"]) == (True, 0.0)
        return dict(found[0])

    found = eventually(look, lambda one: one["bytesPerSecond"] > 0)
    assert (found["scopeName"], found["segments"], found["isSealed"]) == (scope, 2, False)
    assert found["bytesPerSecond"] == pytest.approx(100 * found["eventsPerSecond"])
    every = rest.get("/v1/rates").json()
    assert {one["streamName"] for one in every if one["scopeName"] == scope} == {"meters", "quiet"}
    assert not [one for one in every if one["streamName"].startswith("_")]
    assert "nosuch" in error_of(rest.get("/v1/scopes/nosuch/rates"), 404)


def test_segments_over_time_and_scaling(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/scopes/{scope}/streams/meters"
    before = rest.get(f"{path}/segments").json()
    assert [(one["low"], one["high"], one["replaced_ms"]) for one in before] == [(0.0, 0.5, None), (0.5, 1.0, None)]
    begun = rest.post(f"{path}/scale", json={"segments": [0], "ranges": [[0.0, 0.2], [0.2, 0.5]]})
    assert (begun.status_code, begun.json()) == (202, {"epoch": 0})
    after = eventually(lambda: rest.get(f"{path}/segments").json(), lambda found: found[0]["replaced_ms"] is not None)
    assert [(one["low"], one["high"]) for one in after[2:]] == [(0.0, 0.2), (0.2, 0.5)]
    assert after[2]["created_ms"] == after[0]["replaced_ms"]
    gone = {"segments": [0], "ranges": [[0.0, 0.5]]}
    error_of(rest.post(f"{path}/scale", json=gone), 409)
    wrong = {"segments": [1], "ranges": [[0.5, 0.7]]}
    eventually(lambda: rest.post(f"{path}/scale", json=wrong).status_code, lambda code: code != 409)  # until it is done
    error_of(rest.post(f"{path}/scale", json=wrong), 400)
    error_of(rest.post(f"{path}/scale", json={"segments": [1], "ranges": [[0.5]]}), 400)
    error_of(rest.get(f"/v1/scopes/{scope}/streams/none/segments"), 404)


def test_transactions(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/scopes/{scope}/streams/meters/transactions"
    assert rest.get(path).json() == []
    writer = manager.create_transaction_writer(scope, "meters", lease_ms=20_000)
    kept, ended = writer.begin_txn(), writer.begin_txn()
    ended.write_event(b"x")
    ended.commit()
    found = eventually(lambda: rest.get(path).json(), lambda found: found[-1]["state"] == "COMMITTED")
    assert [one["state"] for one in found] == ["OPEN", "COMMITTED"]
    assert found[0]["leaseMs"] == 20_000
    assert abs(found[0]["created"] - time.time() * 1000) < 60_000
    assert found[0]["id"] != found[1]["id"]
    kept.abort()
    eventually(lambda: rest.get(path).json(), lambda found: {one["state"] for one in found} == {"COMMITTED", "ABORTED"})


def test_bookmarks_are_made_listed_renamed_and_deleted(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/bookmarks"
    assert rest.get(path).json() == []
    tail = fill_stream(manager, scope, "meters", [b"x"] * 10)
    made = rest.post(path, json={"name": "here", "streamName": "meters", "at": "tail", "note": "<i>", "tags": ["a"]})
    assert made.status_code == 201
    found = made.json()
    assert (found["name"], found["streamName"], found["note"], found["tags"]) == ("here", "meters", "<i>", ["a"])
    assert found["cut"] == tail.as_text() == manager.bookmarks(scope).get("here").cut.as_text()
    assert abs(found["time"] - time.time() * 1000) < 60_000
    again = {"name": "here", "streamName": "meters", "at": "head"}
    assert "here" in error_of(rest.post(path, json=again), 409)
    assert rest.put(f"{path}/here", json={"name": "there"}).json()["name"] == "there"
    assert [one["name"] for one in rest.get(path, params={"stream": "meters"}).json()] == ["there"]
    assert rest.get(path, params={"stream": "other"}).json() == []
    assert rest.delete(f"{path}/there").status_code == 204
    error_of(rest.delete(f"{path}/there"), 404)
    error_of(rest.put(f"{path}/there", json={"name": "x"}), 404)
    error_of(rest.post(path, json={"name": "a b", "streamName": "meters", "at": "tail"}), 400)
    error_of(rest.post(path, json={"name": "x", "streamName": "none", "at": "tail"}), 404)
    error_of(rest.post(path, json={"name": "x", "streamName": "meters", "at": "nowhere"}), 404)
    error_of(rest.get("/v1/data/nosuch/bookmarks"), 404)


def test_slices_are_made_listed_renamed_and_deleted(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/slices"
    tail = fill_stream(manager, scope, "meters", [b"x"] * 10)
    made = rest.post(path, json={"name": "all", "streamName": "meters", "start": "head", "end": "tail"})
    assert made.status_code == 201
    found = made.json()
    assert (found["streamName"], found["end"]["cut"]) == ("meters", tail.as_text())
    assert found["start"]["time"] <= found["end"]["time"]
    back = {"name": "back", "streamName": "meters", "start": "tail", "end": "head"}
    error_of(rest.post(path, json=back), 400)
    assert rest.put(f"{path}/all", json={"name": "whole"}).json()["name"] == "whole"
    assert [one["name"] for one in rest.get(path).json()] == ["whole"]
    assert rest.delete(f"{path}/whole").status_code == 204
    error_of(rest.delete(f"{path}/whole"), 404)


def test_cuts_and_the_times_at_which_they_lie(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
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


def test_a_truncation_deletes_what_lies_before(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    cut = fill_stream(manager, scope, "meters", [b"old"] * 10)
    fill_stream(manager, scope, "meters", [b"new"] * 4)
    path = f"/v1/data/{scope}/streams/meters/truncation"
    assert rest.post(path, json={"at": cut.as_text()}).json()["cut"] == cut.as_text()
    tail = manager.cuts(scope, "meters").tail()
    assert [event.data for event in manager.read_events(scope, "meters", end=tail)] == [b"new"] * 4
    error_of(rest.post(path, json={"at": "nowhere"}), 404)
    error_of(rest.post(path, json={}), 400)


def test_where_reader_groups_stand(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    path = f"/v1/data/{scope}/streams/meters/groups"
    assert rest.get(path).json() == []
    fill_stream(manager, scope, "meters", [b"x"] * 10)
    manager.reader_group_manager(scope).create_reader_group("billing", ["meters"])
    (found,) = rest.get(path).json()
    assert (found["readerGroupName"], found["scopeName"], found["readers"]) == ("billing", scope, 0)
    assert found["bytesBehind"] == 90
    assert found["position"]["cut"] == manager.cuts(scope, "meters").head().as_text()
