"""Health: a tree of the server's components, each telling its state as it is at the time of asking.

Whoever runs the server gives the tree; a component is found by its name, which is unique in the tree.
A component is ready when it does its work now, alive when it will do so again without a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from nadi.controller.rest.bodies import Given
from nadi.controller.rest.replies import reply
from nadi.errors import NotFoundError

if TYPE_CHECKING:
    from nadi.controller.rest.endpoint import Call


class Status(Enum):
    NEW = "NEW"
    STARTING = "STARTING"
    UP = "UP"
    DOWN = "DOWN"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


class Component(Given, frozen=True):
    """One component; with children its state follows from theirs (`parent`)."""

    name: str
    status: Status
    readiness: bool
    liveness: bool
    details: dict[str, Any]
    children: dict[str, Component]

    def find(self, name: str) -> Component | None:
        if self.name == name:
            return self
        found = (child.find(name) for child in self.children.values())
        return next((component for component in found if component is not None), None)


def leaf(name: str, status: Status, details: dict[str, Any] | None = None) -> Component:
    alive = status in (Status.NEW, Status.STARTING, Status.UP)
    return Component(name, status, status is Status.UP, alive, details or {}, {})


def parent(name: str, children: Iterable[Component]) -> Component:
    """The component made of `children`: as well as the worst of them."""
    members = {child.name: child for child in children}
    order = (Status.FAILED, Status.DOWN, Status.UNKNOWN, Status.NEW, Status.STARTING)
    states = {child.status for child in members.values()}
    return Component(
        name,
        next((status for status in order if status in states), Status.UP),
        all(child.readiness for child in members.values()),
        all(child.liveness for child in members.values()),
        {},
        members,
    )


def _component(call: Call) -> Component:
    root = call.api.health()
    wanted = call.request.path_params.get("id")
    found = root if wanted is None else root.find(str(wanted))
    if found is None:
        raise NotFoundError(f"there is no component {wanted!r}: see /v1/health for their names")
    return found


async def health(call: Call) -> Response:
    return reply(_component(call))


async def readiness(call: Call) -> Response:
    return reply(_component(call).readiness)


async def liveness(call: Call) -> Response:
    return reply(_component(call).liveness)


async def details(call: Call) -> Response:
    return reply(_component(call).details)


async def status(call: Call) -> Response:
    return reply(_component(call).status)
