"""Lakes: an Iceberg table that is kept level with a stream, and both read as one.

`definition` says what a lake is, `record` keeps it in the store. `writer` writes what lies between the table's cut and
a later one as rows (`rows`) of the table (`table`), and commits them as one snapshot that names that cut (`marks`);
events that are no rows are dead letters. `running` is the process around it. `united` reads table and stream.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadi.lake.definition import LakeDefinition, Options
    from nadi.lake.rebuilding import Rebuilt, rebuild
    from nadi.lake.record import lakes_of, status
    from nadi.lake.running import forget, run, start, stop
    from nadi.lake.table.reaching import LakeStoppedError
    from nadi.lake.united import union
    from nadi.lake.writer import LakeWriter

_HOMES = {
    "LakeDefinition": "definition",
    "LakeStoppedError": "table.reaching",
    "LakeWriter": "writer",
    "Options": "definition",
    "Rebuilt": "rebuilding",
    "forget": "running",
    "lakes_of": "record",
    "rebuild": "rebuilding",
    "run": "running",
    "start": "running",
    "status": "record",
    "stop": "running",
    "union": "united",
}

__all__ = [
    "LakeDefinition",
    "LakeStoppedError",
    "LakeWriter",
    "Options",
    "Rebuilt",
    "forget",
    "lakes_of",
    "rebuild",
    "run",
    "start",
    "status",
    "stop",
    "union",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'nadi.lake' has no attribute {name!r}")
        return getattr(import_module(f"nadi.lake.{_HOMES[name]}"), name)
