"""Addresses of processes under test, and how long they may take."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

PATIENCE_S = 60.0  # for whatever must happen in the end, on a machine that stops for seconds
ROOT = Path(__file__).parents[3]


def free_port(host: str = "127.0.0.1") -> int:
    """Below the range of ephemeral ports: nobody's outgoing connection takes it while a server is down."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
