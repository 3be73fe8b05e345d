"""An event too large for one append: written to a transient segment, which is then merged whole."""

from __future__ import annotations

import uuid

from nadi.client.segments.connection import SegmentStoreConnection
from nadi.client.segments.tokens import DelegationTokens
from nadi.client.writing.batch import Batch
from nadi.errors import UnavailableError
from nadi.limits import MAX_EVENT_BYTES
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, AttributeUpdate

_TIMEOUT_S = 60.0
_REPLACE_IF_GREATER = 2


async def merge_large_event(
    connection: SegmentStoreConnection, tokens: DelegationTokens, segment: str, writer_id: bytes, batch: Batch
) -> None:
    """Store the batch's one event at the end of `segment`, with its number as the writer's last.

    The transient segment ends with its connection, so an attempt that fails leaves nothing.
    """
    token = await tokens.token(segment, wire.CreateTransientSegment)
    created = await connection.call(
        wire.CreateTransientSegment, _TIMEOUT_S, writer_id=writer_id, parent_segment=segment, token=token
    )
    assert isinstance(created, wire.SegmentCreated)
    transient, writer = created.segment, uuid.uuid4().bytes
    await connection.call(wire.SetupAppend, _TIMEOUT_S, writer_id=writer, segment=transient, token=token)
    data = memoryview(batch.data())
    for number, offset in enumerate(range(0, len(data), MAX_EVENT_BYTES)):
        reply = await connection.call(
            wire.ConditionalBlockEnd,
            _TIMEOUT_S,
            writer_id=writer,
            event_number=number,
            expected_offset=offset,
            data=data[offset : offset + MAX_EVENT_BYTES],
        )
        if not isinstance(reply, wire.DataAppended):
            raise UnavailableError(f"a piece of a large event was answered with {type(reply).__name__}")
    update = AttributeUpdate(writer_id, _REPLACE_IF_GREATER, batch.number, NO_VERSION)
    token = await tokens.token(segment, wire.MergeSegments)
    await connection.call(
        wire.MergeSegments, _TIMEOUT_S, target=segment, source=transient, token=token, attribute_updates=(update,)
    )
