"""Create a stream: its segments, then its record, which makes it visible and ready at once.

Each user stream gets its `_MARK` stream of one segment in the same breath, for readers ask for it as
soon as the stream exists. Numbers go on after those of a deleted stream of the same name, so that
no segment name is ever used twice.
"""

from __future__ import annotations

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.history import first_epoch
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import Config, CreateWork, SegmentRange, Stream, StreamState
from nadi.controller.state.segments import together
from nadi.controller.state.store import ABSENT
from nadi.controller.workflows import tags
from nadi.errors import AlreadyExistsError, ConditionFailedError, ScopeNotFoundError
from nadi.naming import check_name

_MARK_CONFIG = Config()


async def begin(flow: Workflows, deleting: set[str], name: StreamName, config: Config) -> CreateWork:
    check_name("stream", name.stream, internal=True)
    deleted = flow.scopes_deleted
    await flow.metadata.open_scope(name.scope)
    if await flow.metadata.find_stream(name) is not None:
        raise AlreadyExistsError("stream", name.key)
    with_mark = not name.stream.startswith("_") and await flow.metadata.find_stream(name.mark) is None
    first, mark_first = await flow.metadata.first_numbers([name, name.mark])
    if name.scope in deleting:  # checked last: no await lies between this and the record of the work
        raise ScopeNotFoundError(name.scope)
    if deleted != flow.scopes_deleted:  # the scope may be gone since it was looked for
        return await begin(flow, deleting, name, config)
    return CreateWork(config, flow.clock.now_ms(), first, with_mark, mark_first)


async def steps(flow: Workflows, name: StreamName, work: CreateWork) -> None:
    streams = [(name, _new_stream(work.config, work.created_ms, work.first_number))]
    if work.with_mark:
        mark = _new_stream(_MARK_CONFIG, work.created_ms, work.mark_first_number, internal=True)
        streams.append((name.mark, mark))
    await together(
        flow.segments.create_segment(owner.segment(segment.id), stream.config)
        for owner, stream in streams
        for segment in stream.segments
    )
    await tags.change(flow, name, (), work.config.tags)
    table = flow.metadata.streams(name.scope)
    try:
        await table.put_all([(owner.stream, stream, ABSENT) for owner, stream in streams])
    except ConditionFailedError:
        if await table.get(name.stream, fresh=True) is None:  # somebody made the mark stream meanwhile
            await table.put(name.stream, streams[0][1], ABSENT)


def _new_stream(config: Config, created_ms: int, first_number: int, *, internal: bool = False) -> Stream:
    segments: tuple[SegmentRange, ...] = first_epoch(config.min_segments, created_ms, first_number).added
    return Stream(config, created_ms, StreamState.ACTIVE, 0, 0, created_ms, segments, {}, 0, internal)
