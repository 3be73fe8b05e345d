"""The ports of a server: which are free, and errors about those that aren't."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from nadi.errors import UnavailableError

_TRIED = 1_000  # ports after the controller's


def free_ports(host: str, after: int, count: int, taken: Collection[int] = ()) -> range:
    """The next `count` ports in a row that nobody listens at and that aren't in `taken`; none if there are too few."""
    first = after + 1
    for port in range(first, min(first + _TRIED, 65_536)):
        if port in taken or bind_error(host, port) is not None:
            first = port + 1
        elif port - first + 1 == count:
            return range(first, port + 1)
    return range(0)


def bind_error(host: str, port: int) -> OSError | None:
    """Why nobody can listen there now; None if one can."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, port))
    except OSError as error:
        return error
    return None


@contextmanager
def listening(host: str, port: int, option: str) -> Iterator[None]:
    """UnavailableError, which names the option to change, if that fails."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # gRPC's are RuntimeErrors without a reason
        why = bind_error(host, port) or error
        others = "" if option == "--port" else "; `nadi up --port N` chooses it next to N"
        raise UnavailableError(
            f"can't listen on {host}:{port} ({why}): stop what uses it, or give another port as {option}{others}"
        ) from None
