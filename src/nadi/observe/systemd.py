"""Telling systemd how a server does: a unit of `Type=notify` is started once it says that it is ready.

It is one datagram to the socket that the environment names; without one nothing is done.
"""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)

VARIABLE = "NOTIFY_SOCKET"


def tell_systemd(state: str) -> None:
    """state: lines such as `READY=1` (sd_notify(3)). That it couldn't be told is logged and no reason to end."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        return
    if path[0] not in "/@":
        log.warning("%s is %r, which is no socket that systemd makes: it isn't told %r", VARIABLE, path, state)
        return
    address = f"\0{path[1:]}" if path[0] == "@" else path  # an abstract one
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)
    except OSError as error:
        log.warning("systemd can't be told %r at %s: %s", state, path, error)
