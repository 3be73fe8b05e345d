"""Where a server's own doors are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Door:
    """This server's doors. controller: "host:port" of its gRPC. endpoint_of: host and port of the store that has a
    segment; None if the controller says that. trusted: PEM file of certificates; None for the system's. is_own: that
    file is this server's own certificate, and names in it don't matter. token: with which the server itself may do
    anything with its segments; "" if that needs none, or clients bring their own."""

    controller: str
    endpoint_of: Callable[[str], tuple[str, int]] | None = None
    tls: bool = False
    trusted: str | None = None
    is_own: bool = False
    token: str = ""
