"""The whole system in one process: segment store and controller over one data folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nadi.config import ServerConfig, ServerSecurity
from nadi.standalone.embedded import EmbeddedServer, embedded

if TYPE_CHECKING:
    from nadi.standalone.server import Server

__all__ = ["EmbeddedServer", "Server", "ServerConfig", "ServerSecurity", "embedded"]


if not TYPE_CHECKING:  # to a type checker it would make every misspelt name good

    def __getattr__(name: str) -> Any:
        # imported when first asked for: the parent of an embedded server needs nothing of the server itself
        if name != "Server":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from nadi.standalone.server import Server

        return Server
