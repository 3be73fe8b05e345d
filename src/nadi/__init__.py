"""nadi: streams that are kept, bookmarked, cut into slices, and replayed.

>>> import nadi
>>> nadi.StreamCut("home", "meters", {0: 100}).positions[0]
100
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# gRPC's fork support resets its threads in every forked child, and aborts about one child in twenty while a channel is
# busy, even a child that only calls exec. PySpark then sometimes fails to start Java. A client can't be used after a
# fork anyway. gRPC reads this variable once, on first import.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if TYPE_CHECKING:
    from nadi import errors
    from nadi.client import (
        Basic,
        Bearer,
        ClientCertificate,
        Event,
        EventTime,
        EventWriter,
        RetentionPolicy,
        ScalingPolicy,
        StreamManager,
        Transaction,
    )
    from nadi.client.scan.scan import scan
    from nadi.client.scan.split import Split
    from nadi.client.streamtables.change_writer import write_changes
    from nadi.client.streamtables.table import stream_table
    from nadi.client.streamtables.writing import write_rows
    from nadi.errors import NadiError
    from nadi.model.streamcut import StreamCut
    from nadi.observe.traces import turn_on_traces
    from nadi.standalone import ServerSecurity, embedded

    __version__: str

__all__ = [
    "Basic",
    "Bearer",
    "ClientCertificate",
    "Event",
    "EventTime",
    "EventWriter",
    "NadiError",
    "RetentionPolicy",
    "ScalingPolicy",
    "ServerSecurity",
    "Split",
    "StreamCut",
    "StreamManager",
    "Transaction",
    "embedded",
    "errors",
    "scan",
    "stream_table",
    "turn_on_traces",
    "write_changes",
    "write_rows",
]

# imported on first access, so that `import nadi` is cheap; names missing here come from nadi.client
_HOMES = {
    "NadiError": "nadi.errors",
    "StreamCut": "nadi.model.streamcut",
    "ServerSecurity": "nadi.standalone",
    "Split": "nadi.client.scan.split",
    "embedded": "nadi.standalone",
    "scan": "nadi.client.scan.scan",
    "stream_table": "nadi.client.streamtables.table",
    "turn_on_traces": "nadi.observe.traces",
    "write_changes": "nadi.client.streamtables.change_writer",
    "write_rows": "nadi.client.streamtables.writing",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})  # completion also offers names that aren't imported yet


if not TYPE_CHECKING:  # a type checker would accept every misspelt name

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return import_module("importlib.metadata").version("nadi")
        if name not in __all__:
            raise AttributeError(f"module 'nadi' has no attribute {name!r}")
        if name == "errors":
            return import_module("nadi.errors")
        return getattr(import_module(_HOMES.get(name, "nadi.client")), name)
