"""Delete a sealed stream with its mark stream: segments first, then its name, then all that was kept about it.

Tables that are defined on it go with it, after its name: whoever defines one at that moment, and looks for the stream
afterwards, sees that it is gone.

The last segment number is kept forever, so a new stream of this name never reuses a segment name.
"""

from __future__ import annotations

import msgspec

from nadi.controller.engine.workflows import Workflows, index_tags
from nadi.controller.state.metadata import StreamName
from nadi.controller.state.records import DeleteWork, StreamRecord, StreamState
from nadi.controller.state.segments import Versioned, together
from nadi.errors import ConditionFailedError, StreamNotSealedError
from nadi.model.named_records import StreamDependent
from nadi.naming import STREAM_TABLES_TABLE, TABLE_SUFFIX, segment_name
from nadi.wire import commands as wire
from nadi.wire.fields import WireTableKey


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
    gone: list[tuple[StreamName, Versioned[StreamRecord]]] = []
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
            await index_tags(flow, owner, found.value.config.tags, ())
        await together(flow.segments.delete(segment) for segment in segments)
        await flow.metadata.keep_last_numbers((owner, found.value.segments) for owner, found in gone)
        if not await flow.metadata.streams(name.scope).remove_if(*((o.stream, found.version) for o, found in gone)):
            raise ConditionFailedError(f"{name} changed while it was deleted")
    await _drop_definitions(flow, name)
    for owner in owners:  # last: as long as the record stands, its epochs must be found
        await flow.metadata.epochs(owner).drop()
        await flow.metadata.subscribers(owner).drop()
        await flow.metadata.marks(owner).drop()
        await flow.metadata.scalings(owner).drop()
        await flow.metadata.timed.remove([owner.key])
        flow.metadata.forget_history(owner)


async def _drop_definitions(flow: Workflows, name: StreamName) -> None:
    """Forget the tables that are defined on a stream, and how far changes are written into it. Clients keep both in a
    table of their scope, and anybody who may write that may write nonsense: what can't be read is of no stream."""
    if name.stream.startswith("_"):
        return
    table, segments = segment_name(name.scope, STREAM_TABLES_TABLE + TABLE_SUFFIX, 0), flow.segments
    async for entry in segments.table_entries(table):
        try:
            stream = msgspec.json.decode(entry.value, type=StreamDependent).stream
        except msgspec.MsgspecError:
            continue
        if stream == name.stream:
            removal = wire.RemoveTableKeys(
                segments.request_id(), table, "", (WireTableKey(bytes(entry.key), entry.version),)
            )
            # changed meanwhile: whoever did looks for the stream now
            await segments.ask(removal, wire.TableKeysRemoved, wire.TableKeyDoesNotExist, wire.TableKeyBadVersion)
