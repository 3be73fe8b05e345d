"""Processes a stream with any number of workers, which share its segments; each position has one owner.

`Processor` calls a user's function for each event (`processor`). Search indexers and standing queries use the same
parts: a `worker` follows its share of the segments (`members`, `segment_follower`), handles batches and records
positions. Outputs are stored once (`outputs`); events that fail for good become `DeadLetter`s.

Exported names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadi.process.dead_letters import DeadLetter
    from nadi.process.processor import (
        Processor,
        ProcessorStatus,
        ProcessorStoppedError,
        StreamEvent,
        delete,
        run,
        serve,
        status,
        stop,
    )

__all__ = [
    "DeadLetter",
    "Processor",
    "ProcessorStatus",
    "ProcessorStoppedError",
    "StreamEvent",
    "delete",
    "run",
    "serve",
    "status",
    "stop",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'nadi.process' has no attribute {name!r}")
        home = "dead_letters" if name == "DeadLetter" else "processor"
        return getattr(import_module(f"nadi.process.{home}"), name)
