"""Every command of the wire protocol, as a frozen struct with its fields in wire order, those of its base class first:
from here they are imported.

A field with a default is an optional trailing one: absent in frames of older peers, always sent by
us. `CODES` maps a type code to its class. Names and codes are Pravega's, but for those in `own`. One trailing field is
nadi's own too: ConditionalBlockEnd's `after_event_number`.
"""

# ruff: noqa: F403

from __future__ import annotations

from collections.abc import Iterator

from nadi.wire.commands.own import *
from nadi.wire.commands.pravega import *
from nadi.wire.commands.pravega import Command


def _kinds_of(base: type[Command]) -> Iterator[type[Command]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds_of(kind)


CODES: dict[int, type[Command]] = {kind.code: kind for kind in _kinds_of(Command) if kind.code}
