"""Index streams of the official Rust client, in a separate process: `rust/src/main.rs`, controlled line by line.

The program is compiled once per user, which takes minutes and a gigabyte, in CARGO_TARGET_DIR or a folder with other
temporary files.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import select
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.compatibility.official_python import OfficialError

PROJECT = Path(__file__).with_name("rust")
BUILD_TIMEOUT_S = 1500  # 350 packages: three minutes on two idle cores
ANSWER_TIMEOUT_S = 60.0

# Cargo's messages if it can't download the packages.
AWAY = re.compile(r"failed to (?:download|get|fetch|query)|unable to update|spurious network error|offline", re.I)


class OfficialRust:
    """Process with the official client, connected to a controller."""

    def __init__(self, controller_uri: str) -> None:
        command = [program(), controller_uri.rpartition("//")[2]]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, *command: object) -> str:
        """Execute a command, and return its result. OfficialError: it failed, or the process ended."""
        self.begin(*command)
        return self.result()

    def begin(self, *command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, command)) + "\n")
        self._process.stdin.flush()

    def result(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)
        kind, _, text = (self._process.stdout.readline() if readable else "late").strip().partition(" ")
        if kind != "ok":
            raise OfficialError(kind or "ended", text)
        return text

    def append(self, *values: int, data: bytes = b"", after: tuple[int, ...] = ()) -> None:
        self.say("append", ",".join(map(str, values)), ",".join(map(str, after)), data.hex())

    def read(self, start: int, end: int | str, most: int) -> list[bytes]:
        """Return the data of up to `most` records; end `-` waits for new ones."""
        return [bytes.fromhex(record) for record in self.say("read", start, end, most).split(",")]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@functools.cache
def program() -> str:
    """Compile the program and return its path; skips if that isn't possible."""
    if shutil.which("cargo") is None:
        pytest.skip("the official Rust client is tested where Rust's `cargo` is installed")
    own = Path(tempfile.gettempdir()) / f"nadi-cargo-{os.getuid()}"
    target = Path(os.environ.get("CARGO_TARGET_DIR", own))
    target.mkdir(parents=True, exist_ok=True)
    with open(target / "nadi.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build = subprocess.run(
            ["cargo", "build", "--locked", "--quiet"],
            cwd=PROJECT,
            env={**os.environ, "CARGO_TARGET_DIR": str(target)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    if build.returncode and AWAY.search(build.stdout):
        pytest.skip(f"cargo can't download the official Rust client: {build.stdout.strip()[-300:]}")
    assert build.returncode == 0, build.stdout[-4000:]
    return str(target / "debug" / "official-index")
