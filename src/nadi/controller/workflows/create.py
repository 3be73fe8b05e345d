"""Create a stream: its segments, then its record, which makes it visible and ready at once.

Each user stream gets its one-segment `_MARK` stream at the same time, because readers ask for it as soon as the stream
exists. Segment numbers continue after those of a deleted stream of the same name, so no segment name is used twice.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from nadi.controller.engine.workflows import Workflows, WorkRefused, check_scope, index_tags
from nadi.controller.state.history import first_epoch
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import CreateWork, EpochSegment, StreamConfigRecord, StreamRecord, StreamState
from nadi.controller.state.segments import ABSENT, together
from nadi.errors import AlreadyExistsError, ConditionFailedError
from nadi.naming import check_name

_MARK_CONFIG = StreamConfigRecord()


async def begin(flow: Workflows, name: StreamName, config: StreamConfigRecord) -> CreateWork:
    check_name("stream", name.stream, internal=True)
    await flow.metadata.open_scope(name.scope)
    reads: list[Awaitable[list[Any]]] = [
        flow.metadata.streams(name.scope).get_all([name.stream, name.mark.stream]),
        flow.metadata.first_numbers([name, name.mark]),
    ]
    (stream, mark), (first, mark_first) = await together(reads)
    if stream is not None:
        raise AlreadyExistsError("stream", name.key)
    if flow.admit is not None:
        await flow.admit(name, config.min_segments)
    with_mark = not name.stream.startswith("_") and mark is None
    return CreateWork(config, flow.clock.now_ms(), first, with_mark, mark_first)


async def steps(flow: Workflows, name: StreamName, work: CreateWork) -> None:
    streams = [(name, _new_stream(work.config, work.created_ms, work.first_number))]
    if work.with_mark:
        mark = _new_stream(_MARK_CONFIG, work.created_ms, work.mark_first_number, internal=True)
        streams.append((name.mark, mark))
    try:
        await check_scope(flow, name.scope)
    except WorkRefused:
        if await flow.metadata.streams(name.scope).get(name.stream, fresh=True) is not None:
            return  # already created: its record is the last step
        await together(flow.segments.delete(owner.segment(s.id)) for owner, stream in streams for s in stream.segments)
        await index_tags(flow, name, work.config.tags, ())
        raise
    await together(
        flow.segments.create_segment(owner.segment(segment.id), stream.config)
        for owner, stream in streams
        for segment in stream.segments
    )
    await index_tags(flow, name, (), work.config.tags)
    table = flow.metadata.streams(name.scope)
    try:
        await table.put_all([(owner.stream, stream, ABSENT) for owner, stream in streams])
    except ConditionFailedError:
        if await table.get(name.stream, fresh=True) is None:  # the mark stream was created meanwhile
            await table.put(name.stream, streams[0][1], ABSENT)
    await flow.metadata.list_limited(name, work.config)


def _new_stream(
    config: StreamConfigRecord, created_ms: int, first_number: int, *, internal: bool = False
) -> StreamRecord:
    segments: tuple[EpochSegment, ...] = first_epoch(config.min_segments, created_ms, first_number).added
    return StreamRecord(config, created_ms, StreamState.ACTIVE, 0, 0, created_ms, segments, {}, internal)
