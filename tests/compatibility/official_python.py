"""The official package `pravega`, in processes of its own, used as though it were in this one.

`OfficialPython().package.StreamManager(uri)` gives a stand-in for the package's object; its methods take
and give stand-ins and plain values. A call that takes longer than the time limit is a failure: the
package stalls for 61 s on answers which it did not expect.
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

# The package may leave a reply unread until a long poll of its own times out after 30 s; on answers that it
# did not expect it stalls for 61 s.
CALL_TIMEOUT_S = 50.0


class OfficialError(Exception):
    """What the package raised: the kind of exception and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class StandIn:
    """An object in the package's process; every method can be called."""

    def __init__(self, process: OfficialPython, number: int) -> None:
        self._process, self._number = process, number

    def __getattr__(self, name: str) -> Method:
        return Method(self._process, self, name)


class Method:
    """A function of an object in the package's process, or of what the object holds."""

    def __init__(self, process: OfficialPython, target: StandIn, path: str) -> None:
        self._process, self._target, self._path = process, target, path

    def __getattr__(self, name: str) -> Method:
        return Method(self._process, self._target, f"{self._path}.{name}")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self._process.begin(self._target, self._path, *arguments, **keywords)
        return self._process.result()


class OfficialPython:
    """One process with the package in it. `package` is the module, `extras` what is beside it."""

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
        """Start a call, for whose `result` is asked later."""
        self._connection.send(
            (target._number, name, [_sent(a) for a in arguments], {k: _sent(v) for k, v in keywords.items()})
        )

    def result(self) -> Any:
        found = self._receive()
        if isinstance(found, Failed):
            raise OfficialError(found.kind, found.message)
        return StandIn(self, found.number) if isinstance(found, Reference) else found

    def _receive(self) -> Any:
        if not self._connection.poll(CALL_TIMEOUT_S):
            self.close()
            pytest.fail(f"the official package did not answer within {CALL_TIMEOUT_S:.0f} s")
        return self._connection.recv()

    def close(self) -> None:
        """End the process as it stands; nothing in it needs an orderly end."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


def _sent(value: Any) -> Any:
    if isinstance(value, list):
        return [_sent(each) for each in value]
    return Reference(value._number) if isinstance(value, StandIn) else value


def installed() -> bool:
    return importlib.util.find_spec("pravega_client") is not None
