"""Where a page of hits ends, as a text that the next one begins with: it stays right whatever is indexed, merged or
deleted meanwhile.

The newest are listed by their orders, and go on behind the last one. The best are numbered, as of one cut that the text
has with it. Their weights change with each event that is indexed; so whoever made the first page keeps the index as it
was for the next ones, a few such, and elsewhere two hits that fit about alike may change places between two pages.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from nadi.errors import InvalidArgumentError


class After(msgspec.Struct, frozen=True, array_like=True):
    """question: a digest of what was asked. order, segment, offset: of the last hit of the newest; count: of the best
    that were shown, as of the cut `as_of`, in a generation of the manifest."""

    question: str
    order: int = 0
    segment: int = 0
    offset: int = 0
    count: int = 0
    as_of: str = ""
    generation: int = 0

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
