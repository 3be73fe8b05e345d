"""All commands of the wire protocol, as frozen structs with fields in wire order, base class fields first.

Import them from here. Fields with defaults are optional trailing fields: older peers omit them, nadi always sends
them. `CODES` maps a type code to its class. Names and codes are Pravega's, except for those in `own`; the trailing
field `after_event_number` of ConditionalBlockEnd is nadi's, too.
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
