"""`nadi bench`, for moments instead of half a minute: it measures, and leaves nothing behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import nadi
from nadi.cli.machine import disk, measures
from tests.access.support import PASSWORD, guarded
from tests.cli.test_streams import Shell

SHORT = ("--seconds", "0.1")


def test_this_machine(tmp_path: Path) -> None:
    rows = Shell("tcp://127.0.0.1:1").json("bench", "--data", str(tmp_path), *SHORT)
    names = [row["measure"] for row in rows]
    assert names == [
        "fdatasync of 4 KiB",
        "write 100 B",
        "write 1,024 B",
        "ack of one event",
        "event to reader",
        "read 1,024 B back",
    ]
    by_name = {row["measure"]: row for row in rows}
    for name in names[1:]:
        assert by_name[name]["events/s"] > 0, name
    for name in ("fdatasync of 4 KiB", "ack of one event", "event to reader"):
        assert 0 < by_name[name]["p50 ms"] <= by_name[name]["p99 ms"], name
    assert list(tmp_path.iterdir()) == []


def test_a_running_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nadi.embedded(tmp_path / "data") as server, nadi.StreamManager(server.controller_uri) as manager:
        shell = Shell(server.controller_uri)
        manager.create_scope("home")
        rows = shell.json("bench", "--controller", server.controller_uri, *SHORT)
        assert rows[0]["measure"] == "write 100 B"
        assert [scope for scope in manager.list_scopes() if not scope.startswith("_")] == ["home"]

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(measures, "_acks", stop)
        shell.run("bench", "--controller", server.controller_uri, *SHORT, code=130)
        assert [scope for scope in manager.list_scopes() if not scope.startswith("_")] == ["home"]
        done = shell.run("bench", "--controller", server.controller_uri, "--data", str(tmp_path), code=1)
        assert "--data has no effect with --controller" in done.stderr.replace("\n", " ")


def test_who_may_make_no_scope_is_told_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("method", "Basic"), ("username", "reader"), ("password", PASSWORD)):
        monkeypatch.setenv(f"pravega_client_auth_{name}", value)
    with guarded(tmp_path) as server:
        done = Shell(server.controller_uri).run("bench", "--controller", server.controller_uri, *SHORT, code=1)
    assert "refused createScope" in done.stderr
    assert "removed" not in done.stderr


def test_memory_is_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mounts"
    table.write_text("1 0 8:1 / / rw - tmpfs a rw\n")
    monkeypatch.setattr(disk, "_MOUNTS", table)
    monkeypatch.setattr(measures, "measures_of", lambda *_: [])
    folder = tmp_path / "data"
    folder.mkdir()
    done = Shell("tcp://127.0.0.1:1").run("bench", "--data", str(folder), *SHORT, "--json")
    assert "is memory: this measures no disk" in done.stderr
    assert done.stdout == "[]\n"


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell("tcp://127.0.0.1:1")
    assert "there is no folder" in shell.run("bench", "--data", str(tmp_path / "none"), code=1).stderr
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 50, 50))
    assert "has 0 MiB free, and 4,096 are needed" in shell.run("bench", "--data", str(tmp_path), code=1).stderr
    assert list(tmp_path.iterdir()) == []
