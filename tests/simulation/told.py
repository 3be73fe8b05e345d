"""Calls and answers, in words that are the same in every process, and short."""

from __future__ import annotations

from crc32c import crc32c

from nadi.controller.state.history import EpochHistory
from nadi.wire import commands as wire


def told(what: object) -> str:
    if isinstance(what, wire.Command):
        values = (getattr(what, field) for field in what.__struct_fields__)
        return f"{type(what).__name__}({', '.join(map(told, values))})"
    if isinstance(what, (bytes, bytearray, memoryview)):
        return f"{len(what)} bytes {crc32c(bytes(what)):08x}"
    if isinstance(what, EpochHistory):
        return f"a history of {what.newest + 1} epochs"
    return repr(what)
