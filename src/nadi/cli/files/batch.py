"""What all formats of files have in common: events with their places and keys, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """Events in order, by columns. segment_ids, keys: None where they aren't known."""

    events: list[bytes]
    segment_ids: list[int | None]
    offsets: list[int | None]
    keys: list[str | None]

    def __len__(self) -> int:
        return len(self.events)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.events))


class Writes(Protocol):
    """A file that is being written; closed, it is whole."""

    def write(self, batch: Batch) -> None: ...
    def close(self) -> None: ...


class Reads(Protocol):
    """A file that is read: batches, and how many bytes of the file they and all before them take, about."""

    def __iter__(self) -> Iterator[tuple[Batch, int]]: ...
    def close(self) -> None: ...
