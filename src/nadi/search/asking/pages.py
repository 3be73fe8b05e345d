"""Where a page of hits ends, as a text that the next one begins with: it stays right whatever is indexed, merged or
deleted meanwhile.

The newest are listed by their orders, and go on behind the last one. So do the best, by how well they fit, as of one
cut that the text has with it. Their weights change with each event that is indexed; so whoever made the first page
keeps the index as it was for the next ones, a few such, and elsewhere two hits that fit about alike may change places
between two pages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from nadi.errors import InvalidArgumentError
from nadi.limits import SEARCH_PAGE_BYTES

_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
T = TypeVar("T")


class Placed(NamedTuple):
    """Where an event is, and where it ends; order: see `shards.building`."""

    order: int
    segment: int
    offset: int
    end: int

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.offset


class After(msgspec.Struct, frozen=True, array_like=True):
    """question: a digest of what was asked. order, segment, offset: of the last hit. Of the best also its score, the
    cut as of which they are listed, and the generation of the manifest."""

    question: str
    order: _Number = 0
    segment: _Number = 0
    offset: _Number = 0
    score: float = 0.0
    as_of: str = ""
    generation: _Number = 0

    def as_text(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


def after_of(text: str, question: str) -> After:
    """What `After.as_text` wrote; InvalidArgumentError if it is something else, or of another question."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = msgspec.msgpack.decode(raw, type=After)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise InvalidArgumentError(f"{text[:40]!r} is not where a page ended: give the `next` of one") from error
    if found.question != question:
        raise InvalidArgumentError("the page is of another query: ask the same, with the same order and bounds")
    return found


def fitting(found: Sequence[tuple[Placed, T]]) -> Sequence[tuple[Placed, T]]:
    """The first, and those after it with which a page's events have no more bytes than a page may."""
    size = 0
    for number, (one, _) in enumerate(found):
        size += one.end - one.offset
        if number and size > SEARCH_PAGE_BYTES:
            return found[:number]
    return found
