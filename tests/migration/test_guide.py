"""The commands in docs/migrate.md work as described."""

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

    def run_command(command: str, rest: str = "") -> str:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "NADI_REST": rest}
        ran = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    with (
        nadi.embedded(tmp_path / "nadi-data", rest_port=0) as server,
        StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("home")
        run_command(look)
        run_command(move, server.rest_uri)
    run_command(undo)
    run_command(move)
    assert "nadi up --data" in run_command(back)
    with nadi.embedded(tmp_path / "nadi-back") as server, StreamManager(server.controller_uri) as manager:
        assert "home" in manager.list_scopes()
