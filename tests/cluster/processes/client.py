"""A client in a process of its own that nobody kills.

It has a folder. While it runs, the file `progress` there says how far it is, a number for each thing it does. At a line
on its standard input it settles what is under way and writes the file `settled`; at the next one it writes the file
`promised`, with all it was promised, and ends.
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
    """What a client was promised. written, acknowledged: events by key. committed, uncertain: numbers of events by
    key, of each transaction, by the number of its writer. counted: updates of the counter that were acknowledged;
    doubtful: those without an answer. read: by key, how many events its reader has seen, None if it has no reader."""

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
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        with (self.folder / "said").open("a") as said:
            return subprocess.Popen(
                self._command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                text=True,
                process_group=0,
                env=self._environment,
            )

    @property
    def has_ended(self) -> int | None:
        """The code of its process, None while that runs."""
        return self._process.poll()

    def check(self) -> None:
        """AssertionError if it saw what may not be."""
        if (code := self.has_ended) is not None:
            raise AssertionError(f"{self.name} ended with {code}:\n{self.said()}")

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")[-3000:]

    def progress(self) -> dict[str, float]:
        file = self.folder / "progress"
        if file.exists():
            self._progress = msgspec.json.decode(file.read_bytes(), type=dict[str, float])
        return self._progress

    def tell(self) -> None:
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
            assert time.monotonic() < deadline, f"{self.name} has not {name} within {limit_s:.0f} s:\n{self.said()}"
            time.sleep(0.02)

    def promised(self) -> Promised:
        self.tell()
        self.await_file("promised")
        return msgspec.json.decode((self.folder / "promised").read_bytes(), type=Promised)

    def restart(self) -> None:
        """Begin anew, once it has ended."""
        self.close()
        self._process = self._started()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def put(file: Path, what: Any) -> None:
    """Whole, or not at all."""
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(what))
    new.replace(file)
