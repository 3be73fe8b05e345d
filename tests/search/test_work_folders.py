"""Folders in which shards are made: those of the killed are removed, those in use stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nadi.search.shards.building import clean_work_folders, work_folder

WORK = """
import sys
from nadi.search.shards.building import work_folder
with work_folder() as folder:
    (folder / "file").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_what_killed_ones_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", WORK]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    assert child.stdout is not None
    left = Path(child.stdout.readline().strip())
    with work_folder() as mine:
        for folder in (left, mine):
            os.utime(folder, (time.time() - 3600,) * 2)
        clean_work_folders()
        assert left.is_dir()  # in use
        child.kill()
        child.communicate()
        clean_work_folders()
        assert not left.exists()
        assert mine.is_dir()
        new = tmp_path / "nadi-search-new"
        new.mkdir()
        clean_work_folders()
        assert new.is_dir()  # whoever makes it may be about to lock it
    assert not mine.exists()
