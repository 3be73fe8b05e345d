"""Plan the segment ranges that readers read: distributed evenly, large ones divided, or all segments of a key together
in order."""

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

_UNEVEN = 1.25  # ranges longer than a reader's share by up to this factor aren't divided
_SPARE = 32  # tolerance: a part's size may differ by 1/32, to avoid tiny ranges


class ScanRequest(Protocol):
    """The options of a read.

    columns: of those in `naming`. event_time_unit: of the times that writers note. target: what events are parsed as,
    if they are. on_damage: whether damaged data is an error, or skipped.
    """

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
    """The events of a segment from `start` to `end`, both event boundaries.

    others: (segment, offset) of the other segments in the stream cuts of its rows, if the columns include positions.
    """

    stream: str
    segment_id: int
    start: int
    end: int
    others: tuple[tuple[int, int], ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def pieces_of(stream: str, slices: Iterable[SegmentSlice]) -> list[ScanRange]:
    return [ScanRange(stream, segment.segment_id, segment.start, segment.end) for segment in slices]


def deal(
    pieces: Sequence[ScanRange], most: int, min_bytes: int, chains: Iterable[Sequence[ScanRange]] | None = None
) -> list[tuple[ScanRange, ...]]:
    """Distribute the ranges over at most `most` readers of about equal load, fewer if there is little to read.

    chains: groups of ranges that need the same reader. A reader's ranges are sorted: older segments first, each
    segment's bytes in order.

    >>> [[piece.segment_id for piece in task] for task in deal([ScanRange("s", i, 0, 9 - i) for i in range(4)], 2, 1)]
    [[0, 3], [1, 2]]
    """
    total = sum(piece.size_bytes for piece in pieces)
    parts = [
        (sum(piece.size_bytes for piece in chain), list(chain)) for chain in chains or ([piece] for piece in pieces)
    ]
    count = min(most, len(parts), max(1, -(-total // min_bytes)))
    loads: list[tuple[int, int, list[ScanRange]]] = [(0, number, []) for number in range(count)]
    for size, part in sorted(parts, key=lambda part: (-part[0], part[1])):
        load, number, assigned = heapq.heappop(loads)
        assigned += part
        heapq.heappush(loads, (load + size, number, assigned))
    return sorted(tuple(sorted(assigned)) for _, _, assigned in loads)


async def split_large(
    manager: StreamManager, scope: str, pieces: Sequence[ScanRange], most: int, min_bytes: int
) -> list[ScanRange]:
    """Divide large ranges at event boundaries, so that up to `most` readers can have about equal shares."""
    total = sum(piece.size_bytes for piece in pieces)
    size = max(min_bytes, -(-total // most))
    lists = await asyncio.gather(*(_divided(manager, scope, piece, size) for piece in pieces))
    return [piece for pieces in lists for piece in pieces]


async def _divided(manager: StreamManager, scope: str, piece: ScanRange, size: int) -> list[ScanRange]:
    if piece.size_bytes <= size * _UNEVEN:
        return [piece]
    count = -(-piece.size_bytes // size)
    offsets = [piece.start + piece.size_bytes * number // count for number in range(1, count)]
    bounds = sorted({piece.start, piece.end, *await _boundaries(manager, scope, piece, offsets)})
    return [replace(piece, start=low, end=high) for low, high in pairwise(bounds)]


async def split_evenly(
    manager: StreamManager, scope: str, pieces: Sequence[ScanRange], count: int
) -> list[tuple[ScanRange, ...]]:
    """Return the ranges in at most `count` parts of equal size: consecutive, divided at the event boundaries nearest to
    the ideal sizes. Returns fewer parts if an event is longer than a part."""
    ranges = sorted(piece for piece in pieces if piece.size_bytes)
    ends = list(accumulate(piece.size_bytes for piece in ranges))
    total = ends[-1] if ends else 0
    spare = total // count // _SPARE
    bounds: set[int] = set()  # of parts, as offsets in the bytes of all ranges
    targets: dict[int, list[int]] = {}  # by range: the ideal offsets of its bounds
    for number in range(1, count):
        bound = total * number // count
        index = bisect_left(ends, bound)
        before = ends[index] - ranges[index].size_bytes
        if bound - before <= spare or ends[index] - bound <= spare:
            bounds.add(before if bound - before <= spare else ends[index])
        else:
            targets.setdefault(index, []).append(ranges[index].start + bound - before)
    lookups = (_boundaries(manager, scope, ranges[index], offsets) for index, offsets in targets.items())
    for index, boundaries in zip(targets, await asyncio.gather(*lookups), strict=True):
        bounds.update(ends[index] - ranges[index].end + boundary for boundary in boundaries)
    return split_at(ranges, sorted(bounds - {0, total}))


def split_at(pieces: Sequence[ScanRange], bounds: Iterable[int]) -> list[tuple[ScanRange, ...]]:
    """Split consecutive ranges at these bounds, offsets in the bytes of all ranges.

    >>> ranges = [ScanRange("s", 0, 5, 9), ScanRange("s", 1, 0, 9)]
    >>> [[piece.size_bytes for piece in part] for part in split_at(ranges, [2, 4, 8])]
    [[2], [2], [4], [5]]
    >>> [[piece.size_bytes for piece in part] for part in split_at(ranges, [6])]
    [[4, 2], [7]]
    """
    parts: list[list[ScanRange]] = [[]] if pieces else []
    pending = deque(bounds)
    before = 0  # bytes before the range
    for piece in pieces:
        remainder, after = piece, before + piece.size_bytes
        while pending and pending[0] < after:
            bound = pending.popleft()
            if bound > before:
                offset = remainder.start + bound - before
                parts[-1].append(replace(remainder, end=offset))
                remainder, before = replace(remainder, start=offset), bound
            parts.append([])
        parts[-1].append(remainder)
        before = after
    return [tuple(part) for part in parts]


async def _boundaries(manager: StreamManager, scope: str, piece: ScanRange, offsets: Sequence[int]) -> list[int]:
    """Return the range's event boundaries nearest to these offsets, including its ends; none if its data is damaged,
    which the reader handles."""
    name = segment_name(scope, piece.stream, piece.segment_id)
    lookups = (stores_of(manager).ask(wire.LocateOffset(0, name, offset, ""), wire.OffsetLocated) for offset in offsets)
    try:
        boundaries = [reply.offset for reply in await asyncio.gather(*lookups)]
    except DamagedDataError:
        return []
    return [min(max(offset, piece.start), piece.end) for offset in boundaries]


async def chained(manager: StreamManager, scope: str, pieces: Sequence[ScanRange]) -> list[list[ScanRange]]:
    """Return the ranges in groups without common keys, each in the order of its segments."""
    chains: list[list[ScanRange]] = []
    for stream in dict.fromkeys(piece.stream for piece in pieces):
        ranges = sorted(piece for piece in pieces if piece.stream == stream)
        cut = StreamCut(scope, stream, {piece.segment_id: 0 for piece in ranges})
        key_ranges = {known.segment_id: known for known in await known_ranges(stores_of(manager), cut)}
        chains += groups_by_keys(ranges, key_ranges)
    return chains


def groups_by_keys(pieces: Sequence[ScanRange], ranges: dict[int, SegmentRange]) -> list[list[ScanRange]]:
    """Group ranges of segments whose key ranges overlap, directly or through others. A segment whose key range is
    unknown may have any key."""
    everything = SegmentRange(-1, 0.0, 1.0)
    groups: list[tuple[float, float, list[ScanRange]]] = []
    for piece in sorted(pieces, key=lambda piece: ranges.get(piece.segment_id, everything).low):
        keys = ranges.get(piece.segment_id, everything)
        if groups and keys.low < groups[-1][1]:
            low, high, group = groups.pop()
            groups.append((low, max(high, keys.high), [*group, piece]))
        else:
            groups.append((keys.low, keys.high, [piece]))
    return [sorted(group) for _, _, group in groups]
