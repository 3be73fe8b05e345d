"""Servers of others, in processes of their own: free ports, waiting until one listens, and its end."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.1"
_LOOK_S = 0.01  # between two tries; some servers are up after twenty milliseconds
_END_S = 60.0


def free_port() -> int:
    """One that nobody listens on at this moment."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def await_listening(process: subprocess.Popen[bytes], port: int, timeout_s: float = 60.0) -> None:
    """Return once somebody takes connections. Raises TimeoutError, or ChildProcessError if the process ends before."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
            return
        except OSError:
            if process.poll() is not None:
                raise ChildProcessError(f"{process.args!r} ended with {process.returncode}") from None
            if time.monotonic() > end:
                raise TimeoutError(f"{process.args!r} doesn't listen after {timeout_s:.0f} s") from None
            time.sleep(_LOOK_S)


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Has the process end at the end; one that takes more than a minute is killed, and subprocess.TimeoutExpired tells
    so."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except BaseException:
            process.kill()
            process.wait()
            raise
