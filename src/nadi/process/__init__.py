"""Processing a stream with any number of workers: they share its segments, and each position has one owner.

`Processor` is a function of one's own for each event (`processor`). It is built of what search indexers and standing
queries are built of, too: a `worker` follows its share of the segments (`members`, `following`), hands on batches,
and records positions; what it makes is stored once (`outputs`), what it gives up is a `DeadLetter`.

What is named here is imported when it is first asked for.
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
