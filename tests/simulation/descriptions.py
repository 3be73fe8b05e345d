"""Short descriptions of calls and replies, which are the same in every process."""

from __future__ import annotations

from crc32c import crc32c

from nadi.controller.state.history import EpochHistory
from nadi.wire import commands as wire


def described(what: object) -> str:
    if isinstance(what, wire.Command):
        values = (getattr(what, field) for field in what.__struct_fields__)
        return f"{type(what).__name__}({', '.join(map(described, values))})"
    if isinstance(what, (bytes, bytearray, memoryview)):
        return f"{len(what)} bytes {crc32c(bytes(what)):08x}"
    if isinstance(what, EpochHistory):
        return f"a history of {what.newest + 1} epochs"
    return repr(what)
