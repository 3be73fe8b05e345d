"""The rule for key fields: the same line goes to the same segment, or is rejected, by every route."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import nadi
from nadi.model.keyspace import key_position
from nadi.standalone.embedded import EmbeddedServer

COMMAND = [sys.executable, "-c", "from nadi.cli.app import main; main()"]
VALUES: dict[str, str] = {
    '""': "",
    '"kitchen"': "kitchen",
    "7": "7",
    "7.0": "7.0",
    "7e0": "7e0",
    "12345678901234567890": "12345678901234567890",
    r'"\u00e4"': "ä",
}
REFUSED = ("true", '["a"]', '{"a": 1}')


def line(value: str) -> str:
    return f'{{"specversion": "1.0", "id": "1", "source": "/", "type": "t", "partitionkey": {value}}}'


Way = Callable[[EmbeddedServer, str, list[str], Path], str]  # the error, or ""


def _command(server: EmbeddedServer, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [*COMMAND, *arguments, "--quiet"],
        input=stdin,
        env={**os.environ, "NADI_CONTROLLER": server.controller_uri},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stderr if done.returncode else ""


def _write(server: EmbeddedServer, stream: str, lines: list[str], folder: Path) -> str:
    return _command(server, "write", "in", stream, "--key-field", "partitionkey", stdin="\n".join(lines))


def _import(server: EmbeddedServer, stream: str, lines: list[str], folder: Path) -> str:
    rows = [f'{{"text": {json.dumps(line)}, "key": {line.rpartition("key")[2][3:]}' for line in lines]
    (folder / "a.jsonl").write_text("\n".join(rows))
    return _command(server, "import", "in", stream, str(folder / "a.jsonl"))


def _post(server: EmbeddedServer, stream: str, body: str, media: str, **query: str) -> str:
    path = f"{server.rest_uri}/v1/scopes/in/streams/{stream}/events"
    response = httpx.post(path, content=body.encode(), headers={"content-type": media}, params=query)
    return "" if response.status_code == 200 else response.text


def _lines(server: EmbeddedServer, stream: str, lines: list[str], folder: Path) -> str:
    return _post(server, stream, "\n".join(lines), "application/x-ndjson", **{"key-field": "partitionkey"})


def _cloud_events(server: EmbeddedServer, stream: str, lines: list[str], folder: Path) -> str:
    return _post(server, stream, f"[{','.join(lines)}]", "application/cloudevents-batch+json")


WAYS: dict[str, Way] = {
    "write": _write,
    "import": _import,
    "lines": _lines,
    "cloud-events": _cloud_events,
}


@pytest.mark.parametrize("way", WAYS)
def test_key_of_each_type_is_the_same_by_each_way(
    server: EmbeddedServer, manager: nadi.StreamManager, tmp_path: Path, way: str
) -> None:
    stream = f"kept-{way}"
    manager.create_stream("in", stream, 64)
    lines = [line(value) for value in (*VALUES, "null")]
    assert WAYS[way](server, stream, lines, tmp_path) == ""
    segments = manager.current_segments("in", stream)
    end = manager.stream_info("in", stream).tail
    found = {event.data.decode(): event.segment_id for event in manager.read_events("in", stream, end=end)}
    assert sorted(found) == sorted(lines)
    for value, key in VALUES.items():
        (segment,) = (one.segment_id for one in segments if one.low <= key_position(key) < one.high)
        assert found[line(value)] == segment, value


@pytest.mark.parametrize("way", WAYS)
def test_invalid_key_is_rejected_by_each_route_with_its_field(
    server: EmbeddedServer, manager: nadi.StreamManager, tmp_path: Path, way: str
) -> None:
    stream = f"refused-{way}"
    manager.create_stream("in", stream, 2)
    for value in REFUSED:
        problem = WAYS[way](server, stream, [line(value)], tmp_path)
        assert f"the field '{'key' if way == 'import' else 'partitionkey'}' " in problem.replace("\n", " ")
    end = manager.stream_info("in", stream).tail
    assert not list(manager.read_events("in", stream, end=end))
