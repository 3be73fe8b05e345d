"""Events with dots in member names, as written by the OpenTelemetry endpoint and Elastic's shippers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import nadi
from nadi import search
from nadi.errors import InvalidArgumentError
from tests.cli.test_streams import Shell

pytest.importorskip("tantivy", reason="search needs tantivy")
TIME = "1790000000123456789"
RECORD = {
    "timeUnixNano": TIME,
    "body": {"stringValue": "sold"},
    "attributes": [
        {"key": "http.method", "value": {"stringValue": "GET"}},
        {"key": "http", "value": {"kvlistValue": {"values": [{"key": "status", "value": {"intValue": 200}}]}}},
    ],
}
ECS = [
    {"log.level": "error", "message": "boom", "@timestamp": "2026-09-21T14:13:20.123Z"},
    {"log": {"level": "error"}, "message": "nested", "@timestamp": "2026-09-21T14:13:21Z"},
    {"log.level": "info", "log": {"level": "error"}, "message": "both", "@timestamp": 1790000002},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nadi.standalone.EmbeddedServer]:
    """A server with two sealed streams: `otlp`, written through nadi's OpenTelemetry endpoint, and `ecs`."""
    with nadi.embedded(tmp_path_factory.mktemp("data"), rest_port=0) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("home")
            for stream in ("otlp", "ecs", "hits"):
                manager.create_stream("home", stream)
            resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
            sent = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": [RECORD]}]}]}
            headers = {"Nadi-Stream": "home/otlp"}
            httpx.post(f"{server.rest_uri}/v1/logs", headers=headers, json=sent).raise_for_status()
            with manager.create_writer("home", "ecs") as writer:
                for one in ECS:
                    writer.write_event(json.dumps(one).encode())
            manager.seal_stream("home", "otlp")
            manager.seal_stream("home", "ecs")
        yield server


@pytest.fixture
def manager(
    server: nadi.standalone.EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[nadi.StreamManager]:
    monkeypatch.setenv("NADI_SEARCH_CACHE", str(tmp_path / "cache"))
    with nadi.StreamManager(server.controller_uri) as manager:
        yield manager


@pytest.mark.parametrize(
    ("stream", "fields", "found", "field_counts"),
    [
        (
            "otlp",
            'resource.service.name:keyword, attributes."http.method":keyword, attributes.http.status:long, '
            "timeUnixNano:timestamp_ns, body:text, body.code:long, service.name:keyword",
            {
                "resource.service.name:shop": 1,
                'resource."service.name":shop': 1,
                'attributes."http.method":GET': 1,
                "attributes.http.method:GET": 1,
                "attributes.http.status:>=200": 1,
                "timeUnixNano:[2026-09-21T14:13:20.123Z TO 2026-09-21T14:13:20.124Z]": 1,
                f"timeUnixNano:{TIME}": 1,
                "timeUnixNano:<2026-09-21T14:13:20Z": 0,
                "body:sold resource.service.name:sh*": 1,
            },
            [1, 1, 1, 1, 1, 0, 0],
        ),
        (
            "ecs",
            "log.level:keyword,message:text,@timestamp:date",
            {
                "log.level:error": 2,
                '"log.level":info': 1,
                "log.level:info message:both": 1,
                "@timestamp:>=2026-09-21T14:13:21Z": 2,
            },
            [3, 3, 3],
        ),
        (
            "ecs",
            '"log.level":keyword,"log"."level":keyword,mesage:text,message:keyword',
            {'"log.level":error': 1, '"log"."level":error': 2, "message:boom": 1},
            [2, 2, 0, 3],
        ),
    ],
)
def test_index_finds_events_by_names_with_dots(
    server: nadi.standalone.EmbeddedServer,
    manager: nadi.StreamManager,
    tmp_path: Path,
    stream: str,
    fields: str,
    found: dict[str, int],
    field_counts: list[int],
) -> None:
    indexes = search.indexes(manager, "home")
    indexes.create(stream, fields, where=str(tmp_path / "shards"))
    search.run("home", stream, server.controller_uri)
    with indexes.open(stream) as opened:
        assert {text: opened.query(text).count for text in found} == found
        for wrong in ("log.lvl:x", r"log\.level:x", "log..level:x"):
            with pytest.raises(InvalidArgumentError):
                opened.query(wrong)
        by = next(iter(found)).partition(":")[0]
        assert sum(opened.count(by=by).values()) == field_counts[0]
    status = indexes.status(stream)
    assert (status.invalid, list(status.field_counts.values())) == (0, field_counts)
    indexes.delete(stream)


def test_field_that_no_event_has_is_named_at_the_prompt(
    server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager, tmp_path: Path
) -> None:
    shell = Shell(server.controller_uri)
    made = ["search", "create", "home", "ecs", "--index", str(tmp_path / "shards"), "--fields"]
    shell.run(*made, "log..level:keyword", code=2)
    shell.run(*made, "log.levle:keyword,message:text")
    search.run("home", "ecs", server.controller_uri)
    assert "log.levle" in shell.run("search", "query", "home", "ecs", "log.levle:error").stderr
    (status,) = shell.json("search", "status", "home", "ecs")
    assert status["events_with_field"] == {"log.levle": 0, "message": 3}
    assert "log.levle 0, message 3" in shell.run("search", "status", "home", "ecs").output
    search.indexes(manager, "home").delete("ecs")


def test_standing_queries_find_events_by_names_with_dots(
    server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager
) -> None:
    queries = search.standing_queries(manager, "home")
    fields = "resource.service.name:keyword,timeUnixNano:timestamp_ns,attributes.http.metod:keyword"
    queries.create("otlp", "hits", fields=fields, start="head")
    for name, text in (("shop", 'resource."service.name":shop'), ("day", "timeUnixNano:[2026-09-21 TO 2026-09-22]")):
        queries.add("otlp", {name: text})
    search.match("home", "otlp", server.controller_uri)
    end = manager.cuts("home", "hits").tail()
    assert {json.loads(event.data)["query"] for event in manager.read_events("home", "hits", end=end)} == {
        "shop",
        "day",
    }
    assert list(queries.status("otlp").field_counts.values()) == [1, 1, 0]
    queries.delete("otlp")


def test_keys_are_taken_by_names_with_dots(
    server: nadi.standalone.EmbeddedServer, manager: nadi.StreamManager, tmp_path: Path
) -> None:
    shell = Shell(server.controller_uri)
    read = ["read", "home", "ecs", "--format", r"%k\n", "--key-field"]
    assert shell.run(*read, "log.level").output.split() == ["error", "error", "info"]
    assert shell.run(*read, '"log"."level"').output.split("\n")[:3] == ["", "error", "error"]
    for command in (read, ["export", "home", "ecs", str(tmp_path / "e.jsonl"), "--key-field"]):
        assert "'log..level'" in shell.run(*command, "log..level", code=2).stderr
    lines = '{"resource": {"service.name": "shop"}}\n{"resource": {"service": {"name": "till"}}}\n'
    manager.create_stream("home", "kept", 4)
    for _ in range(2):
        shell.run("write", "home", "kept", "--key-field", "resource.service.name", stdin=lines.encode())
    rows: dict[str, Any] = {}
    for row in shell.run("read", "home", "kept", "--json", "--key-field", "resource.service.name").output.splitlines():
        rows.setdefault(json.loads(row)["key"], []).append(json.loads(row)["segment_id"])
    assert {key: len(set(segments)) for key, segments in rows.items()} == {"shop": 1, "till": 1}
    url = f"{server.rest_uri}/v1/scopes/home/streams/kept/events"
    answer = httpx.post(
        url, params={"key-field": "a.`b`"}, content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    assert answer.status_code == 400
