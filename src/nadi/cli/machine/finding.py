"""What a check found: how it is, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class State(StrEnum):
    OK = "ok"
    NOTE = "note"  # works, though not as well as it could
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """advice: what to do, where there is something to do."""

    check: str
    state: State
    found: str
    advice: str = ""

    def row(self) -> dict[str, Any]:
        return asdict(self)


def ok(check: str, found: str) -> Finding:
    return Finding(check, State.OK, found)


def note(check: str, found: str, advice: str) -> Finding:
    return Finding(check, State.NOTE, found, advice)


def wrong(check: str, found: str, advice: str) -> Finding:
    return Finding(check, State.WRONG, found, advice)
