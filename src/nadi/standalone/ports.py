"""Finds free ports of a server, and reports ports that can't be used."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from nadi.errors import UnavailableError

_TRIED = 1_000  # ports after the controller's


def free_ports(host: str, after: int, count: int, taken: Collection[int] = ()) -> range:
    """Return the next `count` consecutive free ports that aren't in `taken`; an empty range if there are too few."""
    first = after + 1
    for port in range(first, min(first + _TRIED, 65_536)):
        if port in taken or bind_error(host, port) is not None:
            first = port + 1
        elif port - first + 1 == count:
            return range(first, port + 1)
    return range(0)


def bind_error(host: str, port: int) -> OSError | None:
    """Return the error of listening on that port; None if it is free."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error
    return None


@contextmanager
def listening(host: str, port: int, option: str) -> Iterator[None]:
    """Context of opening a port. UnavailableError: it failed; the message names the option to change."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # gRPC raises RuntimeErrors without a reason
        reason = bind_error(host, port) or error
        hint = "" if option == "--port" else "; `nadi up --port N` chooses a port after N"
        raise UnavailableError(
            f"can't listen on {host}:{port} ({reason}): stop the program that uses it, or set {option}{hint}"
        ) from None
