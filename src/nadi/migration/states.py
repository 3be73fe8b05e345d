"""States of the source's containers: read-only local copies of their snapshots.

`Division` maps a segment to its container, number and chunk names in the target. Numbers are unique only within a
container, and containers are split and joined: so a new number is derived from the old one and its container. It is the
same each time, which lets a resumed migration find the chunks that it has copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from nadi.errors import UnavailableError
from nadi.segmentstore.container_registry import container_of
from nadi.segmentstore.recovery.snapshots import restored
from nadi.segmentstore.state.commit import singles
from nadi.segmentstore.state.metadata import ContainerMetadata
from nadi.segmentstore.state.stored import CONTINUES, EXTENT, ID, PAIR, TABLES, decode_segment, unpack_chunk
from nadi.segmentstore.tier2.chunks import ChunkStore
from nadi.segmentstore.tier2.records import ContainerRecord

_PAGE = 5_000


class Division(NamedTuple):
    """Mapping from a number of source containers to a number of target containers."""

    sources: int
    targets: int

    def number(self, source: int, segment: int) -> int:
        """Return the new number of a segment.

        >>> Division(2, 1).number(1, 7)
        15
        """
        return segment * self.sources + source

    def chunk(self, target: int, source: int, name: str) -> str:
        """Return the new name of a chunk, with the same unique part.

        >>> division = Division(2, 4)
        >>> division.chunk(3, 1, "container-1/000000000007/0000000000000400-0123456789abcdef0123456789abcdef")
        'container-3/00000000000f/0000000000000400-0123456789abcdef0123456789abcdef'
        """
        _, segment, unique = name.split("/")
        return f"container-{target}/{self.number(source, int(segment, 16)):012x}/{unique}"


class ChunkCopy(NamedTuple):
    """Chunk to copy, and its name in the target; `number` and `offset` locate its contents there. continues: it begins
    within an event."""

    source: int
    target: int
    name: str
    new: str
    segment: str
    number: int
    offset: int
    length: int
    checksums: bytes
    continues: bool


class States:
    """Open copies of the states. Blocking, except for `fetch`. frames: the last frame that each state reflects."""

    def __init__(self, states: dict[int, ContainerMetadata]) -> None:
        self._states = states
        self.frames = [metadata.state().sequence for metadata in states.values()]

    @classmethod
    async def fetch(cls, chunks: ChunkStore, records: Sequence[ContainerRecord], folder: Path) -> Self:
        """Restore the records' snapshots into an empty folder; a container without a snapshot has always been empty.
        Raises as `restored`."""
        states: dict[int, ContainerMetadata] = {}
        try:
            for number, record in enumerate(records):
                state = folder / f"container-{number}"
                states[number], _ = await restored(chunks, number, record.snapshot, state)
        except BaseException:
            for metadata in states.values():
                metadata.close()
            raise
        return cls(states)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for metadata in self._states.values():
            metadata.close()

    def next_segment(self, division: Division) -> int:
        """Return a number that no segment has, or ever had, after the division."""
        return (
            max(division.number(number, metadata.state().next_segment) for number, metadata in self._states.items()) + 1
        )

    def transients(self) -> Iterator[tuple[int, int]]:
        """Yield container and number of transient segments."""
        for number, metadata in self._states.items():
            for segment in metadata.state().transients:
                yield number, segment

    def rows(self, table: str) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield container, key and value of each record of a table; extents one by one."""
        assert table in TABLES
        for number, metadata in self._states.items():
            rows = _rows(metadata, table)
            for key, value in singles(rows) if table == "extents" else rows:
                yield number, key, value

    def pieces(self, division: Division, *, complete: bool) -> Iterator[ChunkCopy]:
        """Yield all chunks named in the states. complete: raise UnavailableError if bytes remain in the log."""
        segments = self.rows("segments")
        names = {(number, ID.unpack(key)[0]): decode_segment(value).name for number, key, value in segments}
        for number, key, value in self.rows("extents"):
            length, sequence, _, _, position = EXTENT.unpack_from(value)
            segment, offset = PAIR.unpack(key)
            name = names[number, segment]
            if sequence:
                if complete:
                    raise UnavailableError(f"bytes of segment {name} are still in the log: run the migration again")
                continue
            chunk, checksums = unpack_chunk(value)
            target = container_of(name, division.targets)
            yield ChunkCopy(
                number,
                target,
                chunk,
                division.chunk(target, number, chunk),
                name,
                division.number(number, segment),
                offset,
                length,
                checksums,
                bool(position & CONTINUES),
            )


def _rows(metadata: ContainerMetadata, table: str) -> Iterator[tuple[bytes, bytes]]:
    after = b""
    while page := metadata.page(table, after, _PAGE):
        yield from page
        after = page[-1][0]
