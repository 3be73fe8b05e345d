"""What a server says of itself to the others, in its entry `servers/<id>` of the registry."""

from __future__ import annotations

from typing import Any

import msgspec

from nadi.engines.lines import line_of, value_of

FOLDER = "servers/"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """The value of an entry, as a line of JSON with its checksum. Fields that a later version adds are ignored, so they
    may be added at any time.

    id: new with each start of the server. store, controller, rest: addresses, "host:port", where clients reach it.
    version: of nadi. started_ms: since 1970, by its wall clock, for people to read. counter: of its beats, from 1 on;
    of two values the one with the higher counter is newer. nonce: makes each value unlike any other.
    is_draining: it gives all its containers away. containers, bytes_per_s: what it has, and what is written to it.
    """

    id: str
    store: str
    controller: str
    rest: str
    version: str
    started_ms: int
    counter: int = 0
    nonce: str = ""
    is_draining: bool = False
    containers: int = 0
    bytes_per_s: float = 0.0

    def but(self, **changes: Any) -> Member:
        return msgspec.structs.replace(self, **changes)


def entry_name(server: str) -> str:
    """The entry of the server of that id.

    >>> entry_name("ab12")
    'servers/ab12'
    """
    return FOLDER + server


def encode(member: Member) -> bytes:
    return line_of(msgspec.json.encode(member))


def decode(value: bytes) -> Member | None:
    """None if it is damaged, or isn't one, as of a version of nadi that can't be understood."""
    try:
        found = value_of(value)
        return None if found is None else msgspec.json.decode(found, type=Member)
    except msgspec.MsgspecError:
        return None
