"""The seam between a log that is a chain of objects and whatever keeps them: four primitives.

An object is stored once, under a name that nothing had, and never changed. `tests/conformance/test_log_engine.py` says
what every engine does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from nadi.wire.fields import Buffer


class Aged(NamedTuple):
    """An object, and for how long it has been stored, by the clock of what keeps it."""

    name: str
    size_bytes: int
    age_s: float


class LogEngine(Protocol):
    """Objects by name. Names are of letters, digits, `-`, `.` and `/`, see `names.check_name`; none is both an object
    and a folder of others. Any number of calls may be in flight, from any number of processes.

    All calls raise InvalidNameError for names that not all engines have, and of UnavailableError the kind
    `failures.RefusedError` where somebody has to mend something, such as credentials that have expired.
    """

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Store `parts`, end to end, if nothing has that name; whoever is first, is alone.

        True: this call has stored them, durably. False: something has the name, or somebody is just storing it, or the
        store took this call's own earlier try for another's: only reading it says whose it is.

        Raises:
            UnavailableError: it isn't known whether it is stored; it may even be stored later.
            StorageFullError: likewise, for lack of room.
        """

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        """The object's bytes from `position` on, `length` of them or up to its end, fewer if it is shorter; None if
        nothing has the name. What was stored before the call began is found. A bucket that is gone has no name to say
        so of: that is an error.

        Raises:
            UnavailableError: the store can't answer.
        """

    def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        """Names that begin with a folder `prefix`, with their sizes in bytes, some at a time: in no order, and what
        was stored or deleted lately may be wrong. "" is for all.

        Raises:
            UnavailableError: the store can't answer.
        """

    async def delete(self, names: Sequence[str]) -> None:
        """Delete those of the objects that are there.

        Raises:
            UnavailableError: some may still be there.
        """

    async def close(self) -> None:
        """Let go of connections and threads, those of the registry that was opened with it, too; nothing may be in
        flight."""


class OwnEngine(LogEngine, Protocol):
    """Of a log that isn't in the store: nothing else tells how old an object of it is."""

    def aged(self, prefix: str) -> AsyncIterator[list[Aged]]:
        """As `listed`."""
