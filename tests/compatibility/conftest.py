"""One recording server for all compatibility tests, with separate ports for each client and test.

NADI_COMPATIBILITY_RECORD names a file for the run's record as JSON (script/compatibility sets it). Without it, the run
fails if it records an outcome that served.json lacks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import nadi
from tests.compatibility import record, table
from tests.compatibility.official_python import OfficialPython, installed
from tests.compatibility.recording_main import Opened
from tests.compatibility.recording_server import RecordingServer

NADI = "nadi"
OFFICIAL_PYTHON = "official Python"
OFFICIAL_JAVA = "official Java"
OFFICIAL_RUST = "official Rust"
DIRECT = "direct calls"  # each RPC, without a client

Server = Callable[[str], Opened]


@dataclass(frozen=True, slots=True)
class Official:
    """Process with the official Python package, and its StreamManager for the server."""

    process: OfficialPython
    manager: Any

    @property
    def package(self) -> Any:
        return self.process.package

    @property
    def extras(self) -> Any:
        return self.process.extras


LIMITS = "list_page=10,watermark_period_s=0.5"  # for listings with several pages, and early watermarks


@pytest.fixture(scope="session")
def recording_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordingServer]:
    server = RecordingServer(tmp_path_factory.mktemp("recording"), {"NADI_LIMITS": LIMITS})
    yield server
    server.stop()
    if target := os.environ.get("NADI_COMPATIBILITY_RECORD"):
        Path(target).write_bytes(record.encode(server.record))
    else:
        new = table.missing(server.record, table.load())
        assert not new, f"served.json lacks these outcomes; run script/compatibility to add them:\n{new}"


@pytest.fixture
def server(recording_server: RecordingServer, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Return a function `server(client)` with the addresses at which that client is served in this test. All tests
    share one server, so each names its scopes after itself."""
    test = f"{request.path.name}::{request.node.name}"
    yield lambda client: recording_server.open_door(client, test)
    recording_server.close_doors(test)


@pytest.fixture
def scope(request: pytest.FixtureRequest) -> str:
    """Return the name of a scope for this test, which doesn't exist yet."""
    allowed = (c if c.isascii() and c.isalnum() else "-" for c in request.node.name)
    return "".join(allowed)


@pytest.fixture
def official(server: Server) -> Iterator[Callable[[], Official]]:
    """Return a function that starts a process with the official Python package, connected to the server."""
    if not installed():
        pytest.skip("no wheel of the official package `pravega` exists for this Python")
    processes: list[OfficialPython] = []
    door = server(OFFICIAL_PYTHON)

    def start() -> Official:
        process = OfficialPython()
        processes.append(process)
        return Official(process, process.package.StreamManager(door.controller_uri))

    yield start
    for process in processes:
        process.close()


@pytest.fixture
def client(official: Callable[[], Official], scope: str) -> Official:
    """Return a process with the package, after creating the test's scope."""
    client = official()
    client.manager.create_scope(scope)
    return client


@pytest.fixture
def nadi_manager(server: Server) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(server(NADI).controller_uri) as manager:
        yield manager
