"""Where a segment's bytes are in tier 2, as it is sent to those who can read its chunks themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from nadi.errors import ProtocolError
from nadi.wire import commands as wire


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """`length` bytes of a segment from `offset` on are the chunk `name` from its start.

    checksums: of the chunk's blocks, one after the other, as `segmentstore.tier2.checksums` packs them.
    """

    name: str
    offset: int
    length: int
    checksums: bytes

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Located:
    """Some of a segment's chunks, in order; what lies between them is not in tier 2 yet.

    url: of the store of chunks, without credentials. mark: what that store alone says of itself.
    is_last: no chunk comes after these.
    """

    url: str = ""
    mark: str = ""
    parts: tuple[ChunkPart, ...] = ()
    is_last: bool = True


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
