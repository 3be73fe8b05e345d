"""Recently written and read blocks in memory, by where they are stored; any of them may be dropped at any time.

Keys are places (a frame of the log, a block of a chunk), not segment offsets, so merging segments
needs no care here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from nadi.limits import CACHE_MAX_BYTES
from nadi.segmentstore.state.records import Extent
from nadi.wire.fields import Buffer

_ENTRY_BYTES = 320  # of the dictionary, the key and the objects: a tail of small appends has a block for each

Place: TypeAlias = tuple[int | str, int, int]


def place_in_log(container: int, extent: Extent) -> Place:
    """Where an extent is that is in the log, or beside it."""
    assert extent.frame is not None
    name = f"{container}/{extent.run}" if extent.run else f"{container}"
    return name, extent.frame.sequence, extent.position


class BlockCache:
    """Blocks by place, least recently used dropped first; at most `max_bytes` in all, overhead included."""

    def __init__(self, max_bytes: int = CACHE_MAX_BYTES) -> None:
        self._blocks: OrderedDict[Place, Buffer] = OrderedDict()
        self._max_bytes = max_bytes
        self.size_bytes = 0

    def get(self, place: Place) -> Buffer | None:
        block = self._blocks.get(place)
        if block is not None:
            self._blocks.move_to_end(place)
        return block

    def peek(self, place: Place) -> Buffer | None:
        """Like `get`, for whoever reads the block for the last time: it doesn't count as used."""
        return self._blocks.get(place)

    def put(self, place: Place, block: Buffer) -> None:
        old = self._blocks.pop(place, None)
        if old is not None:
            self.size_bytes -= len(old) + _ENTRY_BYTES
        self._blocks[place] = block
        self.size_bytes += len(block) + _ENTRY_BYTES
        self._make_room()

    def put_frame(self, container: int, sequence: int, extents: list[Extent], parts: list[bytes]) -> None:
        """`put` the parts of a frame that was just written, which has one for each extent."""
        blocks, size_bytes, log = self._blocks, self.size_bytes, f"{container}"  # as `place_in_log` says
        for extent, part in zip(extents, parts, strict=True):
            blocks[log, sequence, extent.position] = part
            size_bytes += len(part) + _ENTRY_BYTES
        self.size_bytes = size_bytes
        self._make_room()

    def drop(self, place: Place) -> None:
        block = self._blocks.pop(place, None)
        if block is not None:
            self.size_bytes -= len(block) + _ENTRY_BYTES

    def _make_room(self) -> None:
        while self.size_bytes > self._max_bytes:
            _, dropped = self._blocks.popitem(last=False)
            self.size_bytes -= len(dropped) + _ENTRY_BYTES
