"""Client in a separate process that is never killed.

While it runs, the file `progress` in its folder counts its operations by kind. At the first line on its standard input
it completes operations under way and writes the file `settled`; at the second it writes the file `promised` with all
its acknowledgements, and ends.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.cluster.processes.patience import PATIENCE_S, ROOT

SETTLED_S = 2 * PATIENCE_S


class Promised(msgspec.Struct):
    """Acknowledgements of one client. written, acknowledged: events by key. committed, uncertain: numbers of events by
    key, of each transaction, by the number of its writer. counted: acknowledged updates of the counter; doubtful:
    unanswered ones. read: number of events per key that its reader has seen, None without a reader."""

    written: dict[str, int] = {}
    acknowledged: dict[str, int] = {}
    committed: dict[int, dict[int, dict[str, int]]] = {}
    uncertain: dict[int, dict[int, dict[str, int]]] = {}
    aborted: int = 0
    counted: int = 0
    doubtful: int = 0
    read: dict[str, int] | None = None
    read_events: int = 0


class Client:
    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.name, self.folder, self._command = name, folder, list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._progress: dict[str, float] = {}
        self._process = self._start_process()

    def _start_process(self) -> subprocess.Popen[str]:
        with (self.folder / "said").open("a") as output:
            return subprocess.Popen(
                self._command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                process_group=0,
                env=self._environment,
            )

    @property
    def has_ended(self) -> int | None:
        """Return the exit code of the process, None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raise AssertionError if the client has ended, as it does when it detects an error."""
        if (code := self.has_ended) is not None:
            raise AssertionError(f"{self.name} ended with {code}:\n{self.output()}")

    def output(self) -> str:
        return (self.folder / "said").read_text(errors="replace")[-3000:]

    def progress(self) -> dict[str, float]:
        file = self.folder / "progress"
        if file.exists():
            self._progress = msgspec.json.decode(file.read_bytes(), type=dict[str, float])
        return self._progress

    def signal(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def has(self, name: str) -> bool:
        if (self.folder / name).exists():
            return True
        self.check()
        return False

    def await_file(self, name: str, limit_s: float = SETTLED_S) -> None:
        deadline = time.monotonic() + limit_s
        while not self.has(name):
            assert time.monotonic() < deadline, f"{self.name}: no {name} within {limit_s:.0f} s:\n{self.output()}"
            time.sleep(0.02)

    def promised(self) -> Promised:
        self.signal()
        self.await_file("promised")
        return msgspec.json.decode((self.folder / "promised").read_bytes(), type=Promised)

    def restart(self) -> None:
        """Start the process again after it has ended."""
        self.close()
        self._process = self._start_process()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def put(file: Path, value: Any) -> None:
    """Replace a file atomically."""
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(value))
    new.replace(file)
