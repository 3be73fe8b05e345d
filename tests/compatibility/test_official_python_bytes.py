"""Byte streams of the official `pravega` package and of nadi's client are the same."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import nadi

SCRIPT = Path(__file__).with_name("official_bytes.py")
CONTENT = bytes(range(256)) * 1000


def official(uri: str, step: str) -> str:
    command = [sys.executable, str(SCRIPT), uri, step]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.compatibility
def test_each_reads_what_the_other_wrote(tmp_path: Path) -> None:
    if importlib.util.find_spec("pravega_client") is None:
        pytest.skip("the official package `pravega` has no wheel for this Python")
    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        official(server.controller_uri, "write")
        with manager.create_byte_reader("bytes", "official") as reader:
            assert reader.read() == CONTENT
        with manager.create_byte_writer("bytes", "official") as writer:
            assert writer.tell() == len(CONTENT)
        with manager.create_byte_writer("bytes", "nadi") as writer:
            writer.write(CONTENT)
        assert official(server.controller_uri, "read") == "True\n"
