"""The test kit: a real server for your tests, streams to fill and read, and crashes when you want them.

If nadi is installed, pytest finds the fixtures of `nadi.testing.plugin` by itself: `nadi_server` (one for the
whole run), `nadi_manager` and `nadi_scope` (fresh for each test). Everything here works without pytest too.
docs/testing.md is the guide.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadi.testing.server import RestartableServer
    from nadi.testing.streams import await_events, fill_stream, read_stream

__all__ = ["RestartableServer", "await_events", "fill_stream", "read_stream"]

if not TYPE_CHECKING:  # to a type checker it would make every misspelt name good

    def __getattr__(name: str) -> Any:
        # imported when first asked for: pytest loads this package in every run, also in those that use nothing of it
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{'server' if name == 'RestartableServer' else 'streams'}"), name)
