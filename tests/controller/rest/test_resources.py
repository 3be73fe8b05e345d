"""Scopes, streams and scaling events over HTTP: every path, method and status code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from nadi.client import StreamManager
from nadi.config import ServerConfig
from nadi.controller.rest.bodies import (
    RetentionPolicyBody,
    ScalingPolicyBody,
    TimeBasedRetention,
    UpdateStream,
    config_of,
    stream_property,
)
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import RetentionType
from nadi.standalone.server import Server
from nadi.wire.rpc import controller_pb2 as pb
from tests.controller.rpc import calls
from tests.controller.test_reader_groups import CREATED, group_config, prepare, streams_in

FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}
DAY_MS = 24 * 3600 * 1000


def error_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (message,) = response.json().values()
    assert response.json() == {"error": message}
    return str(message)


def create(rest: httpx.Client, scope: str, stream: str, **more: Any) -> httpx.Response:
    return rest.post(f"/v1/scopes/{scope}/streams", json={"streamName": stream, "scalingPolicy": FIXED, **more})


def test_scopes(rest: httpx.Client) -> None:
    made = rest.post("/v1/scopes", json={"scopeName": "made"})
    assert (made.status_code, made.json()) == (201, {"scopeName": "made"})
    assert "exists" in error_of(rest.post("/v1/scopes", json={"scopeName": "made"}), 409)
    for bad in ("", "a_b", "_internal", "a/b", "x" * 256, "new\nline", "trailing\n"):
        error_of(rest.post("/v1/scopes", json={"scopeName": bad}), 400)
    assert {"scopeName": "made"} in rest.get("/v1/scopes").json()["scopes"]
    shown = rest.get("/v1/scopes/made")
    assert (shown.status_code, shown.json()) == (200, {"scopeName": "made"})
    error_of(rest.get("/v1/scopes/none"), 404)
    assert create(rest, "made", "a").status_code == 201
    assert "is not empty" in error_of(rest.delete("/v1/scopes/made"), 412)
    assert rest.put("/v1/scopes/made/streams/a/state", json={"streamState": "SEALED"}).status_code == 200
    assert rest.delete("/v1/scopes/made/streams/a").status_code == 204
    gone = rest.delete("/v1/scopes/made")
    assert (gone.status_code, gone.content) == (204, b"")
    error_of(rest.delete("/v1/scopes/made"), 404)


def test_stream_lifecycle(rest: httpx.Client, scope: str) -> None:
    streams = f"/v1/scopes/{scope}/streams"
    expected: dict[str, Any] = {
        "scopeName": scope,
        "streamName": "meters",
        "scalingPolicy": FIXED,
        "retentionPolicy": None,
        "tags": [],
        "timestampAggregationTimeout": 0,
        "rolloverSizeBytes": 0,
    }
    made = create(rest, scope, "meters")
    assert (made.status_code, made.json()) == (201, expected)
    error_of(create(rest, scope, "meters"), 409)
    error_of(create(rest, scope, "_MARKx"), 400)
    error_of(create(rest, "none", "meters"), 404)
    assert rest.get(f"{streams}/meters").json() == expected
    for path in (f"{streams}/none", "/v1/scopes/none/streams/meters"):
        error_of(rest.get(path), 404)
    policy = {"type": "BY_RATE_IN_EVENTS_PER_SEC", "minSegments": 2, "targetRate": 100, "scaleFactor": 3}
    body = {"scalingPolicy": policy, "streamTags": ["b", "a"], "timestampAggregationTimeout": 7, "rolloverSizeBytes": 9}
    changed = {
        **expected,
        "scalingPolicy": policy,
        "tags": ["a", "b"],
        "timestampAggregationTimeout": 7,
        "rolloverSizeBytes": 9,
    }
    updated = rest.put(f"{streams}/meters", json=body)
    assert (updated.status_code, updated.json()) == (200, changed)
    assert rest.get(f"{streams}/meters").json() == changed
    error_of(rest.put(f"{streams}/none", json=body), 404)
    assert "not sealed" in error_of(rest.delete(f"{streams}/meters"), 412)
    error_of(rest.put(f"{streams}/meters/state", json={"streamState": "ACTIVE"}), 400)
    error_of(rest.put(f"{streams}/none/state", json={"streamState": "SEALED"}), 404)
    for _ in range(2):
        sealed = rest.put(f"{streams}/meters/state", json={"streamState": "SEALED"})
        assert (sealed.status_code, sealed.json()) == (200, {"streamState": "SEALED"})
    assert "is sealed" in error_of(rest.put(f"{streams}/meters", json=body), 500)
    assert rest.delete(f"{streams}/meters").status_code == 204
    error_of(rest.delete(f"{streams}/meters"), 404)


def test_lists_of_streams(rest: httpx.Client, scope: str) -> None:
    create(rest, scope, "a", streamTags=["hot"])
    create(rest, scope, "b", streamTags=["hot", "new"])

    def names(**query: str) -> list[str]:
        response = rest.get(f"/v1/scopes/{scope}/streams", params=query)
        assert response.status_code == 200
        return sorted(stream["streamName"] for stream in response.json()["streams"])

    assert names() == ["a", "b"]
    assert names(filter_type="showInternalStreams") == ["_MARKa", "_MARKb"]
    assert names(filter_type="tag", filter_value="hot") == ["a", "b"]
    assert names(filter_type="tag", filter_value="new") == ["b"]
    assert names(filter_type="tag", filter_value="Hot") == []
    for query in ({"filter_type": "other"}, {"filter_type": "tag"}):
        error_of(rest.get(f"/v1/scopes/{scope}/streams", params=query), 400)
    error_of(rest.get("/v1/scopes/none/streams"), 404)


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ({"type": "LIMITED_DAYS", "value": 3}, {"value": 3, "timeBasedRetention": {"days": 3}}),
        (
            {"type": "LIMITED_DAYS", "timeBasedRetention": {"days": 1, "hours": 2, "minutes": 3}},
            {"value": 0, "timeBasedRetention": {"days": 1, "hours": 2, "minutes": 3}},
        ),
        (
            {"type": "LIMITED_DAYS", "value": 2, "timeBasedRetention": {"hours": 5}, "maxValue": 4},
            {
                "value": 2,
                "timeBasedRetention": {"days": 2},
                "maxTimeBasedRetention": {"days": 4, "hours": 0, "minutes": 0},
            },
        ),
        ({"type": "LIMITED_SIZE_MB", "value": 5, "maxValue": 6}, {"value": 5, "maxValue": 6}),
        ({"type": "LIMITED_SIZE_MB", "value": 5, "overBookmarks": True}, {"value": 5, "overBookmarks": True}),
    ],
)
def test_retention_is_echoed(
    rest: httpx.Client, manager: StreamManager, given: dict[str, Any], echoed: dict[str, Any]
) -> None:
    rest.post("/v1/scopes", json={"scopeName": "retained"})
    name = f"s{abs(hash(str(given)))}"
    made = create(rest, "retained", name, retentionPolicy=given)
    assert made.status_code == 201, made.text
    span = echoed.pop("timeBasedRetention", None)
    expected = {"type": given["type"], **echoed}
    if span is not None:
        expected["timeBasedRetention"] = {"days": 0, "hours": 0, "minutes": 0, **span}
    assert made.json()["retentionPolicy"] == expected
    assert rest.get(f"/v1/scopes/retained/streams/{name}").json() == made.json()


def test_maximum_retention_and_bookmarks_are_converted() -> None:
    scaling = ScalingPolicyBody("FIXED_NUM_SEGMENTS", 1)
    body = UpdateStream(scalingPolicy=scaling, retentionPolicy=RetentionPolicyBody("LIMITED_DAYS", 1, maxValue=2))
    config = config_of(body)
    assert (config.retention_type, config.retention_param, config.retention_max) == (
        RetentionType.TIME,
        DAY_MS,
        2 * DAY_MS,
    )
    assert not config.retention_over_bookmarks
    shown = stream_property(StreamName("home", "meters"), replace(config, retention_over_bookmarks=True))
    assert shown.retentionPolicy == RetentionPolicyBody(
        "LIMITED_DAYS",
        1,
        TimeBasedRetention(1, 0, 0),
        maxTimeBasedRetention=TimeBasedRetention(2, 0, 0),
        overBookmarks=True,
    )
    assert config_of(UpdateStream(scalingPolicy=scaling, retentionPolicy=shown.retentionPolicy)) == replace(
        config, retention_over_bookmarks=True
    )
    own = replace(config, retention_by_event_time=True)
    shown = stream_property(StreamName("home", "meters"), own)
    assert shown.retentionPolicy is not None
    assert shown.retentionPolicy.byEventTime is True
    assert config_of(UpdateStream(scalingPolicy=scaling, retentionPolicy=shown.retentionPolicy)) == own


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"scalingPolicy": FIXED}, "streamName"),
        ({"streamName": "x"}, "scalingPolicy"),
        ({"streamName": 1, "scalingPolicy": FIXED}, "streamName"),
        ({"streamName": "x", "scalingPolicy": FIXED, "tags": []}, "tags"),
        ({"streamName": "x", "scalingPolicy": {**FIXED, "minSegments": 0}}, "minSegments"),
        ({"streamName": "x", "scalingPolicy": {**FIXED, "minSegments": 1 << 40}}, "minSegments"),
        ({"streamName": "x", "scalingPolicy": {**FIXED, "type": "NONE"}}, "type"),
        ({"streamName": "x", "scalingPolicy": {"type": "BY_RATE_IN_KBYTES_PER_SEC", "minSegments": 1}}, "targetRate"),
        ({"streamName": "x", "scalingPolicy": FIXED, "retentionPolicy": {"type": "LIMITED_DAYS"}}, "value"),
        (
            {
                "streamName": "x",
                "scalingPolicy": FIXED,
                "retentionPolicy": {"type": "LIMITED_SIZE_MB", "value": 2, "maxValue": 1},
            },
            "maxValue",
        ),
        ({"streamName": "x", "scalingPolicy": FIXED, "streamTags": ["t" * 257]}, "streamTags"),
        ({"streamName": "x", "scalingPolicy": FIXED, "streamTags": [f"{i}" for i in range(129)]}, "streamTags"),
        ({"streamName": "x", "scalingPolicy": FIXED, "rolloverSizeBytes": 1 << 64}, "rolloverSizeBytes"),
    ],
)
def test_invalid_body_error_names_the_field(rest: httpx.Client, scope: str, body: Any, named: str) -> None:
    message = error_of(rest.post(f"/v1/scopes/{scope}/streams", json=body), 400)
    assert named in message
    rest.delete(f"/v1/scopes/{scope}")


def test_scaling_events(rest: httpx.Client, manager: StreamManager, scope: str) -> None:
    create(rest, scope, "scaled")
    manager.scale_stream(scope, "scaled", [0], [(0.0, 0.25), (0.25, 0.5)])
    current = [segment.segment_id for segment in manager.current_segments(scope, "scaled")]
    manager.scale_stream(scope, "scaled", current, [(0.0, 0.6), (0.6, 1.0)])
    path = f"/v1/scopes/{scope}/streams/scaled/scaling-events"

    def events(start_ms: int, end_ms: int) -> list[dict[str, Any]]:
        response = rest.get(path, params={"from": start_ms, "to": end_ms})
        assert response.status_code == 200, response.text
        found = response.json()
        assert isinstance(found, list)
        return found

    far = 1 << 62
    first, second, third = events(0, far)
    assert [(e["splits"], e["merges"]) for e in (first, second, third)] == [(0, 0), (1, 0), (1, 1)]
    assert [(s["number"], s["epoch"], s["keyStart"], s["keyEnd"]) for s in second["segments"]] == [
        (2, 1, 0.0, 0.25),
        (3, 1, 0.25, 0.5),
        (1, 0, 0.5, 1.0),
    ]
    assert [s["start"] for s in second["segments"]] == [second["timestamp"]] * 2 + [first["timestamp"]]
    for event in (first, second, third):
        renamed = [
            {"number": s["number"], "startTime": s["start"], "keyStart": s["keyStart"], "keyEnd": s["keyEnd"]}
            for s in event["segments"]
        ]
        assert event["segmentList"] == renamed
    assert [e["timestamp"] for e in (first, second, third)] == sorted({e["timestamp"] for e in (first, second, third)})
    assert events(second["timestamp"], second["timestamp"]) == [first, second]
    assert events(third["timestamp"] + 1, far) == [third]
    assert events(0, first["timestamp"] - 1) == []
    for query in (
        "",
        "from=1",
        "to=1",
        "from=-1&to=1",
        "from=2&to=1",
        "from=x&to=1",
        "from=1_0&to=99",
        f"from=1&to={1 << 63}",
    ):
        error_of(rest.get(f"{path}?{query}"), 400)
    error_of(rest.get(f"/v1/scopes/{scope}/streams/none/scaling-events", params={"from": 0, "to": 1}), 404)


def test_stream_retention_report(rest: httpx.Client, manager: StreamManager) -> None:
    rest.post("/v1/scopes", json={"scopeName": "keeping"})
    create(rest, "keeping", "a", retentionPolicy={"type": "LIMITED_SIZE_MB", "value": 5})
    path = "/v1/scopes/keeping/streams/a/retention"
    empty = rest.get(path).json()
    assert (empty["retained_bytes"], empty["oldest_ms"], empty["holders"], empty["more_holders"]) == (0, 0, [], 0)
    with manager.create_writer("keeping", "a") as writer:
        writer.write_event(bytes(92))
    kept = rest.get(path).json()
    assert kept["retained_bytes"] == 100
    assert kept["oldest_ms"] > 1_600_000_000_000
    assert kept["head"] == manager.stream_info("keeping", "a").head.as_text()
    error_of(rest.get("/v1/scopes/keeping/streams/b/retention"), 404)


# --- reader groups over REST, created over gRPC like the official Java client does -------------------


pytestmark = pytest.mark.uvloop


async def test_reader_groups(tmp_path: Path) -> None:
    server = Server(ServerConfig(data=tmp_path, store_port=0, port=0, rest_port=0))
    async with (
        server,
        calls(server.controller_uri.removeprefix("tcp://")) as call,
        httpx.AsyncClient(base_url=f"{server.rest_uri}/v1/scopes", timeout=60) as rest,
    ):
        await prepare(call, "meters", "events")
        assert (await rest.get("/home/readergroups")).json() == {"readerGroups": []}
        cuts = [pb.StreamCut(streamInfo=pb.StreamInfo(scope="home", stream=stream)) for stream in ("meters", "events")]
        for group in ("readers", "others"):
            made = await call("createReaderGroup", group_config(group, startingStreamCuts=cuts))
            assert made.status == CREATED.SUCCESS
        listed = (await rest.get("/home/readergroups")).json()
        assert sorted(g["readerGroupName"] for g in listed["readerGroups"]) == ["others", "readers"]
        assert set(listed) == {"readerGroups"}
        error_of(await rest.get("/none/readergroups"), 404)
        shown = await rest.get("/home/readergroups/readers")
        assert (shown.status_code, shown.json()) == (
            200,
            {
                "scopeName": "home",
                "readerGroupName": "readers",
                "streamList": ["events", "meters"],
                "onlineReaderIds": [],
            },
        )
        for path in ("/home/readergroups/none", "/none/readergroups/readers"):
            error_of(await rest.get(path), 404)
            error_of(await rest.delete(path), 404)
        assert (await rest.delete("/home/readergroups/readers")).status_code == 204
        error_of(await rest.delete("/home/readergroups/readers"), 404)
        assert "_RGreaders" not in await streams_in(call)
        assert "_RGothers" in await streams_in(call)
