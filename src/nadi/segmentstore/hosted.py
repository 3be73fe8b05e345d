"""Which of all containers this store has, and so which segments it answers for.

The number of containers is fixed forever; a segment's name says which one it is in, by a hash unless a cluster says
otherwise. A store has all containers or some of them; it takes over others and gives some up while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nadi.errors import NotOwnerError
from nadi.segmentstore.container.container import Container
from nadi.segmentstore.datafolder import container_number

Placement = Callable[[int], str]
"""The address, "host:port", of the store that has the container of that number; "" if it isn't known."""

Mapping = Callable[[str, int], int]
"""The number of the container of the segment of that name, of so many; the same forever."""


class Hosted:
    """The containers that a store has. count: how many there are in all. owner_of: returns who has those that this
    store doesn't have. mapping: says in which container a segment is; epochs and transactions of a segment are in the
    same one."""

    def __init__(
        self,
        count: int,
        containers: Iterable[Container] = (),
        owner_of: Placement = lambda number: "",
        mapping: Mapping = container_number,
    ) -> None:
        self.count = count
        self.owner_of = owner_of
        self._mapping = mapping
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
        return 0 if self.count == 1 else self._mapping(segment, self.count)

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
