"""A repair that is interrupted at any moment can be done again, and ends in the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nadi
from tests.cli.test_check_and_repair import HOLD, command, flip
from tests.segmentstore.dying_main import DIED
from tests.segmentstore.state_tables import Records, copy_of, recovered


def killed_at(step: int, folder: Path) -> bool:
    """Whether a repair that is killed at that step came to it."""
    command = [sys.executable, "-m", "tests.segmentstore.dying_main", str(folder), str(step)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, DIED), ended.stderr
    return ended.returncode == DIED


@pytest.fixture
def unreadable(tmp_path: Path) -> Path:
    """A folder in whose log a frame can't be read."""
    folder = tmp_path / "data"
    with nadi.embedded(folder, containers=1, environment={"NADI_LIMITS": HOLD}) as server:
        with nadi.StreamManager(server.controller_uri) as manager:
            manager.create_scope("s")
            manager.create_stream("s", "t", 1)
            with manager.create_writer("s", "t") as writer:
                for number in range(40):
                    writer.write_event(b"late-%d" % number, "key").result(60)
        server.kill()
    log = next(path for path in folder.glob("container-0/log/log-*.nadi") if b"late-20" in path.read_bytes())
    flip(log, log.read_bytes().index(b"late-20") // 4096 * 4096 + 9)
    return folder


def what_counts(folder: Path) -> Records:
    (found,) = recovered(folder)
    return {name: found[name] for name in ("segments", "extents", "entries", "names")}


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_repair_that_is_killed_is_done_again(unreadable: Path, stride: int) -> None:
    folder = unreadable
    pristine = copy_of(folder, "pristine")
    assert "a server can be started" in command("repair", folder, "--yes").output
    expected = what_counts(folder)
    step = 0
    while True:
        shutil.rmtree(folder)
        shutil.copytree(pristine, folder)
        if not killed_at(step, folder):
            break
        told = command("repair", folder, "--yes")
        assert "a server can be started" in told.output or "what is left is sound" in told.output, (step, told.output)
        assert what_counts(folder) == expected, step
        step += stride
        assert step < 100
    assert step > 5
