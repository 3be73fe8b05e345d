"""Where a segment's bytes are in tier 2: what a store tells those who can read its chunks themselves."""

from __future__ import annotations

from dataclasses import dataclass


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
