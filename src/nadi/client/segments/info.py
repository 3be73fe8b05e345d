"""The current state of a segment, or of a stream, according to the controller and the stores."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from nadi.client.segments.stores import SegmentStores
from nadi.display import Displayed
from nadi.errors import StreamNotFoundError
from nadi.model.segments import SegmentRange
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_epoch, segment_name
from nadi.wire import commands as wire


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


async def stream_info(stores: SegmentStores, scope: str, stream: str) -> StreamInfo:
    """Where the stream starts and ends now, as stream cuts."""
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
