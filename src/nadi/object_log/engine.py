"""Interfaces between a cluster and its store: write-once objects (`LogEngine`), and small values changed by
compare-and-set (`Registry`). `tests/conformance` has a suite for each.

A version only shows whether a value was replaced. Equal values may have equal versions, so every writer makes its value
unique with a nonce, which also shows whether an unanswered set was carried out.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from nadi.errors import InvalidNameError
from nadi.wire.fields import Buffer


class AgedObject(NamedTuple):
    """Object, and its age by the clock of its store."""

    name: str
    size_bytes: int
    age_s: float


class LogEngine(Protocol):
    """Write-once objects by name; no name is both an object and a folder.

    Any number of calls, from any number of processes, may be in flight. All calls raise InvalidNameError for names that
    not every engine supports (`check_name`), and UnavailableError if the store can't answer: `failures.RefusedError` if
    an operator must act, such as on expired credentials. A failed create or delete may still take effect, now or later.
    """

    async def create(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Store `parts`, end to end, if the name is free; only the first caller succeeds. StorageFullError: no space.

        True: this call stored them, durably. False: the name is taken or being stored, or the store mistook this call's
        own earlier attempt for another's: read the object to find out.
        """

    async def get(self, name: str, position: int = 0, length: int | None = None) -> memoryview | None:
        """Return up to `length` bytes from `position`, by default up to the end; None if the bucket exists but the
        object doesn't. Finds objects stored before the call began."""

    def listed(self, prefix: str) -> AsyncIterator[Mapping[str, int]]:
        """Yield pages of the names under the folder `prefix` ("" for all) with their sizes in bytes, in no order.
        Recent changes may be missing."""

    async def delete(self, names: Sequence[str]) -> None:
        """Delete the objects that exist."""

    async def close(self) -> None:
        """Close connections and threads, including those of the registry opened with it. Nothing may be in flight."""


class OwnEngine(LogEngine, Protocol):
    """Engine of a log outside the store, whose objects' ages only this engine knows."""

    def aged(self, prefix: str) -> AsyncIterator[list[AgedObject]]:
        """Yield pages of objects as `listed`, with their ages."""


class VersionedValue(NamedTuple):
    value: bytes
    version: str


class Registry(Protocol):
    """Values by name, in folders (`servers/…`), usable from any number of processes. Names and errors are as in
    `LogEngine`, which shares the names: no name is both an object and a value."""

    async def get(self, name: str) -> VersionedValue | None:
        """Return the newest value, including all sets completed before the call began; None if there is none."""

    async def compare_and_set(self, name: str, value: bytes, version: str | None) -> str | None:
        """Set the value if the name still has that version (None: no value); return the new version.

        None: refused, or this call's own earlier attempt was mistaken for another's: call `get` to find out.
        """

    async def put(self, name: str, value: bytes, *, ends_with_process: bool = False) -> str:
        """Set the value unconditionally and return its version: for names with a single writer. ends_with_process: the
        store may delete the value once this process has certainly ended."""

    async def list(self, folder: str) -> dict[str, str]:
        """Return the versions of all values in a folder and below it, by name, as `get` returns them. Recent changes
        may be missing."""

    async def delete(self, name: str) -> None:
        """Remove the value if it exists."""


_NAME = re.compile(r"[A-Za-z0-9-][A-Za-z0-9.-]*(/[A-Za-z0-9-][A-Za-z0-9.-]*)*")
_LONGEST = 200  # per part: file names have up to 255 with a suffix; S3 allows 1,024 in total
_LONGEST_ALL = 800


def check_name(name: str) -> None:
    """Raise InvalidNameError unless the name is valid in every engine.

    >>> check_name("log/3/7.frame")
    >>> check_name("log/../3")
    Traceback (most recent call last):
    nadi.errors.InvalidNameError: 'log/../3' is not a valid object name: use letters, digits, '-', '.'; '/' for folders
    """
    if len(name) > _LONGEST_ALL or not _NAME.fullmatch(name) or max(map(len, name.split("/"))) > _LONGEST:
        raise InvalidNameError("valid object", name, "use letters, digits, '-', '.'; '/' for folders")
