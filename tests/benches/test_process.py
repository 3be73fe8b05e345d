"""What is said of a process is what it did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.process import FilledFiles, cpu_seconds, disk_bytes, folder_bytes, settle

MB = 1_000_000


def write(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.write(os.urandom(size))
        os.fsync(file.fileno())


def test_bytes_that_went_to_disk(tmp_path: Path) -> None:
    before = disk_bytes(os.getpid())
    write(tmp_path / "file", 8 * MB)
    assert 8 * MB <= disk_bytes(os.getpid()) - before < 9 * MB
    assert folder_bytes(tmp_path) == 8 * MB
    assert folder_bytes(tmp_path / "missing") == 0


def test_processor_time() -> None:
    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) < before + 0.05:
        sum(range(100_000))


def test_zeros_of_new_files_are_told_and_files_used_again_are_not(tmp_path: Path) -> None:
    write(tmp_path / "log-1.nadi", 3 * MB)
    with FilledFiles.watched(tmp_path) as filled:
        assert filled.bytes == 0
        (tmp_path / "log-1.nadi").rename(tmp_path / "log-2.nadi")
        write(tmp_path / "new.tmp", 2 * MB)
        assert filled.bytes == 2 * MB
        (tmp_path / "new.tmp").rename(tmp_path / "log-3.nadi")
        (tmp_path / "log-2.nadi").unlink()
        assert filled.bytes == 2 * MB


def test_a_server_that_never_has_it_all_is_not_waited_for_forever(tmp_path: Path) -> None:
    write(tmp_path / "chunk", 1_000)
    settle(os.getpid(), tmp_path, 1_000, quiet_s=0.3, timeout_s=60)
    with pytest.raises(TimeoutError, match="less than 1,001 bytes"):
        settle(os.getpid(), tmp_path, 1_001, quiet_s=0.1, timeout_s=0.5)
