"""A client, a scope and a folder for each test; PyIceberg is an extra."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import nadi
from nadi.testing import RestartableServer

pytest.importorskip("pyiceberg")
_numbers = itertools.count()


@pytest.fixture
def manager(nadi_server: RestartableServer) -> Iterator[nadi.StreamManager]:
    with nadi.StreamManager(nadi_server.controller_uri) as manager:
        yield manager


@pytest.fixture
def scope(manager: nadi.StreamManager) -> str:
    name = f"home{next(_numbers)}"
    manager.create_scope(name)
    return name
