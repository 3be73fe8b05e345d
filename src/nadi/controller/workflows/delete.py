"""Delete a sealed stream with its mark stream: segments first, then its name, then all that was kept about it.

Tables that are defined on it go with it (`definitions`), after its name: whoever defines one at that moment, and looks
for the stream afterwards, sees that it is gone.

The last segment number is kept forever, so a new stream of this name never reuses a segment name.
"""

from __future__ import annotations

from nadi.controller.engine.workflows import Workflows
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import DeleteWork, Stream, StreamState
from nadi.controller.state.segments import together
from nadi.controller.state.store import Versioned
from nadi.controller.workflows import definitions, tags
from nadi.errors import ConditionFailedError, StreamNotSealedError
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
    gone: list[tuple[StreamName, Versioned[Stream]]] = []
    segments: list[str] = []
    for owner in owners:
        found = await flow.metadata.find_stream(owner)
        if found is None:
            continue
        gone.append((owner, found))
        history = await flow.metadata.history(owner)
        ids = history.between(found.value.head or history.head_of_time(), {})
        segments.extend(owner.segment(segment) for segment in ids)
    if gone:
        for owner, found in gone:
            await tags.change(flow, owner, found.value.config.tags, ())
        await together(flow.segments.delete(segment) for segment in segments)
        await flow.metadata.keep_last_numbers((owner, _last_number(found.value)) for owner, found in gone)
        if not await flow.metadata.streams(name.scope).remove_if(*((o.stream, found.version) for o, found in gone)):
            raise ConditionFailedError(f"{name} changed while it was deleted")
    await definitions.drop(flow, name)
    for owner in owners:  # last: as long as the record stands, its epochs must be found
        await flow.metadata.epochs(owner).drop()
        await flow.metadata.subscribers(owner).drop()
        await flow.metadata.marks(owner).drop()
        await flow.metadata.scalings(owner).drop()
        await flow.metadata.timed.remove([owner.key])
        flow.metadata.forget_history(owner)


def _last_number(stream: Stream) -> int:
    return max(segment_number(segment.id) for segment in stream.segments)
