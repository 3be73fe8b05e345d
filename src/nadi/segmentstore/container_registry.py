"""Which of all containers this store has, and so which segments it answers for.

The number of containers is fixed forever; a segment's name says which one it is in. A store has all containers or some
of them; it takes over others and gives some up while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from crc32c import crc32c

from nadi.errors import NotOwnerError
from nadi.naming import INTERNAL_SCOPE, container_key
from nadi.segmentstore.container.container import Container

Placement = Callable[[int], str]
"""The address, "host:port", of the store that has the container of that number; "" if it isn't known."""

CONTROLLER_CONTAINER = 0
_RECORDS = f"{INTERNAL_SCOPE}/_tables/"


def is_record(segment: str) -> bool:
    """Whether it is one of the tables that the controller keeps its records in.

    >>> is_record("_system/_tables/scopes"), is_record("home/meters/0.#epoch.0")
    (True, False)
    """
    return segment.startswith(_RECORDS)


def container_of(segment: str, count: int) -> int:
    """Return the number of the container, of `count`, that has the segment of that name, forever: by a hash that
    ignores epochs and transactions. The controller's records are all in one, so that whoever has that can run it.

    >>> container_of("_system/_tables/scopes", 8), container_of("home/meters/0.#epoch.0", 8)
    (0, 7)
    """
    return CONTROLLER_CONTAINER if is_record(segment) else int(crc32c(container_key(segment).encode()) % count)


class Hosted:
    """The containers that a store has. count: how many there are in all. owner_of: returns who has those that this
    store doesn't have."""

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
        """Return the container of the segment of that name; raise NotOwnerError if another store has it."""
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
        """The first container from that number on; None if there is none."""
        return next((container for container in self.all() if container.number >= number), None)

    def __contains__(self, number: int) -> bool:
        return number in self._containers

    def add(self, container: Container) -> None:
        assert container.number < self.count, f"there are {self.count} containers"
        self._containers[container.number] = container

    def remove(self, number: int) -> Container:
        """Remove a container: from now on its segments are another store's."""
        return self._containers.pop(number)
