"""Delete a sealed stream with its mark stream: segments first, then its name, then what was kept about it.

The last segment number is kept for ever, so that a new stream of this name reuses no segment name.
"""

from __future__ import annotations

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import DeleteWork, Stream, StreamState
from nadi.controller.state.segments import together
from nadi.controller.workflows import tags
from nadi.errors import StreamNotSealedError
from nadi.naming import segment_number


async def begin(flow: Workflows, name: StreamName) -> DeleteWork:
    stream = (await flow.metadata.stream(name)).value
    if stream.state is not StreamState.SEALED:
        raise StreamNotSealedError(*name)
    mark = None if name.stream.startswith("_") else await flow.metadata.find_stream(name.mark)
    if mark is not None and mark.value.internal:
        return DeleteWork((name.stream, name.mark.stream))
    return DeleteWork((name.stream,))


async def steps(flow: Workflows, name: StreamName, work: DeleteWork) -> None:
    owners = [StreamName(name.scope, stream) for stream in work.streams]
    gone: list[tuple[StreamName, Stream]] = []
    segments: list[str] = []
    for owner in owners:
        found = await flow.metadata.find_stream(owner)
        if found is None:
            continue
        gone.append((owner, found.value))
        history = await flow.metadata.history(owner)
        ids = history.between(found.value.head or history.head_of_time(), {})
        segments.extend(owner.segment(segment) for segment in ids)
    if gone:
        for owner, stream in gone:
            await tags.change(flow, owner, stream.config.tags, ())
        await together(flow.segments.delete(segment) for segment in segments)
        await flow.metadata.keep_last_numbers((owner, _last_number(stream)) for owner, stream in gone)
        await flow.metadata.streams(name.scope).remove([owner.stream for owner, _ in gone])
    for owner in owners:  # last: as long as the record stands, its epochs must be found
        await flow.metadata.epochs(owner).drop()
        await flow.metadata.subscribers(owner).drop()
        await flow.metadata.marks(owner).drop()
        await flow.metadata.timed.remove([owner.key])
        flow.metadata.forget_history(owner)


def _last_number(stream: Stream) -> int:
    return max(segment_number(segment.id) for segment in stream.segments)
