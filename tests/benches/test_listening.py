"""A server of others is waited for, and ends."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from bench.listening import await_listening, ended
from tests.support.ports import free_port

LISTENS = "import socket, time; server = socket.create_server(('127.0.0.1', {port})); time.sleep(60)"


def start(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program])


def test_one_that_listens_is_waited_for_and_ended() -> None:
    port = free_port()
    process = start(LISTENS.format(port=port))
    with ended(process):
        await_listening(process, port)
        socket.create_connection(("127.0.0.1", port)).close()
    assert process.returncode == -15


def test_one_that_ends_or_never_listens_is_told() -> None:
    with ended(start("raise SystemExit(3)")) as _:
        pass
    process = start("raise SystemExit(3)")
    with ended(process), pytest.raises(ChildProcessError, match="ended with 3"):
        await_listening(process, free_port())
    process = start("import time; time.sleep(60)")
    began = time.monotonic()
    with ended(process), pytest.raises(TimeoutError, match="doesn't listen after 0 s"):
        await_listening(process, free_port(), timeout_s=0.2)
    assert time.monotonic() - began < 30
