"""The kinds of work that workflows do: their order, what each changes, and what its steps may return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from nadi.controller.engine.hold import Hold
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import (
    AnyWork,
    CreateGroupWork,
    CreateTableWork,
    CreateWork,
    DeleteGroupWork,
    DeleteScopeWork,
    DeleteTableWork,
    DeleteWork,
    RollWork,
    ScaleWork,
    SealWork,
    TruncateWork,
    UpdateGroupWork,
    UpdateWork,
)

# They are resumed in this order: inner ones, which others start as part of themselves, come first.
KINDS: dict[str, type[AnyWork]] = {
    "roll": RollWork,
    "scale": ScaleWork,
    "update": UpdateWork,
    "truncate": TruncateWork,
    "seal": SealWork,
    "create": CreateWork,
    "delete": DeleteWork,
    "create_group": CreateGroupWork,
    "update_group": UpdateGroupWork,
    "delete_group": DeleteGroupWork,
    "create_table": CreateTableWork,
    "delete_table": DeleteTableWork,
    "scope": DeleteScopeWork,
}
KIND_OF: dict[type[Any], str] = {kind: label for label, kind in KINDS.items()}
ON_A_STREAM = frozenset(("scale", "update", "truncate", "seal"))  # what changes a stream that is there
# These free space, in their steps or at the end, so they continue on a full disk.
FREES_ROOM = frozenset(("truncate", "seal", "delete", "delete_group", "delete_table", "scope"))

Steps = Callable[[StreamName, Any], Awaitable[None]]


class Refused(Exception):
    """Raised by steps: the work must not be done after all and left nothing behind. `error` goes to whoever asked for
    it; None means that what it started from has changed, so it starts again."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(error)
        self.error = error


class Recorded(NamedTuple):
    """Recorded work: the key and version of its record, and the hold on the turn that it has; None if it is part of
    other work, or an older version recorded it."""

    work: AnyWork
    key: str
    version: int
    hold: Hold | None = None
