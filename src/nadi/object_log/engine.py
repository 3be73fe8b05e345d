"""The seams between a cluster and its store: objects that are written once (`LogEngine`), and small values that are
changed by compare-and-set (`Registry`). `tests/conformance` has a suite for each.

A version says nothing but whether a value was replaced. Equal values may have equal versions, so whoever sets a value
makes it unlike any other, with a nonce; this also tells whether a set that got no answer was carried out.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from nadi.errors import InvalidNameError
from nadi.wire.fields import Buffer


class Aged(NamedTuple):
    """An object, and for how long it has been stored, by the clock of what keeps it."""

    name: str
    size_bytes: int
    age_s: float


class LogEngine(Protocol):
    """Objects by name; none is both an object and a folder of others. Any number of calls may be in flight, from any
    number of processes. All calls raise InvalidNameError for names that not all engines have (`check_name`), and
    UnavailableError if the store can't answer: `failures.RefusedError` where an operator must act, such as on
    credentials that have expired. What was to be stored or deleted may then be so, or come to be so later."""

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Store `parts`, end to end, if nothing has that name; whoever is first, is alone. StorageFullError: no room.
        True: this call has stored them, durably. False: something has the name, or somebody is just storing it, or the
        store took this call's own earlier try for another's: only reading it says whose it is."""

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        """The object's bytes from `position` on, `length` of them or up to its end, fewer if it is shorter; None if
        nothing has the name, but the bucket is there. What was stored before the call began is found."""

    def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        """Names that begin with a folder `prefix`, with their sizes in bytes, some at a time: in no order, and what
        was stored or deleted lately may be wrong. "" is for all."""

    async def delete(self, names: Sequence[str]) -> None:
        """Delete those of the objects that are there."""

    async def close(self) -> None:
        """Let go of connections and threads, those of the registry that was opened with it, too; nothing may be in
        flight."""


class OwnEngine(LogEngine, Protocol):
    """Of a log that isn't in the store: nothing else tells how old an object of it is."""

    def aged(self, prefix: str) -> AsyncIterator[list[Aged]]:
        """As `listed`."""


class VersionedValue(NamedTuple):
    value: bytes
    version: str


class Registry(Protocol):
    """Values by name, in folders (`servers/…`). Any number of processes may use it. Names and errors are those of a
    `LogEngine`, whose objects share the names: none is an object and a value."""

    async def get(self, name: str) -> VersionedValue | None:
        """The newest value: what was set before the call began is found; None if there is none."""

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        """Set the value if the name still has that version (None: if it has no value); return the new version. None:
        refused, or this call's own earlier try was taken for another's: only `get` says which."""

    async def put(self, name: str, value: bytes) -> str:
        """Set the value, whatever is there, and return its version: for names that one process alone sets."""

    async def list(self, folder: str) -> dict[str, str]:
        """The versions of all values in a folder, and below it, by name, as `get` returns them; those that were set
        lately may be missing or old."""

    async def delete(self, name: str) -> None:
        """Remove the value if there is one."""


_NAME = re.compile(r"[A-Za-z0-9-][A-Za-z0-9.-]*(/[A-Za-z0-9-][A-Za-z0-9.-]*)*")
_LONGEST = 200  # of each part, as files may have 255 with what is appended; of all parts together, see S3: 1,024
_LONGEST_ALL = 800


def check_name(name: str) -> None:
    """Raise InvalidNameError unless it may be stored under.

    >>> check_name("log/3/7.frame")
    >>> check_name("log/../3")
    Traceback (most recent call last):
    nadi.errors.InvalidNameError: 'log/../3' is not a valid object name: letters, digits, - and ., in folders by /
    """
    if len(name) > _LONGEST_ALL or not _NAME.fullmatch(name) or max(map(len, name.split("/"))) > _LONGEST:
        raise InvalidNameError("valid object", name, "letters, digits, - and ., in folders by /")
