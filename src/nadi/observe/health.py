"""Health: a tree of the server's components with their current states.

The server process provides the tree; component names are unique in it. A component is ready if it works now, and alive
if it will do so again without a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec


class HealthStatus(Enum):
    NEW = "NEW"
    STARTING = "STARTING"
    UP = "UP"
    DOWN = "DOWN"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


class Component(msgspec.Struct, frozen=True):
    """A component; if it has children, its state is derived from theirs (see `parent`)."""

    name: str
    status: HealthStatus
    readiness: bool
    liveness: bool
    details: dict[str, Any]
    children: dict[str, Component]

    def find(self, name: str) -> Component | None:
        if self.name == name:
            return self
        matches = (child.find(name) for child in self.children.values())
        return next((component for component in matches if component is not None), None)


def leaf(name: str, status: HealthStatus, details: dict[str, Any] | None = None) -> Component:
    alive = status in (HealthStatus.NEW, HealthStatus.STARTING, HealthStatus.UP)
    return Component(name, status, status is HealthStatus.UP, alive, details or {}, {})


def parent(name: str, children: Iterable[Component]) -> Component:
    """Return the component made up of `children`, with the worst of their states."""
    members = {child.name: child for child in children}
    order = (HealthStatus.FAILED, HealthStatus.DOWN, HealthStatus.UNKNOWN, HealthStatus.NEW, HealthStatus.STARTING)
    states = {child.status for child in members.values()}
    return Component(
        name,
        next((status for status in order if status in states), HealthStatus.UP),
        all(child.readiness for child in members.values()),
        all(child.liveness for child in members.values()),
        {},
        members,
    )
