"""`nadi search` from the command line, and the guides' examples."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import msgspec
import pytest

import nadi
from nadi import search
from tests.cli.test_streams import Shell
from tests.search.support import event

pytest.importorskip("tantivy", reason="search needs tantivy")


@contextmanager
def started(uri: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `nadi search` with these words; kill it at the end if it hasn't ended."""
    command, environment = [sys.executable, "-m", "nadi.cli.app", "search", *words], {"NADI_CONTROLLER": uri}
    process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[nadi.standalone.EmbeddedServer]:
    with nadi.embedded(tmp_path / "data") as server:
        yield server


def test_search_commands_manage_an_index(
    server: nadi.standalone.EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NADI_SEARCH_CACHE", str(tmp_path / "cache"))
    shell = Shell(server.controller_uri)
    shell.run("scope", "create", "home")
    shell.run("stream", "create", "home", "logs")
    with nadi.StreamManager(server.controller_uri) as manager, manager.create_writer("home", "logs") as writer:
        for number in range(50):
            writer.write_event(event(number, level=f"l{number % 2}"))
    assert shell.json("search", "list", "home") == []
    made = ["search", "create", "home", "logs", "--fields", "message:text,level:keyword"]
    made += ["--index", str(tmp_path / "shards")]
    assert "nadi search run home logs" in shell.run(*made).output
    shell.run(*made, code=1)
    shell.run(*made[:-3], "x", *made[-2:], code=2)
    (row,) = shell.json("search", "list", "home")
    assert (row["stream"], row["fields"], row["stopped"]) == ("logs", "message:text,level:keyword", False)
    with started(server.controller_uri, "run", "home", "logs") as indexer:
        (found,) = shell.json("search", "query", "home", "logs", "group7 level:l1", "--wait-for", "tail")
        assert (found["count"], len(found["hits"]), found["next"]) == (5, 5, None)
        (status,) = shell.json("search", "status", "home", "logs")
        assert (status["indexed"], status["lag_bytes"]) == (50, 0)
        assert f"process {indexer.pid}" in status["indexer_1"]
        shown = shell.run("search", "query", "home", "logs", "group7", "--limit", "2").output
        assert "request 47 of group7" in shown
        after = shown.strip().rpartition("--after ")[2]
        (rest,) = shell.json("search", "query", "home", "logs", "group7", "--after", after)
        assert len(rest["hits"]) == 3
        counts = shell.json("search", "query", "home", "logs", "--by", "level")
        assert counts == [{"value": "l0", "events": 25}, {"value": "l1", "events": 25}]
        shell.run("search", "query", "home", "logs", "absent")
        shell.run("search", "query", "home", "logs", "--by", "level", "--after", after, code=2)
        shell.run("search", "stop", "home", "logs")
        assert indexer.wait(60) == 0
    with started(server.controller_uri, "run", "home", "logs") as indexer:
        with nadi.StreamManager(server.controller_uri) as manager, manager.create_writer("home", "logs") as writer:
            writer.write_event(event(50))
        shell.run("search", "query", "home", "logs", "--wait-for", "tail")
        indexer.send_signal(signal.SIGTERM)
        assert indexer.wait(60) == 0
    shell.run("search", "delete", "home", "logs", "--yes")
    assert "home/logs" in shell.run("search", "query", "home", "logs", code=1).stderr


def test_query_command_escapes_event_text(
    server: nadi.standalone.EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NADI_SEARCH_CACHE", str(tmp_path / "cache"))
    shell = Shell(server.controller_uri)
    shell.run("scope", "create", "home")
    shell.run("stream", "create", "home", "logs")
    made = ["search", "create", "home", "logs", "--fields", "message:text", "--index"]
    shell.run(*made, "", code=2)
    shell.run(*made, str(tmp_path / "shards"))
    messages = ["C:\\request", "[/bold] request", "[red]request\\", "a\1request\0\1", "re\x1b[31mquest request"]
    with nadi.StreamManager(server.controller_uri) as manager:
        with manager.create_writer("home", "logs") as writer:
            for message in messages:
                writer.write_event(msgspec.json.encode({"message": message}))
        hint = shell.run("search", "query", "home", "logs", "request").stderr
        assert "`nadi search run home logs`" in hint
        for part in search.backfill_parts(manager, "home", "logs"):
            part.index()
    shown = shell.run("search", "query", "home", "logs", "request", "--order", "oldest")
    lines = [line.split(" ", 2)[2] for line in shown.output.splitlines()[: len(messages)]]
    assert lines == ["".join(one if one.isprintable() else " " for one in message) for message in messages]
    assert "nadi search run" not in shell.run("search", "query", "home", "logs", "absent").stderr
    assert "home/other" in shell.run("search", "query", "home", "other", code=1).stderr
    for command in ("query", "status", "stop", "run", "delete"):
        assert "other" in shell.run("search", command, "other", "logs", code=1).stderr


def test_standing_commands_manage_queries(server: nadi.standalone.EmbeddedServer) -> None:
    shell = Shell(server.controller_uri)
    shell.run("scope", "create", "home")
    for stream in ("logs", "hits"):
        shell.run("stream", "create", "home", stream)
    standing = ("search", "standing")
    shell.run(*standing, "list", "home", "logs", code=1)
    shell.run(*standing, "create", "home", "logs", "--hits", "hits", code=2)
    shell.run(*standing, "create", "home", "logs", "--hits", "hits", "--fields", "message:text", "--from", "head")
    assert shell.json(*standing, "list", "home", "logs") == []
    shell.run(*standing, "add", "home", "logs", "threes", "group3", "--from", "head")
    shell.run(*standing, "add", "home", "logs", "others", "--", "-group3")
    with nadi.StreamManager(server.controller_uri) as manager, manager.create_writer("home", "logs") as writer:
        for number in range(20):
            writer.write_event(event(number))
    with started(server.controller_uri, "standing", "run", "home", "logs") as matcher:
        with nadi.StreamManager(server.controller_uri) as manager:
            hits = islice(manager.read_events("home", "hits", timeout=60), 20)
            names = sorted(msgspec.json.decode(hit.data)["query"] for hit in hits)
        assert names == ["others"] * 18 + ["threes"] * 2
        (status,) = shell.json(*standing, "status", "home", "logs")
        assert (status["queries"], status["hits"]) == (2, "home/hits")
        assert f"process {matcher.pid}" in status["matcher_1"]
        shell.run(*standing, "remove", "home", "logs", "others")
        assert [row["name"] for row in shell.json(*standing, "list", "home", "logs")] == ["threes"]
        shell.run(*standing, "stop", "home", "logs")
        assert matcher.wait(60) == 0
    shell.run(*standing, "delete", "home", "logs", "--yes")
    shell.run(*standing, "status", "home", "logs", code=1)


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("guide", ["search.md", "standing-queries.md"])
def test_a_guide(
    guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NADI_SEARCH_CACHE", str(tmp_path / "cache"))
    text = (ROOT / "docs" / guide).read_text()
    shown = re.findall(r"^nadi .*$", "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)), re.M)
    (start,) = (one for one in shown if " run " in one)
    commands = [one for one in shown if one != start]
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]  # Spark's is run in tests/spark
    with nadi.embedded(tmp_path / "data") as server:
        environment = {
            **os.environ,
            "NADI_CONTROLLER": server.controller_uri,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        for command in commands:
            subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, check=True, timeout=60)
        indexer = subprocess.Popen(["bash", "-c", f"exec {start}"], cwd=tmp_path, env=environment)
        try:
            program = example.replace("StreamManager()", f"StreamManager({server.controller_uri!r})")
            exec(compile(program, guide, "exec"), {})
            indexer.terminate()
            assert indexer.wait(60) == 0
        finally:
            indexer.kill()
            indexer.wait()
    expected = re.findall(r"^ *print\(.*  # (.*)$", example, re.M)
    assert capsys.readouterr().out.splitlines() == expected
    assert expected
