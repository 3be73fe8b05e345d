"""Records of a scope's tables that can't be read: damaged ones, and those of a newer nadi.

Such a record is an error for whoever asks for it, and hides no other in a list.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from nadi.display import Displayed
from nadi.errors import ProtocolError

T = TypeVar("T")
_WRONG = (msgspec.MsgspecError, ValueError, OverflowError, OSError, RecursionError)  # the latter three: of odd times


@dataclass(frozen=True, slots=True)
class Unreadable(Displayed):
    """What is kept under a name, but can't be read. problem: what is wrong with it, and what to do."""

    name: str
    problem: str


def read_record(read: Callable[[], T], what: str, instead: str) -> T:
    """What `read` makes of a record; ProtocolError if it can't. what: names it; instead: how to do without it."""
    try:
        return read()
    except _WRONG as error:
        raise ProtocolError(
            f"{what} can't be read ({error!s:.300}): it is damaged, or of a newer nadi. Use that one, or {instead}"
        ) from error


def named(record: T, field: str, name: str) -> T:
    """The record, if its field has the name that it is kept under; ValueError if not."""
    if (says := getattr(record, field)) != name:
        raise ValueError(f"its {field} is {says!r:.60}: who wrote that?")
    return record


async def sorted_out(
    entries: AsyncIterator[tuple[str, bytes]], read: Callable[[str, bytes], T]
) -> tuple[dict[str, T], list[Unreadable]]:
    """What `read` makes of each name and its value, and those for which it raises ProtocolError."""
    found: dict[str, T] = {}
    unreadable = []
    async for name, value in entries:
        try:
            found[name] = read(name, value)
        except ProtocolError as error:
            unreadable.append(Unreadable(name, str(error)))
    return found, unreadable
