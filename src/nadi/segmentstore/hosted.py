"""Which of all containers this store has, and so which segments it answers for.

The number of containers is fixed forever; a hash of a segment's name says which one it is in. A store has all
containers or some of them; it takes over others and gives some up while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nadi.errors import NotOwnerError
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.datafolder import container_number

Placement = Callable[[int], str]
"""The address, "host:port", of the store that has the container of that number; "" if it isn't known."""


class Hosted:
    """The containers that a store has.

    count: how many there are in all. owner_of: returns who has those that this store doesn't have.
    """

    def __init__(
        self, count: int, containers: Iterable[Container] = (), owner_of: Placement = lambda number: ""
    ) -> None:
        self.count = count
        self.owner_of = owner_of
        self._containers = {container.number: container for container in containers}

    def container_of(self, segment: str) -> Container:
        """Return the container of the segment of that name, by a hash that ignores epochs and transactions;
        raise NotOwnerError if another store has it."""
        number = 0 if self.count == 1 else container_number(segment, self.count)
        container = self._containers.get(number)
        if container is None:
            raise NotOwnerError(segment, self.owner_of(number))
        return container

    def all(self) -> list[Container]:
        """Return them in order of their numbers."""
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
