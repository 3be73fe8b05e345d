"""Ports for servers that must be told one."""

from __future__ import annotations

import contextlib
import secrets
import socket

_given: list[contextlib.ExitStack] = []  # of this process, until it ends


def free_port(host: str = "127.0.0.1", count: int = 1) -> int:
    """The first of so many, one after the other, that nobody listens at.

    Below the range of ephemeral ports: no outgoing connection, and no server of another test, takes it meanwhile. Nor
    is it given again while this process lives, here or in another that runs tests, though its server is down.
    """
    while True:
        first = 20_000 + secrets.randbelow(10_000)
        with contextlib.ExitStack() as taken, contextlib.ExitStack() as given, contextlib.suppress(OSError):
            for port in range(first, first + count):
                given.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0nadi-tests-{port}")
                taken.enter_context(socket.socket()).bind((host, port))
            _given.append(given.pop_all())
            return first
