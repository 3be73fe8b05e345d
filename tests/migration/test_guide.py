"""The command lines of docs/migrate.md do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)


def test_the_guide(tmp_path: Path) -> None:
    look, move, back, undo = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/migrate.md").read_text(), re.DOTALL)

    def done(command: str, rest: str = "") -> str:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {**os.environ, "PATH": path, "NADI_REST": rest}
        ran = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, env=own, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    with (
        nadi.embedded(tmp_path / "nadi-data", rest_port=0) as server,
        StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        assert "can go there" in done(look)
        assert "writers are held" in done(move, server.rest_uri)
    assert "can be served again" in done(undo)
    assert "moved" in done(move)
    assert "nadi up --data" in done(back)
    with nadi.embedded(tmp_path / "nadi-back") as server, StreamManager(server.controller_uri) as manager:
        assert "home" in manager.list_scopes()
