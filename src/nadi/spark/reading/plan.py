"""Resolve the options of a read: its cuts, the slices between them, and the tasks that read these.

Runs in the driver's process; `progress` determines the batches of a streaming query.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from nadi.client.aio import StreamManager
from nadi.client.manager.streams import stores_of
from nadi.client.reading.boundary import check_boundary, check_cut
from nadi.client.scan.pieces import ScanRange, deal
from nadi.client.stream_cuts import cuts
from nadi.client.stream_cuts.cuts import SegmentSlice
from nadi.client.stream_cuts.timestamps import HEAD, TAIL
from nadi.errors import InvalidArgumentError
from nadi.limits import SPARK_STREAMS
from nadi.model.streamcut import StreamCut
from nadi.spark.options.parsed import ReadOptions


async def with_slice(manager: StreamManager, options: ReadOptions) -> ReadOptions:
    """Replace the slice's name in the options by its cuts, if they have one."""
    if options.slice_name is None:
        return options
    named = await manager.slices(options.scope).get(options.slice_name)
    check_cut(named.start, options.scope, options.stream)
    return replace(options, start=named.start, end=named.end, slice_name=None)


async def resolve(
    manager: StreamManager, options: ReadOptions, cut: StreamCut | str | int, *, end: bool = False
) -> StreamCut:
    """Return the cut that an option currently means; InvalidStreamCutError if it isn't one of the stream. end: it is
    the end of the read."""
    if isinstance(cut, int):
        return await manager.cuts(options.scope, options.stream).at(cut)
    if isinstance(cut, str):
        return await manager.cuts(options.scope, options.stream).named(cut, end=end)
    check_cut(cut, options.scope, options.stream)
    await check_boundary(stores_of(manager), cut)
    return cut


async def streams_of(manager: StreamManager, options: ReadOptions) -> list[str]:
    """Return the names of the streams to read; StreamNotFoundError if a named one doesn't exist, InvalidArgumentError
    if there are too many."""
    several = options.several
    if several is None:
        return [options.stream]
    if several.names:
        for name in several.names:
            await manager.stream_configuration(options.scope, name)
        return list(several.names)
    names = sorted(name for name in await manager.list_streams(options.scope, several.tag) if several.takes(name))
    if len(names) > SPARK_STREAMS:
        raise InvalidArgumentError(
            f"{several} matches {len(names):,} streams of scope {options.scope}, more than {SPARK_STREAMS:,}, the "
            "limit of one query: use several queries"
        )
    return names


async def start_of(manager: StreamManager, options: ReadOptions) -> StreamCut:
    """Return the start of a streaming query (default: the head); InvalidStreamCutError if it is after the end."""
    options = await with_slice(manager, options)
    start = await resolve(manager, options, HEAD if options.start is None else options.start)
    if options.end is not None:
        end = await resolve(manager, options, options.end, end=True)
        await manager.cuts(options.scope, options.stream).segments_between(start, end)
    return start


async def batch_slices(manager: StreamManager, options: ReadOptions) -> list[SegmentSlice]:
    """Return the slices between the two cuts of the options (default: head and tail) that may contain its routing
    keys."""
    options = await with_slice(manager, options)
    start = await resolve(manager, options, HEAD if options.start is None else options.start)
    end = await resolve(manager, options, TAIL if options.end is None else options.end, end=True)
    slices = await cuts.slices_between(manager.cuts(options.scope, options.stream), start, end)
    return await narrowed(manager, options, slices)


async def narrowed(manager: StreamManager, options: ReadOptions, slices: list[SegmentSlice]) -> list[SegmentSlice]:
    """Return those slices that may contain the options' routing keys."""
    if options.routing_keys is None or not slices:
        return slices
    return await cuts.slices_with_keys(manager.cuts(options.scope, options.stream), slices, options.routing_keys)


class PiecesPartition(InputPartition):
    """The ranges of one task. borders: the offsets of its batch, if this task notes them. claim: the number of the
    batch and the id of the query's run, if only the first attempt at this task may read."""

    claim: tuple[int, str] | None = None

    def __init__(
        self, pieces: tuple[ScanRange, ...], borders: tuple[dict[str, Any], dict[str, Any]] | None = None
    ) -> None:
        super().__init__(pieces)
        self.pieces, self.borders = pieces, borders


def partitions_of(
    options: ReadOptions, pieces: Sequence[ScanRange], chains: Iterable[Sequence[ScanRange]] | None = None
) -> list[PiecesPartition]:
    """Return the partitions, at least one: without any, Spark calls `read` with None. chains: groups of ranges for one
    task each."""
    tasks = deal(pieces, options.max_partitions, options.min_partition_bytes, chains)
    return [PiecesPartition(task) for task in tasks] or [PiecesPartition(())]
