"""Servers of other systems in separate processes: free ports, waiting for a listener, and their end."""

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
    """Return a port without a listener at this moment."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def await_listening(process: subprocess.Popen[bytes], port: int, timeout_s: float = 60.0) -> None:
    """Wait for a listener. Raises TimeoutError, or ChildProcessError if the process ends before."""
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
    """End the process with the block; after a minute it is killed, and subprocess.TimeoutExpired raised."""
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
