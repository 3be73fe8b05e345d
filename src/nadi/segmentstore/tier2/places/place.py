"""The seam between a store of chunks and what keeps its objects. `tests/conformance/test_chunk_store.py` says what each
kind of place does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from nadi.errors import UnavailableError
from nadi.wire.fields import Buffer


class DiskReadError(UnavailableError):
    """A place on the disk that holds a chunk can't be read."""


class Listed(NamedTuple):
    """An object as a listing shows it. modified_ms: when it was stored, since 1970, by the store's own clock."""

    name: str
    size_bytes: int
    modified_ms: int


class Place(Protocol):
    """Objects by name. All calls raise UnavailableError, or a kind of it, if the place can't answer, without the text
    or the cause of what it says, which may have credentials."""

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Store `parts`, end to end, if nothing has the name; they are durable when this returns.

        False: something has it, or the place took its own earlier try for another's: only reading it says whose it is.

        Raises:
            StorageFullError, UnavailableError: it isn't known whether they are stored.
        """

    async def put_over(self, name: str, parts: Sequence[Buffer]) -> None:
        """Store `parts`, end to end, whatever has the name now; durable, too. Raises: as `create`."""

    async def read(self, name: str, position: int, length: int | None) -> memoryview:
        """The object's bytes from there on, fewer if it is shorter; length: None is up to its end.

        Raises:
            FileNotFoundError: nothing has the name, though the place is there.
            DiskReadError: the disk can't read them.
        """

    def has(self, name: str) -> bool:
        """Whether an object has the name; blocking."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """The sizes in bytes of all objects in a folder, and below it; blocking."""

    def pages(self, folder: str) -> AsyncIterator[list[Listed]]:
        """All objects in a folder, and below it, some at a time, in no order; a folder "" is all there is."""

    async def rename(self, name: str, new: str) -> None:
        """The new name is durable when this returns. UnavailableError: or nothing has the old name."""

    async def delete(self, name: str) -> None:
        """Delete an object if it is there."""
