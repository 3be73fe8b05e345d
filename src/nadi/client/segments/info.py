"""The current state of a segment, or of a stream, according to the controller and the stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from nadi.client.segments.stores import SegmentStores
from nadi.display import Displayed
from nadi.errors import NadiError, SegmentGoneError, SegmentNotFoundError, StreamNotFoundError
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import parse_segment_name, segment_epoch, segment_name
from nadi.wire import commands as wire

X = TypeVar("X")
Y = TypeVar("Y")


@dataclass(frozen=True, slots=True)
class SegmentInfo(Displayed):
    """A segment as its store knows it; the offsets are where its data starts and ends."""

    start_offset: int
    write_offset: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class StreamInfo(Displayed):
    """A stream now: where it starts, where it ends, whether it takes events."""

    scope: str
    stream: str
    head: StreamCut
    tail: StreamCut
    is_sealed: bool


async def segment_info(stores: SegmentStores, segment: str, timeout_s: float | None = None) -> SegmentInfo:
    """What the store reports about one segment, by its name; SegmentNotFoundError if it is missing."""
    info = await stores.ask(wire.GetStreamSegmentInfo(0, segment, ""), wire.StreamSegmentInfo, timeout_s)
    return SegmentInfo(info.start_offset, info.write_offset, info.is_sealed)


async def following(stores: SegmentStores, scope: str, stream: str, segment_id: int) -> list[SegmentRange]:
    """The successors of a segment that was read to its end; none if the stream is sealed there.

    StreamRemadeError if the stream exists, but is not the one that had the segment.
    """
    return [successor.segment for successor in await stores.controller.successors(scope, stream, segment_id)]


async def what_became_of(stores: SegmentStores, segment: str) -> NadiError:
    """The error for a segment that its store does not have: SegmentGoneError if it was truncated away,
    StreamRemadeError or StreamNotFoundError if it went with its stream; or why that can't be determined."""
    try:
        await following(stores, *parse_segment_name(segment))
    except NadiError as error:
        return error
    return SegmentGoneError(segment)


async def was_recreated(stores: SegmentStores, scope: str, stream: str, segments: Collection[int]) -> bool:
    """Whether the stream isn't the one that had these segments at once, as far as its current ones show: scaling
    replaces them only by segments of later epochs. What is forgotten of the stream's history doesn't matter."""
    current = {one.segment_id for one in await stores.controller.current_segments(scope, stream)}
    if not current or not segments or not current.isdisjoint(segments):
        return False
    return min(map(segment_epoch, current)) <= max(map(segment_epoch, segments))


@asynccontextmanager
async def explained(stores: SegmentStores, segment: str) -> AsyncIterator[None]:
    """Raise what became of the segment's stream where its store says only that it has no such segment."""
    try:
        yield
    except SegmentNotFoundError as missing:
        error = await what_became_of(stores, segment)
        if isinstance(error, SegmentGoneError):
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
    """The segments that a sealed stream ended with: those of its newest segment's epoch."""
    ids = await stores.controller.segments_between(head.scope, head.stream, head, None)
    if not ids:
        raise StreamNotFoundError(head.scope, head.stream)
    epoch = segment_epoch(max(ids))
    return await stores.controller.epoch_segments(head.scope, head.stream, epoch)


async def of_each(items: Iterable[X], work: Callable[[X], Awaitable[Y]], at_once: int = 8) -> list[Y]:
    """What `work` returns for each, in order, so many at a time; if one fails, the others end."""
    turns = asyncio.Semaphore(at_once)

    async def one(item: X) -> Y:
        async with turns:
            return await work(item)

    tasks = [asyncio.create_task(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
