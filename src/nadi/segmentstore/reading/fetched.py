"""What a fetch of stored bytes has brought: the bytes, which of them aren't what was stored, and if that is all."""

from __future__ import annotations

from typing import NamedTuple

from nadi.limits import READ_WHOLE_BYTES
from nadi.segmentstore.state.records import SegmentRecord
from nadi.wire.fields import Buffer


class Fetched(NamedTuple):
    """What an extent has from `begin` on, `size` bytes; `damaged` says which blocks of the extent are bad, and why."""

    data: Buffer
    begin: int
    size: int
    damaged: dict[int, str]
    block_bytes: int

    def readable_to(self, within: int) -> int:
        """Where the intact bytes end that start at that position of the extent."""
        if not self.damaged:
            return self.begin + self.size
        first = within // self.block_bytes
        ends = [number for number in self.damaged if number >= first]
        return max(within, min(ends) * self.block_bytes) if ends else self.begin + self.size


def is_cut_short(record: SegmentRecord, offset: int, data: Buffer, length: int) -> bool:
    """Whether a small read at `offset` has found less than there is."""
    return 0 < len(data) < length <= READ_WHOLE_BYTES and offset + len(data) < record.durable_length
