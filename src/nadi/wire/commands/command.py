"""What every command of the wire protocol is, and how most of them begin."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from nadi.wire.fields import I64, Str


class Command(msgspec.Struct, frozen=True, gc=False):
    """One command; `code` is its type on the wire, 0 of those that only others begin with."""

    code: ClassVar[int] = 0


class OfSegment(Command, frozen=True):
    """What is asked or said of a segment."""

    request_id: I64
    segment: Str


class WithToken(OfSegment, frozen=True):
    """What is asked of a segment, where the token comes first."""

    token: Str


class Refused(OfSegment, frozen=True):
    """That it was not done."""

    trace: Str = ""
