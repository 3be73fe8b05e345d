"""Copies of folders."""

from __future__ import annotations

import shutil
from pathlib import Path


def as_a_kill_leaves_it(folder: Path, copy: Path) -> None:
    """A copy of a folder that is in use, without the files that are being made and of which nothing counts yet."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.tmp"))
