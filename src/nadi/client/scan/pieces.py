"""Pieces of segments, which are read one by one; and as their readers are to have them: dealt out, large ones divided,
or all segments of a key together in order."""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Protocol

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import known_ranges
from nadi.client.reading.damage import OnDamage
from nadi.client.stream_cuts.cuts import SegmentSlice
from nadi.client.values.options import ReadTarget
from nadi.errors import DamagedDataError
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.wire import commands as wire

_UNEVEN = 1.25  # a piece that is longer than what a reader should have by no more than this stays whole
_SPARE = 32  # one in so many of a part's bytes may be too much or too few, rather than one more tiny piece


class ScanRequest(Protocol):
    """What is read of pieces. columns: of those in `naming`. event_time_unit: of the times that writers note.
    target: what events are parsed as, if they are. on_damage: whether damaged data is an error, or skipped."""

    @property
    def scope(self) -> str: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def event_time_unit(self) -> str: ...
    @property
    def target(self) -> ReadTarget | None: ...
    @property
    def on_damage(self) -> OnDamage: ...


@dataclass(frozen=True, slots=True, order=True)
class ScanRange:
    """The events of a segment from `start` to `end`, both of them event boundaries; of a stream in the scope that is
    read. others: (segment, offset) of where others stand in the stream cuts of its rows, if these are wanted."""

    stream: str
    segment_id: int
    start: int
    end: int
    others: tuple[tuple[int, int], ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def pieces_of(stream: str, slices: Iterable[SegmentSlice]) -> list[ScanRange]:
    return [ScanRange(stream, one.segment_id, one.start, one.end) for one in slices]


def deal(
    pieces: Sequence[ScanRange], most: int, min_bytes: int, chains: Iterable[Sequence[ScanRange]] | None = None
) -> list[tuple[ScanRange, ...]]:
    """The pieces dealt out to at most `most` readers, about equally long, few if there is little to read. chains: the
    pieces by who must be read by one.

    Within a reader's, older segments come first, and a segment's bytes in order.

    >>> [[one.segment_id for one in task] for task in deal([Piece("s", i, 0, 9 - i) for i in range(4)], 2, 1)]
    [[0, 3], [1, 2]]
    """
    total = sum(piece.size_bytes for piece in pieces)
    parts = [(sum(one.size_bytes for one in chain), list(chain)) for chain in chains or ([one] for one in pieces)]
    count = min(most, len(parts), max(1, -(-total // min_bytes)))
    loads: list[tuple[int, int, list[ScanRange]]] = [(0, number, []) for number in range(count)]
    for size, part in sorted(parts, key=lambda part: (-part[0], part[1])):
        load, number, mine = heapq.heappop(loads)
        mine += part
        heapq.heappush(loads, (load + size, number, mine))
    return sorted(tuple(sorted(mine)) for _, _, mine in loads)


async def divided(
    manager: StreamManager, scope: str, pieces: Sequence[ScanRange], most: int, min_bytes: int
) -> list[ScanRange]:
    """Large pieces cut at event boundaries, so that all of at most `most` readers have about equally much to read."""
    total = sum(piece.size_bytes for piece in pieces)
    size = max(min_bytes, -(-total // most))
    found = await asyncio.gather(*(_divided(manager, scope, piece, size) for piece in pieces))
    return [one for some in found for one in some]


async def _divided(manager: StreamManager, scope: str, piece: ScanRange, size: int) -> list[ScanRange]:
    if piece.size_bytes <= size * _UNEVEN:
        return [piece]
    count = -(-piece.size_bytes // size)
    places = [piece.start + piece.size_bytes * number // count for number in range(1, count)]
    borders = sorted({piece.start, piece.end, *await _boundaries(manager, scope, piece, places)})
    return [replace(piece, start=low, end=high) for low, high in pairwise(borders)]


async def evenly(
    manager: StreamManager, scope: str, pieces: Sequence[ScanRange], count: int
) -> list[tuple[ScanRange, ...]]:
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


def parted(pieces: Sequence[ScanRange], borders: Iterable[int]) -> list[tuple[ScanRange, ...]]:
    """
    >>> [[one.size_bytes for one in part] for part in parted([Piece("s", 0, 5, 9), Piece("s", 1, 0, 9)], [2, 4, 8])]
    [[2], [2], [4], [5]]
    >>> [[one.size_bytes for one in part] for part in parted([Piece("s", 0, 5, 9), Piece("s", 1, 0, 9)], [6])]
    [[4, 2], [7]]
    """
    parts: list[list[ScanRange]] = [[]] if pieces else []
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


async def _boundaries(manager: StreamManager, scope: str, piece: ScanRange, places: Sequence[int]) -> list[int]:
    """The piece's event boundaries that are next to these offsets, its ends among them; none where its data is damaged,
    for who reads it has to find out what is left."""
    name = segment_name(scope, piece.stream, piece.segment_id)
    asked = (stores_of(manager).ask(wire.LocateOffset(0, name, place, ""), wire.OffsetLocated) for place in places)
    try:
        found = [reply.offset for reply in await asyncio.gather(*asked)]
    except DamagedDataError:
        return []
    return [min(max(place, piece.start), piece.end) for place in found]


async def chained(manager: StreamManager, scope: str, pieces: Sequence[ScanRange]) -> list[list[ScanRange]]:
    """The pieces in groups that have no keys in common, each in the order in which its segments followed each other."""
    chains: list[list[ScanRange]] = []
    for stream in dict.fromkeys(piece.stream for piece in pieces):
        mine = sorted(piece for piece in pieces if piece.stream == stream)
        cut = StreamCut(scope, stream, {piece.segment_id: 0 for piece in mine})
        ranges = {one.segment_id: one for one in await known_ranges(stores_of(manager), cut)}
        chains += together(mine, ranges)
    return chains


def together(pieces: Sequence[ScanRange], ranges: dict[int, SegmentRange]) -> list[list[ScanRange]]:
    """Pieces of segments whose key ranges overlap, directly or through others. One whose range is forgotten may
    have any key."""
    everything = SegmentRange(-1, 0.0, 1.0)
    groups: list[tuple[float, float, list[ScanRange]]] = []
    for piece in sorted(pieces, key=lambda piece: ranges.get(piece.segment_id, everything).low):
        found = ranges.get(piece.segment_id, everything)
        if groups and found.low < groups[-1][1]:
            low, high, mine = groups.pop()
            groups.append((low, max(high, found.high), [*mine, piece]))
        else:
            groups.append((found.low, found.high, [piece]))
    return [sorted(mine) for _, _, mine in groups]
