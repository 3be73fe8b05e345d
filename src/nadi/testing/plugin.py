"""Fixtures that pytest loads automatically if nadi is installed; nothing starts until a test requests one.

Only pytest imports this module: pytest isn't a dependency of nadi.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nadi.client import StreamManager
    from nadi.testing.server import RestartableServer


@pytest.fixture(scope="session")
def nadi_environment() -> Mapping[str, str]:
    """Environment variables of the server's process; override this fixture to set variables such as NADI_LIMITS."""
    return {}


@pytest.fixture(scope="session")
def nadi_server(nadi_environment: Mapping[str, str]) -> Iterator[RestartableServer]:
    """A server for all tests of the run, which may kill and restart it.

    Its folder is removed at the end: log files take half a gigabyte, and pytest's temporary folders last for three
    runs.
    """
    from nadi.testing.server import RestartableServer

    with RestartableServer(environment=nadi_environment) as server:
        yield server


@pytest.fixture
def nadi_manager(nadi_server: RestartableServer) -> Iterator[StreamManager]:
    """A client of the server, closed after the test."""
    from nadi.client import StreamManager

    nadi_server.ensure_running()
    with StreamManager(nadi_server.controller_uri) as manager:
        yield manager


@pytest.fixture
def nadi_scope(nadi_server: RestartableServer, nadi_manager: StreamManager) -> Iterator[str]:
    """The name of a new scope, deleted with its contents after the test."""
    scope = f"test-{uuid.uuid4().hex[:12]}"
    nadi_manager.create_scope(scope)
    yield scope
    nadi_server.ensure_running()
    nadi_manager.delete_scope(scope, recursive=True)
