"""`nadi doctor` on this machine, with a real server and with unhealthy ones."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import nadi
from nadi.cli import doctor
from nadi.cli.doctor import Finding
from tests.cli.test_streams import Shell
from tests.support.ports import free_port


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_SYNCED_S", 0.05)
    monkeypatch.setattr(doctor, "_ANSWER_S", 60.0)  # a running server answers in time


def test_doctor_with_a_healthy_server_finds_nothing_wrong(tmp_path: Path) -> None:
    with nadi.embedded(tmp_path / "data", rest_port=0) as server:
        shell = Shell(server.controller_uri)
        shell.run("scope", "create", "home")
        rows = shell.json("doctor", "--data", str(tmp_path / "data"))  # the controller reports the REST port
    findings = {row["check"]: row for row in rows}
    assert list(findings) == [
        "open files",
        "data folder",
        "free space",
        "file system",
        "fdatasync",
        "controller",
        "clock",
        "version",
        "health",
    ]
    assert [row["check"] for row in rows if row["state"] == "wrong"] == []
    assert "1 scopes" in findings["controller"]["result"]
    assert nadi.__version__ in findings["version"]["result"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"], "temporary files are removed"


def test_doctor_without_server_fails(tmp_path: Path) -> None:
    port = free_port()
    done = Shell(f"tcp://127.0.0.1:{port}").run("doctor", "--data", str(tmp_path / "later"), code=1)
    assert f"127.0.0.1:{port}" in done.output
    assert f"willbecreatedin{tmp_path}" in "".join(done.output.split())  # long names are wrapped


def test_check_server_reports_free_and_occupied_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(doctor, "DEFAULT_URI", f"tcp://127.0.0.1:{free_port()}")
        rest, store = f"http://127.0.0.1:{free_port()}", f"127.0.0.1:{other.getsockname()[1]}"
        findings = doctor.check_server(None, rest, None, store)
    assert [finding.state for finding in findings] == ["ok", "ok", "wrong"]
    assert "--store-port" in findings[-1].advice


def test_check_server_at_a_foreign_port_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        controller, rest = doctor.check_server(f"tcp://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}", None)
    assert controller.state == "wrong"
    assert rest.state == "note"


HEALTHY: dict[str, Any] = {"status": "UP", "readiness": True, "liveness": True, "details": {}, "children": {}}


@contextmanager
def rest_of(health: dict[str, Any], ahead_s: float = 0, version: str = nadi.__version__) -> Iterator[str]:
    """Serve this health and version, with a clock that is this much ahead."""
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
    from nadi.cli.cluster.rest_client import RestClient

    with rest_of(health, **more) as rest:
        return {finding.check: finding for finding in doctor.check_rest(RestClient(rest, None))}


def test_health_finding_names_unhealthy_components() -> None:
    unhealthy = HEALTHY | {
        "name": "container-3",
        "status": "DOWN",
        "details": {"waits_for_space": True, "queued_bytes": 0},
    }
    healthy = HEALTHY | {"name": "container-4"}
    server = HEALTHY | {
        "name": "nadi",
        "status": "DOWN",
        "children": {"container-3": unhealthy, "container-4": healthy},
    }
    findings = by_rest(server)["health"]
    assert (findings.state, findings.result) == ("wrong", "container-3 is DOWN (waits_for_space: True)")
    assert by_rest(HEALTHY | {"name": "nadi"})["health"].state == "ok"


def test_differing_clocks_and_versions_are_reported() -> None:
    server = HEALTHY | {"name": "nadi"}
    assert by_rest(server)["clock"].state == "ok"
    findings = by_rest(server, ahead_s=-10, version="9.9")
    assert findings["clock"].state == "note"
    assert "behind" in findings["clock"].result
    assert findings["version"].state == "note"
    assert "9.9" in findings["version"].result
    assert by_rest(server, ahead_s=100)["clock"].state == "wrong"


def test_check_disk_rates_file_system_space_and_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_check = {finding.check: finding for finding in doctor.check_disk(tmp_path)}
    assert by_check["fdatasync"].result.startswith("p50 ")
    table = tmp_path / "mounts"
    monkeypatch.setattr(doctor, "_MOUNTS", table)
    for kind, state in (
        ("tmpfs", "wrong"),
        ("nfs4", "note"),
        ("fuse.sshfs", "note"),
        ("overlay", "note"),
        ("xfs", "ok"),
    ):
        table.write_text(f"1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / {tmp_path} rw shared:1 - {kind} b rw\n")
        assert doctor._file_system(tmp_path).state == state, kind
    table.unlink()
    assert doctor._file_system(tmp_path).result == "unknown"
    gib = 1 << 30
    for free, state in ((gib // 2, "wrong"), (5 * gib, "note"), (50 * gib, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: (100 * gib, 0, free))
        assert doctor._free_space(tmp_path).state == state
    file = tmp_path / "file"
    file.write_text("")
    assert [finding.state for finding in doctor.check_disk(file)] == ["wrong"]
    for number, advice in ((errno.ENOSPC, "free some space"), (errno.EROFS, "make it writable")):
        with monkeypatch.context() as within:

            def fail(_: Path, number: int = number) -> None:
                raise OSError(number, os.strerror(number))

            within.setattr(doctor, "sync_times", fail)
            findings = doctor.check_disk(tmp_path)
        assert [finding.check for finding in findings] == ["data folder", "free space", "file system"]
        assert findings[0].state == "wrong"
        assert os.strerror(number) in findings[0].result
        assert findings[0].advice.startswith(advice)
    for times, state in (((20.0, 30.0, 100), "note"), ((1.0, 200.0, 100), "note"), ((1.0, 2.0, 100), "ok")):
        monkeypatch.setattr(doctor, "sync_times", lambda _, times=times: times)
        assert doctor._speed(tmp_path).state == state


def test_open_files_limit_is_rated(monkeypatch: pytest.MonkeyPatch) -> None:
    for limits, state in (((256, 512), "wrong"), ((1024, 4096), "note"), ((1024, 65536), "ok")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        assert doctor._open_files().state == state
