"""Free ports for servers that can't choose their own."""

from __future__ import annotations

import contextlib
import secrets
import socket

_given: list[contextlib.ExitStack] = []  # by this process, until it ends


def free_port(host: str = "127.0.0.1", count: int = 1) -> int:
    """Return the first of `count` consecutive free ports.

    They are below the range of ephemeral ports, so neither outgoing connections nor other tests' servers take them
    meanwhile. They aren't returned again while this process lives, here or in other test processes.
    """
    while True:
        first = 20_000 + secrets.randbelow(10_000)
        with contextlib.ExitStack() as taken, contextlib.ExitStack() as given, contextlib.suppress(OSError):
            for port in range(first, first + count):
                given.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0nadi-tests-{port}")
                taken.enter_context(socket.socket()).bind((host, port))
            _given.append(given.pop_all())
            return first
