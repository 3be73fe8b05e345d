"""The official Rust client's index streams, in a process of its own: `rust/src/main.rs`, told what to do line by line.

The program is compiled once for all processes of this user, which takes minutes and a gigabyte: in the folder of
CARGO_TARGET_DIR, or one beside other temporary files.
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
BUILD_TIMEOUT_S = 1500  # 350 packages: three minutes of two cores' time, and more where others work
ANSWER_TIMEOUT_S = 60.0

# What cargo says where it can't have the packages.
AWAY = re.compile(r"failed to (?:download|get|fetch|query)|unable to update|spurious network error|offline", re.I)


class OfficialRust:
    """One process with the official client, connected to a controller."""

    def __init__(self, controller_uri: str) -> None:
        command = [program(), controller_uri.rpartition("//")[2]]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, *order: object) -> str:
        """Give an order, and return what it gave; OfficialError if it failed, or the client ended the process."""
        self.begin(*order)
        return self.result()

    def begin(self, *order: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, order)) + "\n")
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
        """The data of up to `most` records; end `-`: what comes is waited for."""
        return [bytes.fromhex(one) for one in self.say("read", start, end, most).split(",")]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@functools.cache
def program() -> str:
    """The compiled program; skips where it is not to be had."""
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
