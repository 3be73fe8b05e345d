"""Caches recently written and read blocks by location; any block may be dropped at any time.

Bytes in the log are certain to be read once more, when they move to tier 2. So historical reads don't evict them,
unless they take most of the cache: re-reading the log in many small reads would cost more than that saves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeAlias

from nadi.limits import CACHE_MAX_BYTES
from nadi.segmentstore.state.records import Extent
from nadi.segmentstore.tier1.blob_files import BlobWrite
from nadi.segmentstore.tier1.layout import CHECKSUM_BYTES
from nadi.wire.fields import Buffer

_ENTRY_BYTES = 320  # dictionary entry, key and objects: a tail of small appends has a block for each
_OF_LOG = 3 / 4  # fraction of the cache

BlockLocation: TypeAlias = tuple[int | str, int, int]  # in the log it starts with the container's number


def location_in_log(container: int, extent: Extent) -> BlockLocation:
    """Return the location of an extent in the log or in a separate file."""
    assert extent.frame is not None
    return f"{container}/{extent.run}" if extent.run else container, extent.frame.sequence, extent.position


class BlockCache:
    """Blocks by location, at most `max_bytes` in all, overhead included. The least recently used are evicted first,
    those outside the log before those in it. hits, misses: counted by the readers; evictions: evicted blocks."""

    def __init__(self, max_bytes: int = CACHE_MAX_BYTES) -> None:
        self._logged = _Shelf()
        self._others = _Shelf()
        self.max_bytes = max_bytes
        self.hits = self.misses = self.evictions = 0

    @property
    def size_bytes(self) -> int:
        return self._logged.size_bytes + self._others.size_bytes

    def __len__(self) -> int:
        return len(self._logged.blocks) + len(self._others.blocks)

    def get(self, location: BlockLocation) -> Buffer | None:
        blocks = self._shelf(location).blocks
        block = blocks.get(location)
        if block is not None:
            blocks.move_to_end(location)
        return block

    def peek(self, location: BlockLocation) -> Buffer | None:
        """Return the block for the last time: unlike `get`, this doesn't count as a use."""
        return self._shelf(location).blocks.get(location)

    def put(self, location: BlockLocation, block: Buffer) -> None:
        shelf = self._shelf(location)
        shelf.drop(location)
        shelf.blocks[location] = block
        shelf.size_bytes += len(block) + _ENTRY_BYTES
        self._evict()

    def put_frame(
        self, container: int, sequence: int, extents: list[Extent], parts: list[bytes], checksums: bytes
    ) -> None:
        """`put` the parts of a frame just written, one per extent; set the extents' checksums, too."""
        blocks, size_bytes, at = self._logged.blocks, self._logged.size_bytes, 0
        for extent, part in zip(extents, parts, strict=True):
            extent.checksums = checksums[at : at + CHECKSUM_BYTES]
            at += CHECKSUM_BYTES
            blocks[container, sequence, extent.position] = part  # as in `location_in_log`
            size_bytes += len(part) + _ENTRY_BYTES
        self._logged.size_bytes = size_bytes
        self._evict()

    def put_blobs(self, container: int, written: Sequence[tuple[Extent, BlobWrite, bytes]]) -> None:
        for extent, piece, block in written:
            extent.checksums = piece.checksum
            self.put(location_in_log(container, extent), block)

    def drop(self, container: int, extents: Sequence[Extent]) -> None:
        for extent in extents:
            location = location_in_log(container, extent)
            self._shelf(location).drop(location)

    def _shelf(self, location: BlockLocation) -> _Shelf:
        return self._others if isinstance(location[0], str) else self._logged

    def _evict(self) -> None:
        while self.size_bytes > self.max_bytes:
            self.evictions += 1
            of_log = not self._others.blocks or self._logged.size_bytes > self.max_bytes * _OF_LOG
            (self._logged if of_log else self._others).drop_oldest()


class _Shelf:
    def __init__(self) -> None:
        self.blocks: OrderedDict[BlockLocation, Buffer] = OrderedDict()
        self.size_bytes = 0

    def drop(self, location: BlockLocation) -> None:
        block = self.blocks.pop(location, None)
        if block is not None:
            self.size_bytes -= len(block) + _ENTRY_BYTES

    def drop_oldest(self) -> None:
        _, block = self.blocks.popitem(last=False)
        self.size_bytes -= len(block) + _ENTRY_BYTES
