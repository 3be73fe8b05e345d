"""Which container of the target a segment goes to, under which number, and what its chunks are called there.

Numbers are unique within a container only, and containers are split and joined: so a new number is made of the old one
and its container's, the same each time, which lets an interrupted migration find what it has copied.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from nadi.segmentstore.hosted import Mapping

_CHUNK = re.compile(r"container-\d+/([0-9a-f]{12,16})/([0-9a-f]{16}-[0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Division:
    """Of so many source containers among so many target containers. mapping: in which of those a segment is, by its
    name."""

    sources: int
    targets: int
    mapping: Mapping

    def number(self, source: int, segment: int) -> int:
        """The new number of a segment.

        >>> Division(2, 1, lambda name, count: 0).number(1, 7)
        15
        """
        return segment * self.sources + source

    def container(self, name: str) -> int:
        """The new container of the segment of that name."""
        return 0 if self.targets == 1 else self.mapping(name, self.targets)

    def chunk(self, target: int, source: int, name: str) -> str:
        """The new name of a chunk, whose unique part stays.

        >>> division = Division(2, 4, lambda name, count: 3)
        >>> division.chunk(3, 1, "container-1/000000000007/0000000000000400-0123456789abcdef0123456789abcdef")
        'container-3/00000000000f/0000000000000400-0123456789abcdef0123456789abcdef'
        """
        match = _CHUNK.fullmatch(name)
        if match is None:  # of an earlier version, or a repair's
            return f"container-{target}/{0:012x}/{0:016x}-{sha256(f'{source}/{name}'.encode()).hexdigest()[:32]}"
        return f"container-{target}/{self.number(source, int(match[1], 16)):012x}/{match[2]}"
