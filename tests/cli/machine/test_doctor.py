"""`nadi doctor`, on this machine, of a real server, and of servers that are unwell."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.cli.machine import disk, programs, serving
from nadi.cli.machine.finding import Finding, State
from tests.cli.test_streams import Shell
from tests.support.ports import free_port


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_SYNCED_S", 0.05)
    monkeypatch.setattr(serving, "_ANSWER_S", 60.0)  # a server that is there answers


def test_a_server_that_is_well(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path / "data", rest_port=0) as server:
        shell = Shell(server.controller_uri)
        shell.run("scope", "create", "home")
        rows = shell.json("doctor", "--data", str(tmp_path / "data"))  # the controller says where REST is
    found = {row["check"]: row for row in rows}
    assert list(found) == [
        "Python",
        "libraries",
        "open files",
        "data folder",
        "free room",
        "file system",
        "fdatasync",
        "controller",
        "clock",
        "version",
        "health",
    ]
    assert [row["check"] for row in rows if row["state"] == "wrong"] == []
    assert "and has 1 scopes" in found["controller"]["found"]
    assert found["version"]["found"] == f"{nadi.__version__}, here and there"
    assert found["health"]["found"] == "all parts of the server are up and ready"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data"], "it leaves nothing behind"


def test_no_server(tmp_path: Path) -> None:
    port = free_port()
    done = Shell(f"tcp://127.0.0.1:{port}").run("doctor", "--data", str(tmp_path / "later"), code=1)
    assert f"nobody listens at 127.0.0.1:{port}" in done.output
    assert f"willbecreatedin{tmp_path}" in "".join(done.output.split())  # a long name is cut into lines


def test_ports_that_are_free_and_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = serving.Addresses(
            f"tcp://127.0.0.1:{free_port()}",
            f"http://127.0.0.1:{free_port()}",
            f"127.0.0.1:{other.getsockname()[1]}",
            False,
            None,
        )
        controller, rest, store = serving.looked_at(where)
    assert (controller.state, rest.state, store.state) == (State.OK, State.OK, State.WRONG)
    assert store.advice == "stop it, or give nadi up another --store-port"


def test_a_controller_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        where = serving.Addresses(f"tcp://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}", "", True, None)
        controller, rest = serving.looked_at(where)
    assert controller.state is State.WRONG
    assert "gives no answer" in controller.found
    assert rest.state is State.NOTE


HEALTHY: dict[str, Any] = {"status": "UP", "readiness": True, "liveness": True, "details": {}, "children": {}}


@contextmanager
def rest_of(health: dict[str, Any], ahead_s: float = 0, version: str = nadi.__version__) -> Iterator[str]:
    """A server that answers so, with a clock that is so much ahead."""
    answers = {
        "/ping": "pong\n",
        "/metrics": f'nadi_build_info{{version="{version}"}} 1.0\n',
        "/v1/health": json.dumps(health),
    }

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers[self.path].encode()
            self.send_response_only(200)
            self.send_header("Date", formatdate(time.time() + ahead_s, usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def by_rest(health: dict[str, Any], **more: Any) -> dict[str, Finding]:
    from nadi.cli.cluster.asking import RestClient

    with rest_of(health, **more) as rest:
        return {one.check: one for one in serving._by_rest(RestClient(rest, None), rest)}


def test_what_is_unwell_is_named() -> None:
    ill = HEALTHY | {"name": "container-3", "status": "DOWN", "details": {"waits_for_room": True, "queued_bytes": 0}}
    well = HEALTHY | {"name": "container-4"}
    whole = HEALTHY | {"name": "nadi", "status": "DOWN", "children": {"container-3": ill, "container-4": well}}
    found = by_rest(whole)["health"]
    assert (found.state, found.found) == (State.WRONG, "container-3 is DOWN (waits_for_room: True)")
    assert by_rest(HEALTHY | {"name": "nadi"})["health"].state is State.OK


def test_clocks_and_versions_that_differ() -> None:
    whole = HEALTHY | {"name": "nadi"}
    assert by_rest(whole)["clock"].state is State.OK
    found = by_rest(whole, ahead_s=-10, version="9.9")
    assert found["clock"].state is State.NOTE
    assert "s behind this machine's" in found["clock"].found
    assert (found["version"].state, found["version"].found) == (
        State.NOTE,
        f"9.9 on the server, {nadi.__version__} here",
    )
    assert by_rest(whole, ahead_s=100)["clock"].state is State.WRONG


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_check = {one.check: one for one in disk.looked_at(tmp_path)}
    assert by_check["fdatasync"].found.startswith("p50 ")
    table = tmp_path / "mounts"
    monkeypatch.setattr(disk, "_MOUNTS", table)
    for kind, state in (("tmpfs", State.WRONG), ("nfs4", State.NOTE), ("fuse.sshfs", State.NOTE), ("xfs", State.OK)):
        table.write_text(f"1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / {tmp_path} rw shared:1 - {kind} b rw\n")
        assert disk._kind(tmp_path).state is state, kind
    table.unlink()
    assert disk._kind(tmp_path).found == "unknown"
    gib = 1 << 30
    for free, state in ((gib // 2, State.WRONG), (5 * gib, State.NOTE), (50 * gib, State.OK)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: (100 * gib, 0, free))
        assert disk._room(tmp_path).state is state
    file = tmp_path / "file"
    file.write_text("")
    assert disk.looked_at(file)[0].state is State.WRONG
    for number, advice in ((errno.ENOSPC, "make room"), (errno.EROFS, "make it writable")):
        with monkeypatch.context() as within:

            def fail(_: Path, number: int = number) -> disk.SyncTimes:
                raise OSError(number, os.strerror(number))

            within.setattr(disk, "sync_times", fail)
            found = disk.looked_at(tmp_path)
        assert [one.check for one in found] == ["data folder", "free room", "file system", "data folder"]
        assert found[-1].found.endswith(f"can't be written: {os.strerror(number)}")
        assert found[-1].advice.startswith(advice)
    slow = disk.SyncTimes(20.0, 30.0, 100)
    monkeypatch.setattr(disk, "sync_times", lambda _: slow)
    assert disk._speed(tmp_path).state is State.NOTE


def test_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.state for one in programs.looked_at()] == [State.OK] * 3
    needs = ["grpcio>=99", "no-such-library>=1", "rich>=1", "avro>=1; extra == 'avro'"]
    monkeypatch.setattr(metadata, "requires", lambda _: needs)
    found = programs._libraries()
    assert found.state is State.WRONG
    assert "no-such-library is missing" in found.found
    assert "is not >=99" in found.found
    for limits, state in (((256, 512), State.WRONG), ((1024, 4096), State.NOTE), ((1024, 65536), State.OK)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        assert programs._open_files().state is state
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    assert programs._python().state is State.WRONG
