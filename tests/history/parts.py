"""The processes that one history runs through: each may be killed, and its next one goes on."""

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
    """A process, and the next one after it."""

    def __init__(self, name: str, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name, self._words = name, [sys.executable, "-m", *words]
        self._log, self._environment = folder / f"{name}.log", {**os.environ, **environment}
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                self._words, stdout=log, stderr=log, env=self._environment, cwd=ROOT, process_group=0
            )

    def check(self) -> None:
        """AssertionError if it has ended by itself."""
        code = self._process.poll()
        assert code is None, f"the {self.name} ended by itself, with {code}:\n{self.said()}"

    def kill(self) -> None:
        """As in a crash, and start the next one."""
        self.check()
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._process = self._started()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """As on a machine that is suspended."""
        self.check()
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """As asked by a signal; AssertionError if it doesn't end well."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(PATIENCE_S)
        assert code == 0, f"the {self.name} was told to stop, and ended with {code}:\n{self.said()}"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_S)

    def said(self, most: int = 4000) -> str:
        return self._log.read_text()[-most:]
