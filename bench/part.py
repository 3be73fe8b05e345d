"""A process of a bench: it reports when it is ready, logs errors to a file, and ends with the bench."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[1]
READY_S = 600.0  # Spark takes minutes on a machine that is busy
_READY = "ready"


class PartFailedError(Exception):
    """A process of the bench ended too early, or not at all; the message has the end of its output."""


def say_ready() -> None:
    print(_READY, flush=True)


class Part:
    """`command` in a separate process, killed at the end of the block if it still runs.

    name: for messages, and for the file in `logs` with its standard error.
    """

    def __init__(self, name: str, command: list[str], logs: Path) -> None:
        self.name, self._log = name, logs / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    @classmethod
    def of_module(cls, name: str, module: str, logs: Path, *arguments: str) -> Part:
        return cls(name, [sys.executable, "-m", module, *arguments], logs)

    def await_ready(self) -> None:
        assert self._process.stdout is not None
        too_late = threading.Timer(READY_S, self._process.kill)
        too_late.start()
        try:
            for line in self._process.stdout:
                if line.strip() == _READY:
                    return
        finally:
            too_late.cancel()
        self._process.wait()
        raise PartFailedError(self._said(f"was not ready within {READY_S:.0f} s, or ended before"))

    def notify(self) -> None:
        """Write an empty line to its standard input: for processes that wait for it to start or to stop."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def check(self) -> None:
        """Raise PartFailedError if it has ended with an error."""
        if self._process.poll():
            raise PartFailedError(self._said(f"ended with {self._process.returncode}"))

    def await_end(self, timeout_s: float) -> None:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise PartFailedError(self._said(f"has not ended within {timeout_s:.0f} s")) from None
        self.check()

    def await_answer(self, timeout_s: float) -> str:
        """Return its standard output from when it was ready until it ends, without sending anything; PartFailedError if
        it fails."""
        try:
            answer, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise PartFailedError(self._said(f"has not answered within {timeout_s:.0f} s")) from None
        self.check()
        return answer

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> Part:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.is_running:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _said(self, what: str) -> str:
        return f"{self.name} {what}; it wrote:\n{self._log.read_text()[-2000:]}"
