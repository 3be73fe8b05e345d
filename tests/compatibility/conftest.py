"""One recording server for all compatibility tests, and doors to it.

NADI_COMPATIBILITY_RECORD names a file into which the record of the run is written as JSON (script/compatibility
sets it); without it, the run may record nothing that served.json lacks.
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
DIRECT = "direct calls"  # each RPC, without a client around it

Server = Callable[[str], Opened]


@dataclass(frozen=True, slots=True)
class Official:
    """A process with the official Python package, and its StreamManager for the server."""

    process: OfficialPython
    manager: Any

    @property
    def package(self) -> Any:
        return self.process.package

    @property
    def extras(self) -> Any:
        return self.process.extras


LIMITS = "list_page=10,watermark_period_s=0.5"  # so that listings have several pages, and watermarks come soon


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
    """`server(client)` gives the addresses at which that client is served in this test.

    All tests share one server, so each names its scopes after itself.
    """
    test = f"{request.path.name}::{request.node.name}"
    yield lambda client: recording_server.open_door(client, test)
    recording_server.close_doors(test)


@pytest.fixture
def scope(request: pytest.FixtureRequest) -> str:
    """A name of this test's own for a scope, which does not exist yet."""
    allowed = (c if c.isascii() and c.isalnum() else "-" for c in request.node.name)
    return "".join(allowed)


@pytest.fixture
def official(server: Server) -> Iterator[Callable[[], Official]]:
    """`official()` starts a process with the official Python package, connected to the server."""
    if not installed():
        pytest.skip("the official package `pravega` has no wheel for this Python")
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
    """A process with the package, and its scope."""
    client = official()
    client.manager.create_scope(scope)
    return client


@pytest.fixture
def nadi_manager(server: Server) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(server(NADI).controller_uri) as manager:
        yield manager
