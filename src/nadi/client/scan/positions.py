"""The stream cuts around a row: in the columns `position_before` and `position`.

A row's cut stands before or after it in its own segment. In every other segment it stands where a reader of the whole
stream would who has read as little as it must to come to that segment: where the stream's head is, or at the
start of what follows it. So two rows of a segment differ in nothing but that segment's offset, and a slice between
two rows holds what lies between them, and nothing of other segments.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import segment_ranges
from nadi.client.scan.pieces import Piece, Wanted
from nadi.model import cutorder
from nadi.model.streamcut import StreamCut
from nadi.naming import POSITIONS, segment_epoch, segment_number

_STORED_MOST = 1_000  # bytes of a text that are stored as they are, for packing costs more than it saves
_HEADER = bytes.fromhex("1f8b08000000000000ff")  # of gzip: no name, no time


async def with_positions(manager: StreamManager, wanted: Wanted, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces, each with where the other segments stand in its rows' cuts, if these are wanted."""
    if not any(name in wanted.columns for name in POSITIONS):
        return list(pieces)
    found: list[Piece] = []
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

    Only the offset at the end differs from row to row: so the text up to there is packed and summed once.
    """

    def __init__(self, scope: str, piece: Piece) -> None:
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
        self._start = plain.encode()
        self._sum = zlib.crc32(self._start)
        self._packer = zlib.compressobj(wbits=31) if len(self._start) > _STORED_MOST else None
        self._packed = self._packer.compress(self._start) if self._packer is not None else b""
        self._starts: dict[int, tuple[str, bytes]] = {}  # by the number of the offset's digits: text, rest

    def of(self, offsets: Iterable[int]) -> list[str]:
        """The texts of the cuts at those offsets of the piece's segment."""
        make = self._stored if self._packer is None else self._compressed
        return [make(b"%d" % offset) for offset in offsets]

    def _stored(self, digits: bytes) -> str:
        held = self._starts.get(len(digits))
        if held is None:
            held = self._starts[len(digits)] = self._begun(len(self._start) + len(digits))
        text, rest = held
        tail = struct.pack("<II", zlib.crc32(digits, self._sum), len(self._start) + len(digits))
        return text + base64.b64encode(rest + digits + tail).decode()

    def _begun(self, size: int) -> tuple[str, bytes]:
        """Everything before the offset's digits: what is whole in base64, and the bytes that aren't."""
        start = _HEADER + struct.pack("<BHH", 1, size, size ^ 0xFFFF) + self._start  # one block, stored
        whole = len(start) // 3 * 3
        return base64.b64encode(start[:whole]).decode(), start[whole:]

    def _compressed(self, digits: bytes) -> str:
        assert self._packer is not None
        packer = self._packer.copy()
        return base64.b64encode(self._packed + packer.compress(digits) + packer.flush()).decode()
