"""`nadi top`: one picture, and live in a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import nadi
from nadi.cli.machine.picture import Picture
from nadi.cli.machine.top import drawn
from tests.cli.test_streams import Shell
from tests.support.ports import free_port
from tests.support.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nadi.standalone.EmbeddedServer]:
    folder: Path = tmp_path_factory.mktemp("data")
    with nadi.embedded(folder, rest_port=0) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        for stream in ("busy", "quiet"):
            manager.create_stream("home", stream, 2)
        groups = manager.reader_group_manager("home")
        groups.create_reader_group("late", ["busy", "quiet"])
        with manager.create_writer("home", "busy") as writer:
            writer.write_batch([b"." * 92] * 1000, "key")
            writer.flush()
        yield server


@pytest.fixture(scope="module")
def shell(server: nadi.standalone.EmbeddedServer) -> Shell:
    return Shell(server.controller_uri)


def check(picture: Any) -> None:
    busy, quiet = picture["streams"]
    assert (busy["stream"], busy["segments"], busy["hot keys"]) == ("home/busy", 2, 0)
    assert busy["bytes/s"] > 0 == quiet["bytes/s"], "the busiest comes first"
    late, idle = picture["groups"]
    assert (late["group"], late["stream"], late["bytes"]) == ("home/late", "home/busy", 100_000)
    assert (late["readers"], late["segments"], late["unassigned"]) == (0, 2, 2)
    assert (idle["stream"], idle["bytes"]) == ("home/quiet", 0)
    assert (picture["status"], picture["ill"], picture["servers"]) == ("UP", [], [])


def seen(shell: Shell, *more: str) -> Any:
    """Once it tells of rates: what passes into a segment is known after half a second."""
    found: Any = None

    def has_rates() -> bool:
        nonlocal found
        found = shell.json("top", "--once", *more)
        return bool(found["streams"][0]["bytes/s"] and found["groups"][0]["events"])

    until(has_rates)
    return found


def test_a_picture_from_the_rest_port(shell: Shell, server: nadi.standalone.EmbeddedServer) -> None:
    picture = seen(shell, "--rest", server.rest_uri)
    check(picture)
    assert picture["streams"][0]["kept bytes"] == 100_000
    assert picture["server"]["version"] == nadi.__version__
    assert picture["server"]["streams"] == 2
    assert picture["server"]["memory bytes"] > 1 << 20
    text = shell.run("top", "--once", "--rest", server.rest_uri).output
    assert "2 streams, 1 reader groups" in text
    assert text.index("home/busy") < text.index("home/quiet")


def test_top_finds_the_rest_port_that_the_server_chose(
    shell: Shell, server: nadi.standalone.EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NADI_REST", raising=False)
    assert shell.json("top", "--once")["source"] == server.rest_uri


def test_a_picture_of_a_client(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nadi.cli.machine.serving.rest_beside", lambda *_: "http://127.0.0.1:1")
    picture = seen(shell)
    check(picture)
    assert "without the REST port" in picture["note"]
    monkeypatch.setattr("nadi.cli.machine.picture.MOST_STREAMS", 1)
    picture = shell.json("top", "--once")
    assert [row["stream"] for row in picture["streams"]] == ["home/busy"]
    assert "only the first" in picture["note"]


def test_what_can_not_be(shell: Shell) -> None:
    for wrong, says in (
        (["-o", "csv", "--once"], "use -o json"),
        (["--json"], "add --once"),
        ([], "not a terminal that can be drawn on: add --once"),
        (["--once", "--rest", "http://127.0.0.1:1"], "gives no answer"),
        (["--once", "--rest", "nowhere"], "not a server's REST address"),
    ):
        assert says in shell.run("top", *wrong, code=1).stderr.replace("\n", " "), wrong


def test_live_in_a_terminal(server: nadi.standalone.EmbeddedServer) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "nadi.cli.app", "top", "--every", "0.2", "--rest", server.rest_uri]
    environment = os.environ | {"COLUMNS": "120", "LINES": "40", "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as program:
        os.close(theirs)
        seen = b""
        while b"of a core" not in seen:  # from the second picture on
            seen += os.read(ours, 65536)
        assert b"home/busy" in seen
        assert b"home/late" in seen
        program.send_signal(signal.SIGINT)
        while True:
            try:
                if not os.read(ours, 65536):
                    break
            except OSError:  # the other end is closed
                break
        assert program.wait(60) == 0
    os.close(ours)


def test_a_server_that_is_away_comes_back(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    port = free_port()
    with nadi.embedded(tmp_path, rest_port=port) as first:
        rest = first.rest_uri
        command = [sys.executable, "-m", "nadi.cli.app", "top", "--every", "0.2", "--rest", rest]
        environment = os.environ | {"COLUMNS": "200", "LINES": "40", "TERM": "xterm"}
        program = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        seen = b""
        while b"of a core" not in seen:
            seen += os.read(ours, 65536)
    seen = b""
    while b"no answer: " not in seen:
        seen += os.read(ours, 65536)
    with nadi.embedded(tmp_path, rest_port=port):
        seen = b""
        while b"of a core" not in seen[seen.rfind(b"no answer: ") :] or b"no answer: " in seen[-4000:]:
            seen += os.read(ours, 65536)
        program.send_signal(signal.SIGINT)
        while True:
            try:
                if not os.read(ours, 65536):
                    break
            except OSError:
                break
        assert program.wait(60) == 0
    os.close(ours)


def test_a_cluster_s_servers_and_what_has_no_room() -> None:
    streams = [
        {"stream": f"home/{n}", "segments": 1, "events/s": 1, "bytes/s": 1, "kept bytes": None, "hot keys": 0}
        for n in range(30)
    ]
    servers = [{"server": "one", "state": "alive", "containers": 4, "bytes/s": 7, "controller": "127.0.0.1:9090"}]
    picture = Picture(0, "http://x", "DOWN", ["container-1"], {"cpu s": 3.0}, servers, streams, [], "a note")
    before = Picture(-2000, "http://x", "UP", [], {"cpu s": 2.0}, servers, [], [])
    console = Console(width=120, height=30, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(drawn(picture, before, 30))
    text = console.export_text()
    console.file.close()
    assert "not up: container-1" in text
    assert "50% of a core" in text
    assert "a note" in text
    assert "one     alive  4" in text
    assert "and 24 more" in text
    assert "There are no reader groups." in text


def test_the_servers_of_a_cluster(tmp_path: Path) -> None:
    with nadi.embedded(store=(tmp_path / "store").as_uri(), rest_port=0) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "busy", 1)
        picture = Shell(server.controller_uri).json("top", "--once", "--rest", server.rest_uri)
        (one,) = picture["servers"]
        assert (one["state"], one["containers"] > 0) == ("alive", True)
        assert [row["stream"] for row in picture["streams"]] == ["home/busy"]
