"""Closed or full standard streams, and full files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nadi
from tests.cli.test_streams import Shell

NADI = f"{sys.executable} -m nadi.cli.app"


@pytest.fixture(scope="module", autouse=True)
def streams(shell: Shell) -> None:
    lines = b"".join(os.urandom(50).hex().encode() + b"\n" for _ in range(400_000))
    shell.run("write", "home", "long", "--create", "1", stdin=lines)
    shell.run("write", "home", "short", "--create", "1", stdin=b"a\nb\n")


def bash(server: nadi.standalone.EmbeddedServer, line: str) -> tuple[int, bytes, str]:
    environment = os.environ | {"NADI_CONTROLLER": server.controller_uri, "COLUMNS": "200"}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize(
    "command", ["read home long", "read home short", "stream list home", "stream list home -o csv"]
)
def test_command_with_full_standard_output_fails(server: nadi.standalone.EmbeddedServer, command: str) -> None:
    code, _, error = bash(server, f"{NADI} {command} > /dev/full")
    assert (code, error) == (1, "error: [Errno 28] No space left on device\n")


def test_closed_standard_stream_is_not_reused_for_a_connection(server: nadi.standalone.EmbeddedServer) -> None:
    assert bash(server, f"{NADI} read home short <&-") == (0, b"a\nb\n", "")
    assert bash(server, f"{NADI} read home short 2>&-") == (0, b"a\nb\n", "")
    assert bash(server, f"{NADI} read home short >&-") == (0, b"", "")
    assert bash(server, f"{NADI} stream list home <&- >&- 2>&-") == (0, b"", "")
    assert bash(server, f"{NADI} write home short <&-") == (0, b"", "wrote 0 events, 0 bytes\n")
    assert bash(server, f"{NADI} read home none <&- 2>&-") == (1, b"", "")


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "avro"])
def test_export_to_a_full_disk_fails(server: nadi.standalone.EmbeddedServer, tmp_path: Path, kind: str) -> None:
    code, _, error = bash(server, f"ulimit -f 100; {NADI} export home long {tmp_path}/x.{kind}")
    assert code == 1
    assert f"{tmp_path}/x.{kind}" in error
    assert "file too large" in error.lower()
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
