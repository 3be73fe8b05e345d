"""Replace a stream's complete configuration, and scale the stream if the new one requires a different size."""

from __future__ import annotations

from msgspec.structs import replace

from nadi.controller.engine.workflows import Workflows, index_tags
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import ScaleWork, StreamConfigRecord, UpdateWork
from nadi.controller.state.segments import together
from nadi.model.keyspace import equal_ranges
from nadi.model.load import ScaleType


async def begin(flow: Workflows, name: StreamName, config: StreamConfigRecord) -> UpdateWork:
    await flow.metadata.open_stream(name)
    return UpdateWork(config)


async def steps(flow: Workflows, name: StreamName, work: UpdateWork) -> None:
    stream, version = await flow.metadata.stream(name)
    if stream.config != work.config:
        await index_tags(flow, name, stream.config.tags, work.config.tags)
        stream = replace(stream, config=work.config)
        await flow.metadata.put_stream(name, stream, version)
    await flow.metadata.list_limited(name, work.config)
    await together(flow.segments.update_policy(name.segment(s.id), work.config) for s in stream.segments)
    count, least = len(stream.segments), work.config.min_segments
    if count < least or (work.config.scale_type is ScaleType.FIXED and count != least):
        history = await flow.metadata.history(name)
        change = history.plan_scale(
            stream.epoch,
            [segment.id for segment in stream.segments],
            equal_ranges(least),
            min_segments=least,
            time_ms=flow.clock.now_ms(),
        )
        await flow.within(name, ScaleWork(change))
