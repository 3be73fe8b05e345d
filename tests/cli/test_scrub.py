"""`nadi scrub` with a running server: progress, result, exit code and permissions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import pytest

import nadi
from nadi.errors import PermissionDeniedError
from nadi.standalone import ServerSecurity
from tests.access.support import GRANTS, PASSWORD, user, users_file
from tests.support.waiting import until

from .test_streams import Shell

LIMITS = "chunk_flush_age_s=0.02,storage_writer_tick_s=0.02,checkpoint_interval_s=0.05"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[nadi.standalone.EmbeddedServer]:
    """A server with users, and some events in a chunk."""
    security = ServerSecurity(users_file=str(users_file(tmp_path / "settings", GRANTS)))
    data = tmp_path / "data"
    with nadi.embedded(data, security=security, rest_port=0, environment={"NADI_LIMITS": LIMITS}) as server:
        with nadi.StreamManager(server.controller_uri, credentials=user("root")) as manager:
            manager.create_scope("home")
            manager.create_stream("home", "clicks")
            with manager.create_writer("home", "clicks") as writer:
                writer.write_batch([b"a click"] * 100, "k")
        until(lambda: chunk_of(data))
        yield server


def chunk_of(data: Path) -> list[Path]:
    chunks = (path for path in data.glob("tier2/**/*") if path.is_file() and "#" not in path.name)
    return [path for path in chunks if b"a click" in path.read_bytes()]


def test_scrub_reports_damage(server: nadi.standalone.EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("pravega_client_auth_method", "Basic")
    monkeypatch.setenv("pravega_client_auth_username", "root")
    monkeypatch.setenv("pravega_client_auth_password", PASSWORD)
    shell = Shell(server.controller_uri)
    assert "No pass has finished" in shell.run("scrub", "--status").output
    assert "no damage" in shell.run("scrub").output
    output = shell.run("scrub", "--status").output
    assert "no damage" in output
    assert "bytes of states" in output
    assert "bytes of snapshots" in output
    (row,) = shell.json("scrub")
    assert row["damages"] == 0
    assert row["read_bytes"] >= 100 * (8 + 7)
    assert row["state_bytes"] > 0

    (chunk,) = chunk_of(server.folder)
    chunk.unlink()
    output = shell.run("scrub", code=1).output
    assert "1 damaged range\n" in output
    assert "home/clicks/0.#epoch.0" in output
    assert "1 damaged range\n" in shell.run("scrub", "--status", code=1).output
    request = Request(f"{server.rest_uri}/v1/health/details/scrub", headers={"Authorization": user("root").header()})
    with urlopen(request) as reply:
        details = msgspec.json.decode(reply.read())
    assert details["last"]["damages"] == 1
    assert "home/clicks" in details["last"]["damaged"][0]


def test_scrub_requires_cluster_permission(server: nadi.standalone.EmbeddedServer) -> None:
    for name in ("reader", "writer", "stranger"):
        with nadi.StreamManager(server.controller_uri, credentials=user(name)) as manager:
            for start in (True, False):
                with pytest.raises(PermissionDeniedError):
                    manager.scrub(start=start)
    with nadi.StreamManager(server.controller_uri, credentials=user("root")) as manager:
        assert manager.scrub().last is None
        assert manager.scrub(start=True).running is not None
