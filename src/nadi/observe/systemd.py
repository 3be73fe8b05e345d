"""Notifications to systemd: a unit of `Type=notify` counts as started once the server reports that it is ready.

A notification is one datagram to the socket named in the environment; without that, nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)

VARIABLE = "NOTIFY_SOCKET"


def notify_systemd(state: str) -> None:
    """Send a state, such as the line `READY=1` (sd_notify(3)). Failures are logged and not raised."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        return
    if path[0] not in "/@":
        log.warning("%s is %r, not a socket of systemd: it isn't notified of %r", VARIABLE, path, state)
        return
    address = f"\0{path[1:]}" if path[0] == "@" else path  # abstract socket
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)
    except OSError as error:
        log.warning("failed to notify systemd of %r at %s: %s", state, path, error)
