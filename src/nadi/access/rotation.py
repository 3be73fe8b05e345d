"""Queues of several owners, served in rotation: an owner that puts in a lot makes only itself wait."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Rotation(Generic[T]):
    """Waiting items, in order for each owner.

    >>> rotation = Rotation[str]()
    >>> for owner, item in [("flood", "a"), ("flood", "b"), ("flood", "c"), ("good", "d")]:
    ...     rotation.put(owner, item)
    >>> [rotation.take() for _ in range(len(rotation))]
    ['a', 'd', 'b', 'c']
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[Hashable, deque[T]] = OrderedDict()  # none is empty; the first is the next
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, owner: Hashable, item: T) -> None:
        self._queues.setdefault(owner, deque()).append(item)
        self._size += 1

    def take(self) -> T:
        """Remove and return the oldest item of the owner whose turn it is; IndexError if nothing waits."""
        if not self._queues:
            raise IndexError("nothing waits")
        owner, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[owner] = queue  # after the others
        self._size -= 1
        return item

    def discard(self, owner: Hashable, item: T) -> None:
        """Remove the item if it is waiting."""
        queue = self._queues.get(owner)
        if queue is None or item not in queue:
            return
        queue.remove(item)
        self._size -= 1
        if not queue:
            del self._queues[owner]
