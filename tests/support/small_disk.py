"""A small file system for tests to fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[Path]:
    """Mount a file system of that size at a new folder. Skips the test if that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "nadi-test", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, timeout=60, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs can't be mounted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], timeout=60, check=True)


def fill(folder: Path) -> Path:
    """Fill the folder's disk; return the file to delete to free space."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return ballast
    raise AssertionError("writing failed for another reason than a full disk")
