"""The stream cuts around a row: in the columns `position_before` and `position`.

A row's cut stands before or after it in its own segment. In every other segment it stands where a reader of the whole
stream would who has read as little as it must to come to that segment: where the stream's head is, or at the
start of what follows it. So two rows of a segment differ in nothing but that segment's offset, and a slice between
two rows holds what lies between them, and nothing of other segments.
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

_STORED_MOST = 1_000  # bytes of a text that are stored as they are, for packing costs more than it saves


async def with_positions(manager: StreamManager, wanted: ScanRequest, pieces: Sequence[ScanRange]) -> list[ScanRange]:
    """The pieces, each with where the other segments stand in its rows' cuts, if these are wanted."""
    if not any(name in wanted.columns for name in POSITIONS):
        return list(pieces)
    found: list[ScanRange] = []
    for stream in dict.fromkeys(piece.stream for piece in pieces):
        mine = [piece for piece in pieces if piece.stream == stream]
        others = await _others(manager, wanted.scope, stream, {piece.segment_id for piece in mine})
        found += [replace(piece, others=others[piece.segment_id]) for piece in mine]
    return found


async def _others(
    manager: StreamManager, scope: str, stream: str, segments: Iterable[int]
) -> dict[int, tuple[tuple[int, int], ...]]:
    stores = stores_of(manager)
    head = await stores.controller.head(scope, stream)
    head_ranges = {one.segment_id: (one.low, one.high) for one in await segment_ranges(stores, scope, stream, head)}
    cuts: dict[int, Mapping[int, int]] = {}  # by epoch
    found = {}
    for segment in segments:
        cut = head.positions
        if head.positions.get(segment, -1) < 0:  # it comes later, or waits for others that stand at the head
            epoch = segment_epoch(segment)
            if epoch not in cuts:
                active = await stores.controller.epoch_segments(scope, stream, epoch)
                ranges = head_ranges | {one.segment_id: (one.low, one.high) for one in active}
                first = StreamCut(scope, stream, {one.segment_id: 0 for one in active})
                cuts[epoch] = cutorder.latest(first, head, ranges).positions
            cut = cuts[epoch]
        found[segment] = tuple((other, offset) for other, offset in cut.items() if other != segment)
    return found


class PositionTexts:
    """The texts of the cuts of one piece's rows, as `StreamCut.from_text` reads them.

    Only the offset at the end differs from row to row: so the text up to there is packed once.
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
        # a copy of the packer for each row is to be small: so are its window and its tables
        is_packed = len(start) > _STORED_MOST
        level, wbits, memory = (6, 28, 5) if is_packed else (0, 25, 1)
        self._packer = zlib.compressobj(level, wbits=wbits, memLevel=memory)
        self._begun = self._packer.compress(start)

    def of(self, offsets: Iterable[int]) -> list[str]:
        """The texts of the cuts at those offsets of the piece's segment."""
        return [self._text(b"%d" % offset) for offset in offsets]

    def _text(self, digits: bytes) -> str:
        packer = self._packer.copy()
        return base64.b64encode(self._begun + packer.compress(digits) + packer.flush()).decode()
