"""What the options of a read mean now: its cuts, the slices between them, and which task reads which.

Runs beside the driver; `progress` says how far the batches of a streaming query go.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.places import cuts
from nadi.client.places.cuts import SegmentSlice
from nadi.client.places.moments import HEAD, TAIL
from nadi.client.reading.boundary import check_boundary, check_cut
from nadi.model.streamcut import StreamCut
from nadi.spark.options.read import ReadOptions


async def with_slice(manager: StreamManager, options: ReadOptions) -> ReadOptions:
    """The options with the cuts of the slice that they name, if they name one."""
    if options.slice_name is None:
        return options
    found = await manager.slices(options.scope).get(options.slice_name)
    check_cut(found.start, options.scope, options.stream)
    return replace(options, start=found.start, end=found.end, slice_name=None)


async def resolve(manager: StreamManager, options: ReadOptions, cut: StreamCut | str | int) -> StreamCut:
    """The cut that an option means now; InvalidStreamCutError unless it is one of the stream."""
    if isinstance(cut, int):
        return await manager.cuts(options.scope, options.stream).at(cut)
    if isinstance(cut, str):
        return await manager.cuts(options.scope, options.stream).named(cut)
    check_cut(cut, options.scope, options.stream)
    await check_boundary(stores_of(manager), cut)
    return cut


async def start_of(manager: StreamManager, options: ReadOptions) -> StreamCut:
    """Where a streaming query starts (default: the head); InvalidStreamCutError if that is after its end."""
    options = await with_slice(manager, options)
    start = await resolve(manager, options, HEAD if options.start is None else options.start)
    if options.end is not None:
        end = await resolve(manager, options, options.end)
        await manager.cuts(options.scope, options.stream).segments_between(start, end)
    return start


async def batch_slices(manager: StreamManager, options: ReadOptions) -> list[SegmentSlice]:
    """Everything between the two cuts of the options (default: head and tail), as far as it is requested."""
    options = await with_slice(manager, options)
    start = await resolve(manager, options, HEAD if options.start is None else options.start)
    end = await resolve(manager, options, TAIL if options.end is None else options.end)
    slices = await cuts.slices_between(manager.cuts(options.scope, options.stream), start, end)
    return await narrowed(manager, options, slices)


async def narrowed(manager: StreamManager, options: ReadOptions, slices: list[SegmentSlice]) -> list[SegmentSlice]:
    """Those of the slices that can hold the options' routing keys."""
    if options.routing_keys is None or not slices:
        return slices
    return await cuts.narrowed(manager.cuts(options.scope, options.stream), slices, options.routing_keys)


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
