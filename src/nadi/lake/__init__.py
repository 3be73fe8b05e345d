"""Lakes: an Iceberg table that is kept up to date with a stream, and reading both as one.

`definition` defines a lake and stores the definition. `writer` writes the events between the table's cut and a later
one as rows (`rows`) of the table (`table`), and commits them as one snapshot with that cut; invalid events become dead
letters. `runner` runs the writer as a process. `union_scan` reads table and stream; `rebuilding` makes a stream from a
table.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nadi.lake.definition import LakeDefinition, Options, lakes_of
    from nadi.lake.rebuilding import RebuildResult, rebuild
    from nadi.lake.runner import define, delete, run, status, stop
    from nadi.lake.table.error_mapping import LakeStoppedError
    from nadi.lake.union_scan import union
    from nadi.lake.writer import LakeWriter

_NAMES = {
    "definition": "LakeDefinition Options lakes_of",
    "rebuilding": "RebuildResult rebuild",
    "runner": "define delete run status stop",
    "table.error_mapping": "LakeStoppedError",
    "union_scan": "union",
    "writer": "LakeWriter",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "LakeDefinition",
    "LakeStoppedError",
    "LakeWriter",
    "Options",
    "RebuildResult",
    "define",
    "delete",
    "lakes_of",
    "rebuild",
    "run",
    "status",
    "stop",
    "union",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'nadi.lake' has no attribute {name!r}")
        return getattr(import_module(f"nadi.lake.{_HOMES[name]}"), name)
