"""Copies of folders."""

from __future__ import annotations

import shutil
from pathlib import Path


def as_a_kill_leaves_it(folder: Path, copy: Path) -> None:
    """Copy a folder in use as a kill would leave it, without unfinished files that don't count yet."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.tmp"))
