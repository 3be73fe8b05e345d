"""Environments with the packages of `script/bench peers`: one per peer, created once, in a cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nadi-bench"


class NotInstallableError(Exception):
    """A peer's packages are unavailable here; the message has the reason."""


def python_of(name: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of the environment `name`, with the packages; this one if there are none."""
    if not packages:
        return Path(sys.executable)
    folder = CACHE / name
    stamp = folder / "packages"
    if not stamp.exists() or stamp.read_text() != " ".join(packages):
        venv.create(folder, with_pip=True, clear=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*command, "--only-binary=:all:", *packages], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            rmtree(folder)
            lines = done.stderr.strip().splitlines() or ["pip failed"]
            raise NotInstallableError(f"pip can't install {' and '.join(packages)} here ({lines[-1]})")
        stamp.write_text(" ".join(packages))
    return folder / "bin" / "python"
