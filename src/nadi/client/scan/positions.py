"""The stream cuts around a row: the columns `position_before` and `position`.

A row's cut is just before or after it in its own segment. In every other segment it is the earliest position of a
reader of the whole stream that has reached the row's segment: the stream's head, or the start of a later segment. So
the cuts of two rows in a segment differ in that segment's offset only, and a slice between two rows contains nothing
from other segments.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import segment_ranges
from nadi.client.scan.pieces import ScanRange, ScanRequest
from nadi.model import cutorder
from nadi.model.streamcut import StreamCut
from nadi.naming import POSITIONS, segment_epoch, segment_number

_STORED_MOST = 1_000  # texts up to this many bytes aren't compressed: that would cost more than it saves


async def with_positions(manager: StreamManager, request: ScanRequest, pieces: Sequence[ScanRange]) -> list[ScanRange]:
    """Add the other segments' positions in the rows' cuts to the ranges, if the columns include positions."""
    if not any(name in request.columns for name in POSITIONS):
        return list(pieces)
    placed: list[ScanRange] = []
    for stream in dict.fromkeys(piece.stream for piece in pieces):
        ranges = [piece for piece in pieces if piece.stream == stream]
        others = await _others(manager, request.scope, stream, {piece.segment_id for piece in ranges})
        placed += [replace(piece, others=others[piece.segment_id]) for piece in ranges]
    return placed


async def _others(
    manager: StreamManager, scope: str, stream: str, segments: Iterable[int]
) -> dict[int, tuple[tuple[int, int], ...]]:
    stores = stores_of(manager)
    head = await stores.controller.head(scope, stream)
    head_ranges = {
        known.segment_id: (known.low, known.high) for known in await segment_ranges(stores, scope, stream, head)
    }
    cuts: dict[int, Mapping[int, int]] = {}  # by epoch
    positions = {}
    for segment in segments:
        cut = head.positions
        if head.positions.get(segment, -1) < 0:  # a successor of segments at the head
            epoch = segment_epoch(segment)
            if epoch not in cuts:
                active = await stores.controller.epoch_segments(scope, stream, epoch)
                ranges = head_ranges | {segment.segment_id: (segment.low, segment.high) for segment in active}
                first = StreamCut(scope, stream, {segment.segment_id: 0 for segment in active})
                cuts[epoch] = cutorder.latest(first, head, ranges).positions
            cut = cuts[epoch]
        positions[segment] = tuple((other, offset) for other, offset in cut.items() if other != segment)
    return positions


class PositionTexts:
    """The texts of the cuts of one range's rows, in the format of `StreamCut.from_text`.

    Only the offset at the end differs from row to row, so the text before it is compressed once.
    """

    def __init__(self, scope: str, piece: ScanRange) -> None:
        segments = [*(segment for segment, _ in piece.others), piece.segment_id]
        plain = ":".join(
            [
                "0",
                f"{scope}/{piece.stream}",
                ",".join(str(segment_number(segment)) for segment in segments),
                ",".join(str(segment_epoch(segment)) for segment in segments),
                "".join(f"{offset}," for _, offset in piece.others),
            ]
        )
        start = plain.encode()
        # the packer is copied for each row, so its window and tables are small
        is_packed = len(start) > _STORED_MOST
        level, wbits, memory = (6, 28, 5) if is_packed else (0, 25, 1)
        self._packer = zlib.compressobj(level, wbits=wbits, memLevel=memory)
        self._prefix = self._packer.compress(start)

    def of(self, offsets: Iterable[int]) -> list[str]:
        """Return the texts of the cuts at those offsets of the segment."""
        return [self._text(b"%d" % offset) for offset in offsets]

    def _text(self, digits: bytes) -> str:
        packer = self._packer.copy()
        return base64.b64encode(self._prefix + packer.compress(digits) + packer.flush()).decode()
