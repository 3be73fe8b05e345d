"""The official package `pravega` in separate processes, used as though it were in this one.

`OfficialPython().package.StreamManager(uri)` returns a proxy of the package's object; its methods accept and return
proxies and plain values. A call over the time limit fails: the package stalls for 61 s after unexpected answers.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.compatibility.official_process import EXTRAS, PACKAGE, Failed, Reference
from tests.compatibility.recording_server import ROOT

# The package may leave a reply unread until its long poll times out after 30 s, and stalls for 61 s after unexpected
# answers.
CALL_TIMEOUT_S = 50.0


class OfficialError(Exception):
    """Error raised by the package, with the kind of exception and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class StandIn:
    """Proxy of an object in the package's process, with all its methods."""

    def __init__(self, process: OfficialPython, number: int) -> None:
        self._process, self._number = process, number

    def __getattr__(self, name: str) -> Method:
        return Method(self._process, self, name)


class Method:
    """Function of an object in the package's process, or of one of its attributes."""

    def __init__(self, process: OfficialPython, target: StandIn, path: str) -> None:
        self._process, self._target, self._path = process, target, path

    def __getattr__(self, name: str) -> Method:
        return Method(self._process, self._target, f"{self._path}.{name}")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self._process.begin(self._target, self._path, *arguments, **keywords)
        return self._process.result()


class OfficialPython:
    """Process with the package. `package`: the module; `extras`: additional operations."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        program = "from tests.compatibility.official_process import main; main()"  # not as __main__: it pickles
        command = [sys.executable, "-c", program, str(theirs.fileno())]
        settings = {**os.environ, "RUST_BACKTRACE": "0"}
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, env=settings)
        theirs.close()
        self._connection = Connection(ours.detach())
        self.package = StandIn(self, PACKAGE)
        self.extras = StandIn(self, EXTRAS)
        self._receive()

    def begin(self, target: StandIn, name: str, *arguments: Any, **keywords: Any) -> None:
        """Start a call; `result` returns its outcome."""
        self._connection.send(
            (target._number, name, [_sent(a) for a in arguments], {k: _sent(v) for k, v in keywords.items()})
        )

    def result(self) -> Any:
        outcome = self._receive()
        if isinstance(outcome, Failed):
            raise OfficialError(outcome.kind, outcome.message)
        return StandIn(self, outcome.number) if isinstance(outcome, Reference) else outcome

    def _receive(self) -> Any:
        if not self._connection.poll(CALL_TIMEOUT_S):
            self.close()
            pytest.fail(f"the official package didn't answer within {CALL_TIMEOUT_S:.0f} s")
        return self._connection.recv()

    def close(self) -> None:
        """Kill the process, which needs no clean end."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


def _sent(value: Any) -> Any:
    if isinstance(value, list):
        return [_sent(each) for each in value]
    return Reference(value._number) if isinstance(value, StandIn) else value


def installed() -> bool:
    return importlib.util.find_spec("pravega_client") is not None
