"""Delete a sealed stream with its mark stream: segments first, then its record, then everything else about it.

Table definitions on the stream are deleted after its record: a client that adds a definition at that moment, and checks
for the stream afterwards, sees that it is gone. The last segment number is retained forever, so a new stream of this
name never reuses a segment name.
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
    existing: list[tuple[StreamName, Versioned[StreamRecord]]] = []
    segments: list[str] = []
    for owner in owners:
        record = await flow.metadata.find_stream(owner)
        if record is None:
            continue
        existing.append((owner, record))
        history = await flow.metadata.history(owner)
        ids = history.between(record.value.head or history.first_cut(), {})
        segments.extend(owner.segment(segment) for segment in ids)
    if existing:
        for owner, record in existing:
            await index_tags(flow, owner, record.value.config.tags, ())
        await together(flow.segments.delete(segment) for segment in segments)
        await flow.metadata.keep_last_numbers((owner, record.value.segments) for owner, record in existing)
        if not await flow.metadata.streams(name.scope).remove_if(
            *((o.stream, record.version) for o, record in existing)
        ):
            raise ConditionFailedError(f"{name} changed during its deletion")
    await _drop_definitions(flow, name)
    for owner in owners:  # last, since the epochs are needed while the record exists
        await flow.metadata.epochs(owner).delete()
        await flow.metadata.subscribers(owner).delete()
        await flow.metadata.marks(owner).delete()
        await flow.metadata.scalings(owner).delete()
        await flow.metadata.timed.remove([owner.key])
        flow.metadata.forget_history(owner)


async def _drop_definitions(flow: Workflows, name: StreamName) -> None:
    """Delete the tables defined on a stream and their change positions. Clients keep both in a table of their scope,
    which they may fill with anything, so unreadable entries are skipped."""
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
            # a concurrent change is fine: its client checks for the stream afterwards
            await segments.ask(removal, wire.TableKeysRemoved, wire.TableKeyDoesNotExist, wire.TableKeyBadVersion)
