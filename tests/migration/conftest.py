"""A data folder for migrations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager
from tests.migration.support import LIMITS


@pytest.fixture(scope="package")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data folder of a stopped server, to be copied."""
    folder = tmp_path_factory.mktemp("stopped") / "data"
    with nadi.embedded(folder, environment=LIMITS) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("home")
        manager.create_stream("home", "meters")
    return folder


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "data"))
