"""Tracks the containers that this store owns, and so the segments it serves.

The number of containers is fixed when the store is created; a segment's name determines its container. A store owns all
containers or some of them, and acquires and releases containers while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from crc32c import crc32c

from nadi.errors import NotOwnerError
from nadi.naming import INTERNAL_SCOPE, container_key
from nadi.segmentstore.container.container import Container

Placement = Callable[[int], str]
"""The address, "host:port", of the store that owns the container of that number; "" if unknown."""

CONTROLLER_CONTAINER = 0
_RECORDS = f"{INTERNAL_SCOPE}/_tables/"


def is_record(segment: str) -> bool:
    """Return whether the segment is one of the tables that hold the controller's records.

    >>> is_record("_system/_tables/scopes"), is_record("home/meters/0.#epoch.0")
    (True, False)
    """
    return segment.startswith(_RECORDS)


def container_of(segment: str, count: int) -> int:
    """Return the number, below `count`, of the segment's container: a hash that ignores epochs and transactions, so it
    never changes. The controller's records share one container, whose owner can run the controller.

    >>> container_of("_system/_tables/scopes", 8), container_of("home/meters/0.#epoch.0", 8)
    (0, 7)
    """
    return CONTROLLER_CONTAINER if is_record(segment) else int(crc32c(container_key(segment).encode()) % count)


class ContainerRegistry:
    """The containers that a store owns. count: the number of containers in all. owner_of: returns the owner of a
    container that this store doesn't own."""

    def __init__(
        self,
        count: int,
        containers: Iterable[Container] = (),
        owner_of: Placement = lambda number: "",
    ) -> None:
        self.count = count
        self.owner_of = owner_of
        self._containers = {container.number: container for container in containers}

    def container_of(self, segment: str) -> Container:
        """Return the segment's container; raise NotOwnerError if another store owns it."""
        number = self._number_of(segment)
        container = self._containers.get(number)
        if container is None:
            raise NotOwnerError(segment, self.owner_of(number))
        return container

    def has(self, segment: str) -> bool:
        return self._number_of(segment) in self._containers

    def _number_of(self, segment: str) -> int:
        return 0 if self.count == 1 else container_of(segment, self.count)

    def all(self) -> list[Container]:
        return [self._containers[number] for number in sorted(self._containers)]

    def following(self, number: int) -> Container | None:
        """Return the owned container with the lowest number >= `number`; None if there is none."""
        return next((container for container in self.all() if container.number >= number), None)

    def __contains__(self, number: int) -> bool:
        return number in self._containers

    def add(self, container: Container) -> None:
        assert container.number < self.count, f"there are {self.count} containers"
        self._containers[container.number] = container

    def remove(self, number: int) -> Container:
        """Remove a container: another store owns its segments from now on."""
        return self._containers.pop(number)
