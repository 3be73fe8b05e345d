"""Pieces as their readers are to have them: large ones divided, or all segments of a key together in order."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import known_ranges
from nadi.client.scan.pieces import Piece
from nadi.errors import DamagedDataError
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire import commands as wire

_UNEVEN = 1.25  # a piece that is longer than what a reader should have by no more than this stays whole
_SPARE = 32  # one in so many of a part's bytes may be too much or too few, rather than one more tiny piece


async def divided(
    manager: StreamManager, scope: str, pieces: Sequence[Piece], most: int, min_bytes: int
) -> list[Piece]:
    """Large pieces cut at event boundaries, so that all of at most `most` readers have about equally much to read."""
    total = sum(piece.size_bytes for piece in pieces)
    size = max(min_bytes, -(-total // most))
    found = await asyncio.gather(*(_divided(manager, scope, piece, size) for piece in pieces))
    return [one for some in found for one in some]


async def _divided(manager: StreamManager, scope: str, piece: Piece, size: int) -> list[Piece]:
    if piece.size_bytes <= size * _UNEVEN:
        return [piece]
    count = -(-piece.size_bytes // size)
    places = [piece.start + piece.size_bytes * number // count for number in range(1, count)]
    borders = sorted({piece.start, piece.end, *await _boundaries(manager, scope, piece, places)})
    return [replace(piece, start=low, end=high) for low, high in pairwise(borders)]


async def evenly(manager: StreamManager, scope: str, pieces: Sequence[Piece], count: int) -> list[tuple[Piece, ...]]:
    """The pieces in at most `count` parts of the same size: one after the other in order, cut at the event boundaries
    next to where a part is full. Fewer, where an event is longer than a part."""
    mine = sorted(piece for piece in pieces if piece.size_bytes)
    ends = list(accumulate(piece.size_bytes for piece in mine))
    total = ends[-1] if ends else 0
    spare = total // count // _SPARE
    borders: set[int] = set()  # of parts, in the bytes of all pieces
    within: dict[int, list[int]] = {}  # places in a piece that are wanted as borders
    for number in range(1, count):
        border = total * number // count
        at = bisect_left(ends, border)
        before = ends[at] - mine[at].size_bytes
        if border - before <= spare or ends[at] - border <= spare:
            borders.add(before if border - before <= spare else ends[at])
        else:
            within.setdefault(at, []).append(mine[at].start + border - before)
    asked = (_boundaries(manager, scope, mine[at], places) for at, places in within.items())
    for at, found in zip(within, await asyncio.gather(*asked), strict=True):
        borders.update(ends[at] - mine[at].end + place for place in found)
    return parted(mine, sorted(borders - {0, total}))


def parted(pieces: Sequence[Piece], borders: Iterable[int]) -> list[tuple[Piece, ...]]:
    """
    >>> [[one.size_bytes for one in part] for part in parted([Piece("s", 0, 5, 9), Piece("s", 1, 0, 9)], [2, 4, 8])]
    [[2], [2], [4], [5]]
    >>> [[one.size_bytes for one in part] for part in parted([Piece("s", 0, 5, 9), Piece("s", 1, 0, 9)], [6])]
    [[4, 2], [7]]
    """
    parts: list[list[Piece]] = [[]] if pieces else []
    left = deque(borders)
    before = 0  # bytes in front of the piece
    for piece in pieces:
        rest, after = piece, before + piece.size_bytes
        while left and left[0] < after:
            border = left.popleft()
            if border > before:
                place = rest.start + border - before
                parts[-1].append(replace(rest, end=place))
                rest, before = replace(rest, start=place), border
            parts.append([])
        parts[-1].append(rest)
        before = after
    return [tuple(part) for part in parts]


async def _boundaries(manager: StreamManager, scope: str, piece: Piece, places: Sequence[int]) -> list[int]:
    """The piece's event boundaries that are next to these offsets, its ends among them; none where its data is damaged,
    for who reads it has to find out what is left."""
    name = segment_name(scope, piece.stream, piece.segment_id)
    asked = (stores_of(manager).ask(wire.LocateOffset(0, name, place, ""), wire.OffsetLocated) for place in places)
    try:
        found = [reply.offset for reply in await asyncio.gather(*asked)]
    except DamagedDataError:
        return []
    return [min(max(place, piece.start), piece.end) for place in found]


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
