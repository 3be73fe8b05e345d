"""The tests' side of a recording server: starts it, opens doors, and gets the record when it stops."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tests.compatibility import record
from tests.compatibility.record import Record
from tests.compatibility.recording_main import Opened, Order

ROOT = Path(__file__).parents[2]
ANSWER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class RecordingServer:
    """Running server; `record` is filled once it is stopped."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._target = folder / "record.json"
        self.record: Record = {}
        command = [sys.executable, "-m", "tests.compatibility.recording_main", str(folder / "data"), str(self._target)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        self._answer()

    def open_door(self, client: str, test: str) -> Opened:
        """Return addresses for `client`, valid until the doors of `test` are closed."""
        return self._order(Order(test, client))

    def close_doors(self, test: str) -> None:
        """Close the doors of `test`, and their connections."""
        self._order(Order(test))

    def _order(self, order: Order) -> Opened:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Opened:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)
        line = self._process.stdout.readline() if readable else b""
        assert line, f"no answer from the recording server (exit code {self._process.poll()}): see its messages"
        return msgspec.json.decode(line, type=Opened)

    def stop(self) -> None:
        """Stop cleanly."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()
        assert code == 0, f"the recording server ended with {code}; see its messages"
        self.record = record.decode(self._target.read_bytes())
