"""Functions that streams trigger: a handler in Python, or an HTTP service, gets each event of a stream.

`definition` says what a function is. `supervisor` runs it: it keeps as many workers as there are segments with unread
data (`plan`); each `worker` reads as a member of the function's reader group, calls the handler with batches
(`handlers`), tries again and narrows, sets aside what can't be handled (`process.DeadLetter`), and writes what was
returned (`writing`), with delivery="exactly-once" in transactions. `progress` is what others can see of it.

What is named here is imported when it is first asked for: the handler's process needs next to nothing of it.
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
