"""Pieces as their readers are to have them: large ones divided, or all segments of a key together in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import known_ranges
from nadi.client.scan.pieces import Piece
from nadi.errors import DamagedDataError
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire import commands as wire

UNEVEN = 1.25  # a piece that is longer than what a reader should have by no more than this stays whole


async def divided(
    manager: StreamManager, scope: str, pieces: Sequence[Piece], most: int, min_bytes: int
) -> list[Piece]:
    """Large pieces cut at event boundaries, so that all of at most `most` readers have about equally much to read."""
    total = sum(piece.size_bytes for piece in pieces)
    size = max(min_bytes, -(-total // most))
    found = await asyncio.gather(*(_divided(manager, scope, piece, size) for piece in pieces))
    return [one for some in found for one in some]


async def _divided(manager: StreamManager, scope: str, piece: Piece, size: int) -> list[Piece]:
    if piece.size_bytes <= size * UNEVEN:
        return [piece]
    count = -(-piece.size_bytes // size)
    name = segment_name(scope, piece.stream, piece.segment_id)
    places = [piece.start + piece.size_bytes * number // count for number in range(1, count)]
    asked = (stores_of(manager).ask(wire.LocateOffset(0, name, place, ""), wire.OffsetLocated) for place in places)
    try:
        found = [reply.offset for reply in await asyncio.gather(*asked)]
    except DamagedDataError:  # who reads it has to find out what is left
        return [piece]
    borders = sorted({piece.start, piece.end, *(place for place in found if piece.start < place < piece.end)})
    return [replace(piece, start=low, end=high) for low, high in pairwise(borders)]


async def chained(manager: StreamManager, scope: str, pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces in groups that have no keys in common, each in the order in which its segments followed each other."""
    chains: list[list[Piece]] = []
    for stream in dict.fromkeys(piece.stream for piece in pieces):
        mine = sorted(piece for piece in pieces if piece.stream == stream)
        cut = StreamCut(scope, stream, {piece.segment_id: 0 for piece in mine})
        ranges = {one.segment_id: one for one in await known_ranges(stores_of(manager), cut)}
        chains += together(mine, ranges)
    return chains


def together(pieces: Sequence[Piece], ranges: dict[int, SegmentRange]) -> list[list[Piece]]:
    """Pieces of segments whose key ranges overlap, directly or through others. One whose range is forgotten may
    have any key."""
    everything = SegmentRange(-1, 0.0, 1.0)
    groups: list[tuple[float, float, list[Piece]]] = []
    for piece in sorted(pieces, key=lambda piece: ranges.get(piece.segment_id, everything).low):
        found = ranges.get(piece.segment_id, everything)
        if groups and found.low < groups[-1][1]:
            low, high, mine = groups.pop()
            groups.append((low, max(high, found.high), [*mine, piece]))
        else:
            groups.append((found.low, found.high, [piece]))
    return [sorted(mine) for _, _, mine in groups]
