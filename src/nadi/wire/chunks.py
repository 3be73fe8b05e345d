"""Encoding of the chunks of a segment, for clients that read tier 2 directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from nadi.errors import ProtocolError
from nadi.wire import commands as wire


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """A range of a segment stored at the start of the chunk `name`.

    checksums: of the chunk's blocks, as `segmentstore.tier2.checksums` packs them.
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
    """Some of a segment's chunks, in order; bytes between them aren't in tier 2 yet.

    url: of the chunk store, without credentials. mark: that store's identity. is_last: no further chunks follow.
    """

    url: str = ""
    mark: str = ""
    parts: tuple[ChunkPart, ...] = ()
    is_last: bool = True


def packed_parts(parts: Sequence[ChunkPart]) -> bytes:
    return msgspec.msgpack.encode(parts)


def located_in(reply: wire.ChunksLocated) -> Located:
    """Decode a store's reply; ProtocolError if it is malformed or out of order.

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
        raise ProtocolError(f"a reply without chunks of {reply.segment} announces more")
    return Located(reply.store, reply.mark, parts, reply.is_last)
