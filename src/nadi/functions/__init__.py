"""Functions that streams trigger: a Python handler or an HTTP service gets each event of a stream.

`definition` defines a function. `supervisor` runs it with as many workers as its unread data needs (`plan`). Each
`worker` reads as a member of the function's reader group, calls the handler with batches (`handlers`), retries and
halves failed batches, writes dead letters (`process.DeadLetter`), and writes results (`writing`), with
delivery="exactly-once" in transactions. `progress` stores the function's status.

Exported names are imported on first use, because the handler's process needs few modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadi.functions.definition import Function, function
    from nadi.functions.handlers.address import TargetAddress
    from nadi.functions.handlers.event import Context, FunctionError, FunctionStoppedError, HandlerEvent, Reject
    from nadi.functions.progress import functions_of
    from nadi.functions.supervisor import run, serve

_HOMES = {
    "Context": "handlers.event",
    "HandlerEvent": "handlers.event",
    "Function": "definition",
    "FunctionError": "handlers.event",
    "FunctionStoppedError": "handlers.event",
    "Reject": "handlers.event",
    "TargetAddress": "handlers.address",
    "function": "definition",
    "functions_of": "progress",
    "run": "supervisor",
    "serve": "supervisor",
}

__all__ = [
    "Context",
    "Function",
    "FunctionError",
    "FunctionStoppedError",
    "HandlerEvent",
    "Reject",
    "TargetAddress",
    "function",
    "functions_of",
    "run",
    "serve",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'nadi.functions' has no attribute {name!r}")
        return getattr(import_module(f"nadi.functions.{_HOMES[name]}"), name)
