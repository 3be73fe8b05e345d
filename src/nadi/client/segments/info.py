"""Query the current state of segments and streams from the controller and the stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from nadi.client.segments.stores import SegmentStores
from nadi.display import Displayed
from nadi.errors import NadiError, SegmentNotFoundError, SegmentTruncatedError, StreamNotFoundError
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import parse_segment_name, segment_epoch, segment_name
from nadi.wire import commands as wire

X = TypeVar("X")
Y = TypeVar("Y")


@dataclass(frozen=True, slots=True)
class SegmentInfo(Displayed):
    """A segment's state at its store; the offsets are the start and the end of its data."""

    start_offset: int
    write_offset: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class StreamInfo(Displayed):
    """A stream's current head and tail, and whether it is sealed."""

    scope: str
    stream: str
    head: StreamCut
    tail: StreamCut
    is_sealed: bool


async def segment_info(stores: SegmentStores, segment: str, timeout_s: float | None = None) -> SegmentInfo:
    """Return the state of a segment, by its name; raise SegmentNotFoundError if it is missing."""
    info = await stores.ask(wire.GetStreamSegmentInfo(0, segment, ""), wire.StreamSegmentInfo, timeout_s)
    return SegmentInfo(info.start_offset, info.write_offset, info.is_sealed)


async def successors_of(stores: SegmentStores, scope: str, stream: str, segment_id: int) -> list[SegmentRange]:
    """Return the successors of a segment that was read to its end; empty if the stream is sealed there.

    Raises StreamRecreatedError if the stream was deleted and created again since.
    """
    return [successor.segment for successor in await stores.controller.successors(scope, stream, segment_id)]


async def resolve_missing(stores: SegmentStores, segment: str) -> NadiError:
    """Return the error for a segment that is missing at its store: SegmentTruncatedError if it was truncated away,
    StreamRecreatedError or StreamNotFoundError if its stream was deleted; or the error that prevents an answer."""
    try:
        await successors_of(stores, *parse_segment_name(segment))
    except NadiError as error:
        return error
    return SegmentTruncatedError(segment)


async def was_recreated(stores: SegmentStores, scope: str, stream: str, segments: Collection[int]) -> bool:
    """Return whether the stream was deleted and created again since it had these segments at the same time. Only its
    current segments are compared: scaling replaces segments only by ones of later epochs, so the answer doesn't
    depend on forgotten history."""
    current = {segment.segment_id for segment in await stores.controller.current_segments(scope, stream)}
    if not current or not segments or not current.isdisjoint(segments):
        return False
    return min(map(segment_epoch, current)) <= max(map(segment_epoch, segments))


@asynccontextmanager
async def resolving_missing(stores: SegmentStores, segment: str) -> AsyncIterator[None]:
    """Replace a SegmentNotFoundError by the error of the segment's stream if that was deleted or recreated."""
    try:
        yield
    except SegmentNotFoundError as missing:
        error = await resolve_missing(stores, segment)
        if isinstance(error, SegmentTruncatedError):
            raise missing
        raise error from None


async def stream_info(stores: SegmentStores, scope: str, stream: str) -> StreamInfo:
    controller = stores.controller
    current, head = await asyncio.gather(controller.current_segments(scope, stream), controller.head(scope, stream))
    segments = current or await _last_segments(stores, head)
    infos = await asyncio.gather(*(segment_info(stores, segment_name(scope, stream, s.segment_id)) for s in segments))
    ends = {s.segment_id: info.write_offset for s, info in zip(segments, infos, strict=True)}
    return StreamInfo(scope, stream, head, StreamCut(scope, stream, ends), not current)


async def _last_segments(stores: SegmentStores, head: StreamCut) -> list[SegmentRange]:
    """Return the last segments of a sealed stream, which are the segments of its newest segment's epoch."""
    ids = await stores.controller.segments_between(head.scope, head.stream, head, None)
    if not ids:
        raise StreamNotFoundError(head.scope, head.stream)
    epoch = segment_epoch(max(ids))
    return await stores.controller.epoch_segments(head.scope, head.stream, epoch)


async def map_concurrently(items: Iterable[X], work: Callable[[X], Awaitable[Y]], at_once: int = 8) -> list[Y]:
    """Return the results of `work` per item, in order, with up to `at_once` running; one failure cancels the others."""
    permits = asyncio.Semaphore(at_once)

    async def limited(item: X) -> Y:
        async with permits:
            return await work(item)

    tasks = [asyncio.create_task(limited(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
