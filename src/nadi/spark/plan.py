"""What a batch reads: how far it goes, which ranges of which segments that is, and which task reads which.

Runs beside the driver. A streaming query's offset is a stream cut, held as the cut's text. A batch
takes each key from one segment only: a segment's successors begin in a batch of their own, after all
segments before them under any of their keys were read to their ends by earlier batches. So a key's
events keep their order, whichever tasks read them.

Ranges depend on the two cuts alone: a batch that is run again reads the same events.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import replace

from nadi.client.aio import SegmentInfo, StreamManager
from nadi.client.cuts import HEAD, TAIL, SegmentSlice
from nadi.client.reader import check_cut, segment_ranges
from nadi.errors import InvalidArgumentError
from nadi.limits import KIB
from nadi.model.frontier import Frontier
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from nadi.spark.options import Options

_FIRST_LOOK_BYTES = 64 * KIB


async def with_slice(manager: StreamManager, options: Options) -> Options:
    """The options with the cuts of the slice that they name, if they name one."""
    if options.slice_name is None:
        return options
    found = await manager.slices(options.scope).get(options.slice_name)
    check_cut(found.start, options.scope, options.stream)
    return replace(options, start=found.start, end=found.end, slice_name=None)


async def resolve(manager: StreamManager, options: Options, cut: StreamCut | str | int) -> StreamCut:
    """The cut that an option means now; InvalidStreamCutError unless it is one of the stream."""
    if isinstance(cut, int):
        return await manager.cuts(options.scope, options.stream).at(cut)
    if isinstance(cut, str):
        return await manager.cuts(options.scope, options.stream).named(cut)
    check_cut(cut, options.scope, options.stream)
    await segment_ranges(manager.stores, options.scope, options.stream, cut)
    return cut


async def batch_slices(manager: StreamManager, options: Options) -> list[SegmentSlice]:
    """Everything between the two cuts of the options (head and tail unless given), as far as it is asked for."""
    options = await with_slice(manager, options)
    start = await resolve(manager, options, HEAD if options.start is None else options.start)
    end = await resolve(manager, options, TAIL if options.end is None else options.end)
    slices = await manager.cuts(options.scope, options.stream).slices(start, end)
    return await narrowed(manager, options, slices)


async def narrowed(manager: StreamManager, options: Options, slices: list[SegmentSlice]) -> list[SegmentSlice]:
    """Those of the slices that can hold the options' routing keys."""
    if options.routing_keys is None or not slices:
        return slices
    return await manager.cuts(options.scope, options.stream).narrowed(slices, options.routing_keys)


async def next_cut(
    manager: StreamManager,
    options: Options,
    start: StreamCut,
    bounds: Iterable[StreamCut] = (),
    max_bytes: int | None = None,
) -> StreamCut:
    """Where a batch that begins at `start` ends now; `start` itself if there is nothing to read.

    bounds: cuts that it must not go past. max_bytes: about how much it may hold, at least one event
    of some segment.
    """
    scope, stream = options.scope, options.stream
    check_cut(start, scope, stream)
    ceilings: dict[int, int] = {}
    for bound in bounds:
        for segment_id, offset in bound.positions.items():
            ceilings[segment_id] = min(max(offset, 0), ceilings.get(segment_id, offset if offset > 0 else 0))
    ranges = await segment_ranges(manager.stores, scope, stream, start)
    future = {segment_id for segment_id, offset in start.positions.items() if offset < 0}
    frontier = Frontier(ranges, future)
    begins = {segment_id: start.positions[segment_id] for segment_id in frontier.active}
    infos: dict[int, SegmentInfo] = {}
    look = list(begins)
    while look:  # step over segments that earlier batches have finished
        infos |= await _infos(manager, options, look)
        finished = [
            segment_id
            for segment_id in look
            if infos[segment_id].is_sealed
            and begins[segment_id] >= infos[segment_id].write_offset
            and segment_id not in ceilings
        ]
        look = []
        for segment_id in finished:
            successors = await manager.controller.successors(scope, stream, segment_id)
            if not successors:
                continue  # the stream was sealed: its last segments stay in the cut
            begun = frontier.complete(segment_id, [successor.segment for successor in successors])
            del begins[segment_id]
            for piece in begun:
                begins[piece.segment_id] = 0
                look.append(piece.segment_id)
    ends = {s: min(infos[s].write_offset, ceilings.get(s, infos[s].write_offset)) for s in begins}
    slices = [SegmentSlice(s, begins[s], ends[s]) for s in begins if ends[s] > begins[s]]
    if not slices:
        return start
    if max_bytes is not None:
        slices = await _limited(manager, options, slices, max_bytes)
    positions = begins | {piece.segment_id: piece.end for piece in slices}
    return StreamCut(scope, stream, positions | dict.fromkeys(frontier.waiting, -1))


def slices_of(start: StreamCut, end: StreamCut) -> list[SegmentSlice]:
    """What lies between two offsets of a streaming query, one of which `next_cut` made from the other."""
    return [
        SegmentSlice(segment_id, max(start.positions.get(segment_id, 0), 0), offset)
        for segment_id, offset in end.positions.items()
        if offset > max(start.positions.get(segment_id, 0), 0)
    ]


def tasks(slices: Iterable[SegmentSlice], most: int, min_bytes: int) -> list[tuple[SegmentSlice, ...]]:
    """The slices dealt out to at most `most` tasks, about equally long, few if there is little to read.

    Within a task, older segments come first, and a segment's bytes in order.

    >>> [[s.segment_id for s in task] for task in tasks([SegmentSlice(i, 0, 9 - i) for i in range(4)], 2, 1)]
    [[0, 3], [1, 2]]
    """
    pieces = sorted(slices, key=lambda piece: (-piece.size_bytes, piece.segment_id))
    total = sum(piece.size_bytes for piece in pieces)
    count = min(most, len(pieces), max(1, -(-total // min_bytes)))
    loads: list[tuple[int, int, list[SegmentSlice]]] = [(0, number, []) for number in range(count)]
    for piece in pieces:
        load, number, mine = heapq.heappop(loads)
        mine.append(piece)
        heapq.heappush(loads, (load + piece.size_bytes, number, mine))
    ordered = sorted(loads, key=lambda task: task[1])
    return [tuple(sorted(mine, key=lambda piece: piece.segment_id)) for _, _, mine in ordered]


def shares(sizes: Mapping[int, int], total: int) -> dict[int, int]:
    """`total` divided so that nobody gets more than its size, and who gets less gets as much as any.

    >>> shares({1: 10, 2: 500, 3: 700}, 210)
    {1: 10, 2: 100, 3: 100}
    """
    given = {}
    left = total
    for done, (key, size) in enumerate(sorted(sizes.items(), key=lambda item: item[1])):
        given[key] = min(size, left // (len(sizes) - done))
        left -= given[key]
    return given


async def _limited(
    manager: StreamManager, options: Options, slices: list[SegmentSlice], max_bytes: int
) -> list[SegmentSlice]:
    """The slices cut short at event boundaries, to about `max_bytes` in all.

    Where events end is known from their headers only, so what is cut short is read here once.
    """
    given = shares({piece.segment_id: piece.size_bytes for piece in slices}, max_bytes)
    cut = await asyncio.gather(*(_cut_short(manager, options, s, given[s.segment_id]) for s in slices))
    if not any(piece.size_bytes for piece in cut):  # the limit is less than an event
        first = slices[0]
        size = _FIRST_LOOK_BYTES
        while not cut[0].size_bytes:
            cut[0] = await _cut_short(manager, options, first, min(size, first.size_bytes))
            size *= 4
    return [piece for piece in cut if piece.size_bytes]


async def _cut_short(manager: StreamManager, options: Options, piece: SegmentSlice, size: int) -> SegmentSlice:
    """The longest head of `piece` that has whole events and at most `size` bytes."""
    if size >= piece.size_bytes:
        return piece
    end = piece.start
    if size > 0:
        name = segment_name(options.scope, options.stream, piece.segment_id)
        try:
            async for block in manager.read_segment_range(name, piece.start, piece.start + size):
                end = block.offset + block.size_bytes
        except InvalidArgumentError:
            pass  # it ends within an event: the boundary before that is what is looked for
    return SegmentSlice(piece.segment_id, piece.start, end)


async def _infos(manager: StreamManager, options: Options, ids: Iterable[int]) -> dict[int, SegmentInfo]:
    wanted = list(ids)
    names = [segment_name(options.scope, options.stream, segment_id) for segment_id in wanted]
    return dict(zip(wanted, await asyncio.gather(*map(manager.segment_info, names)), strict=True))
