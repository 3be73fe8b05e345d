"""Processes of a history: each may be killed, and is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.processes.patience import PATIENCE_S, ROOT


class Part:
    """Process, and its successors."""

    def __init__(self, name: str, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name, self._words = name, [sys.executable, "-m", *words]
        self._log, self._environment = folder / f"{name}.log", {**os.environ, **environment}
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                self._words, stdout=log, stderr=log, env=self._environment, cwd=ROOT, process_group=0
            )

    def check(self) -> None:
        """Raise AssertionError if the process has ended."""
        code = self._process.poll()
        assert code is None, f"the {self.name} ended unexpectedly with {code}:\n{self.log_tail()}"

    def kill(self) -> None:
        """Kill the process, and start the next one."""
        self.check()
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._process = self._start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the process, as on a suspended machine."""
        self.check()
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the process by SIGTERM; AssertionError if it fails."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(PATIENCE_S)
        assert code == 0, f"the {self.name} ended with {code} when it was stopped:\n{self.log_tail()}"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_S)

    def log_tail(self, most: int = 4000) -> str:
        return self._log.read_text()[-most:]
