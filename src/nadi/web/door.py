"""Where a server's own doors are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Door:
    """This server's doors. controller: "host:port" of its gRPC. store: of its store, which has all segments; None if
    the controller says who has which. trusted: PEM file of certificates; None for the system's. is_own: that file is
    this server's own certificate, and names in it don't matter."""

    controller: str
    store: tuple[str, int] | None = None
    tls: bool = False
    trusted: str | None = None
    is_own: bool = False
