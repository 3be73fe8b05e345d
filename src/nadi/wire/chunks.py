"""The chunks of a segment, as they are sent."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nadi.errors import ProtocolError
from nadi.model.chunks import ChunkPart, Located
from nadi.wire import commands as wire


def packed_parts(parts: Sequence[ChunkPart]) -> bytes:
    return msgspec.msgpack.encode(parts)


def located_in(reply: wire.ChunksLocated) -> Located:
    """What a store told; ProtocolError if it can't be read, or isn't in order.

    >>> part = ChunkPart("a chunk", 0, 8, bytes(4))
    >>> reply = wire.ChunksLocated(1, "a/b/0.#epoch.0", "file:///x", "m", packed_parts([part]), True)
    >>> located_in(reply).parts == (part,)
    True
    """
    try:
        parts = msgspec.msgpack.decode(reply.parts, type=tuple[ChunkPart, ...])
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"chunks of {reply.segment} can't be read: {error}") from error
    end = 0
    for part in parts:
        if part.offset < end or part.length <= 0:
            raise ProtocolError(f"chunks of {reply.segment} are not in order: {str(part)[:200]}")
        end = part.end
    if not parts and not reply.is_last:
        raise ProtocolError(f"no chunks of {reply.segment} were told, and more are to come")
    return Located(reply.store, reply.mark, parts, reply.is_last)
