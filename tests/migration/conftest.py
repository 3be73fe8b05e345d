"""A data folder to be moved."""

from __future__ import annotations

from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager
from tests.migration.support import LIMITS


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with nadi.embedded(folder, environment=LIMITS) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters")
    return folder
