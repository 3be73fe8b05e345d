"""Blocks handed from the loop's thread to one other thread as they arrive; that thread needn't ask for each.

A lent block still counts as read ahead, and as not given out, until the loop has learned that it was taken. The loop
checks for that whenever it runs anyway; if it can't continue before it knows, it sets `wants_word`, and the
taker notifies it after the next block. So a reader at the tail wakes one thread for a block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from nadi.client.control.arguments import check_timeout
from nadi.errors import NadiError
from nadi.model.event import EventBlock

_Source = TypeVar("_Source")
Found = tuple[int, EventBlock] | NadiError | None


class Lending(Generic[_Source]):
    """`take`, or `get` and `count`, are for the other thread, `is_open` and everything else for the loop's."""

    def __init__(self) -> None:
        self.is_open = True  # until an end or an error was put in; whoever takes that opens it again
        self.wants_word = False
        self._found: SimpleQueue[Found] = SimpleQueue()
        self._lent: deque[tuple[_Source, EventBlock]] = deque()
        self._taken = 0  # blocks so far; counted by the taker
        self._returned = 0

    def lend(self, segment_id: int, block: EventBlock, source: _Source) -> None:
        self._lent.append((source, block))
        self._found.put((segment_id, block))

    def end(self, error: NadiError | None) -> None:
        """Put in the error, or None at the end; nothing more follows until the taker asks again."""
        self.is_open = False
        self._found.put(error)

    def sources(self) -> Iterator[_Source]:
        """The sources of the blocks that are lent."""
        return (source for source, _ in self._lent)

    def returned(self) -> Iterator[tuple[_Source, EventBlock]]:
        """The blocks that were taken since the last call."""
        while self._returned < self._taken:
            self._returned += 1
            yield self._lent.popleft()

    def take(self, timeout: float | None) -> Found:
        """The next block, error or end; TimeoutError if none comes within `timeout` seconds."""
        found = self.get(timeout)
        if isinstance(found, tuple):
            self.count()
        return found

    def get(self, timeout: float | None) -> Found:
        """`take`, but a block counts as taken only with `count`."""
        check_timeout(timeout)
        try:
            return self._found.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None

    def count(self) -> None:
        """Another block was taken."""
        self._taken += 1
