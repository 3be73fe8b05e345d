"""Of whoever runs a server."""

from __future__ import annotations

from nadi.wire.commands.command import Command
from nadi.wire.fields import I32, I64, Str


class FlushToStorage(Command, frozen=True):
    code = -3
    container_id: I32
    token: Str
    request_id: I64


class StorageFlushed(Command, frozen=True):
    code = -4
    request_id: I64
