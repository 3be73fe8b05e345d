"""The examples of docs/ingest.md run as printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nadi

DOCUMENT = Path(__file__).parents[2] / "docs" / "ingest.md"


@pytest.mark.timeout(400)  # two dozen commands
@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are for curl")
def test_the_examples_of_the_guide(tmp_path: Path) -> None:
    blocks = re.findall(r"```console\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    steps = [step.partition("\n") for text in blocks for step in re.split(r"^\$ ", text, flags=re.M)[1:]]
    assert len(steps) > 8
    functions = ""  # of the shell, which later steps use
    with nadi.embedded(tmp_path / "data", rest_port=0) as server:
        env = {
            **os.environ,
            "NADI": server.rest_uri,
            "NADI_CONTROLLER": server.controller_uri,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "120",
        }
        for command, _, printed in steps:
            if re.match(r"\w+\(\)", command):
                functions += command + "\n"
                continue
            done = subprocess.run(
                ["bash", "-c", functions + command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
            )
            assert (done.stdout + done.stderr).rstrip("\n") == printed.rstrip("\n"), command
