"""Damage as the wire protocol can express it: an ErrorMessage with nadi's own code, and the range in its text.

It must not be a reply that clients interpret otherwise: official readers take NoSuchSegment for a segment's end, and a
closed connection for a reason to ask again. This one fails a read of Pravega's Rust client at once, and of its Java
client after its retries.
"""

from __future__ import annotations

import re

from nadi.errors import DamagedDataError, ProtocolError
from nadi.wire import commands as wire

_TEXT = re.compile(r"bytes (\d+) to (\d+) can't be read as they were stored: (.*)", re.DOTALL)


def damage_reply(error: DamagedDataError, request_id: int) -> wire.ErrorMessage:
    """
    >>> reply = damage_reply(DamagedDataError("s/a/0.#epoch.0", 8, 24, "its chunk is missing"), 7)
    >>> reply.message
    "bytes 8 to 24 can't be read as they were stored: its chunk is missing"
    >>> error = damage_of(reply)
    >>> error.segment, error.offset, error.end_offset, error.reason
    ('s/a/0.#epoch.0', 8, 24, 'its chunk is missing')
    """
    text = f"bytes {error.offset} to {error.end_offset} can't be read as they were stored: {error.reason}"
    return wire.ErrorMessage(request_id, error.segment, text, wire.DAMAGED_DATA)


def damage_of(reply: wire.ErrorMessage) -> DamagedDataError | ProtocolError:
    """The error that a reply with the code DAMAGED_DATA stands for."""
    found = _TEXT.fullmatch(reply.message)
    if found is None:
        return ProtocolError(f"damage of segment {reply.segment} is told without its range: {reply.message[:200]}")
    return DamagedDataError(reply.segment, int(found[1]), int(found[2]), found[3])
