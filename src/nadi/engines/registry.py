"""The seam between a cluster and whatever keeps its records: small values by name, changed by compare-and-set.

A version says nothing but whether a value was replaced. Equal values may have equal versions, so whoever sets a value
makes it unlike any other, with a nonce; this also tells whether a set that got no answer was carried out.
`tests/conformance/test_registry.py` says what every registry does.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """A value, and its version."""

    value: bytes
    version: str


class Registry(Protocol):
    """Values by name, in folders (`servers/…`). Any number of processes may use it.

    Names and errors are those of a `LogEngine`, whose objects share the names: none is an object and a value.
    """

    async def get(self, name: str) -> Entry | None:
        """The newest value: what was set before the call began is found; None if there is none.

        Raises:
            UnavailableError: it can't answer.
        """

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        """Set the value if the name still has that version (None: if it has no value); return the new version.

        None: refused, or this call's own earlier try was taken for another's: only `get` says which.

        Raises:
            UnavailableError: it isn't known whether it is set; it may even be set later.
        """

    async def put(self, name: str, value: bytes) -> str:
        """Set the value, whatever is there, and return its version: for names that one process alone sets.

        Raises:
            UnavailableError: it isn't known whether it is set; it may even be set later.
        """

    async def list(self, folder: str) -> dict[str, str]:
        """The versions of all values in a folder, and below it, by name, as `get` tells them; those
        that were set lately may be missing or old.

        Raises:
            UnavailableError: it can't answer.
        """

    async def delete(self, name: str) -> None:
        """Remove the value if there is one.

        Raises:
            UnavailableError: it may still be there.
        """
