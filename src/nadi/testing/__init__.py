"""The test kit: a real server, helpers to fill and read streams, and crashes on demand.

pytest loads the fixtures of `nadi.testing.plugin` automatically if nadi is installed: `nadi_server` (one per run),
`nadi_manager` and `nadi_scope` (new for each test). Everything here works without pytest, too. See docs/testing.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadi.testing.server import RestartableServer
    from nadi.testing.streams import await_events, fill_stream, read_stream

__all__ = ["RestartableServer", "await_events", "fill_stream", "read_stream"]

if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> Any:
        # imported on first access: pytest loads this package in every run
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{'server' if name == 'RestartableServer' else 'streams'}"), name)
