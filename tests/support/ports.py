"""Ports for servers that must be told one."""

from __future__ import annotations

import contextlib
import secrets
import socket


def free_port(host: str = "127.0.0.1", count: int = 1) -> int:
    """The first of so many, one after the other, that nobody listens at.

    Below the range of ephemeral ports: no outgoing connection, and no server of another test, takes it meanwhile.
    """
    while True:
        first = 20_000 + secrets.randbelow(10_000)
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            for port in range(first, first + count):
                taken.enter_context(socket.socket()).bind((host, port))
            return first
