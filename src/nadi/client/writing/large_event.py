"""An event too large for one append: written to a transient segment, which is then merged in one step."""

from __future__ import annotations

import uuid

from nadi.client.segments.connection import SegmentStoreConnection
from nadi.client.segments.session import set_up
from nadi.client.segments.tokens import DelegationTokens
from nadi.client.writing.batch import Batch
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
    create = wire.CreateTransientSegment(0, writer_id, segment, token)
    created = await connection.ask(create, wire.SegmentCreated, timeout_s=_TIMEOUT_S)
    transient, writer = created.segment, uuid.uuid4().bytes
    await set_up(connection, transient, writer, token)
    data = memoryview(batch.data())
    for number, offset in enumerate(range(0, len(data), MAX_EVENT_BYTES)):
        piece = wire.ConditionalBlockEnd(writer, number, offset, data[offset : offset + MAX_EVENT_BYTES], 0)
        await connection.ask(piece, wire.DataAppended, timeout_s=_TIMEOUT_S)
    update = AttributeUpdate(writer_id, _REPLACE_IF_GREATER, batch.number, NO_VERSION)
    token = await tokens.token(segment, wire.MergeSegments)
    merge = wire.MergeSegments(0, segment, transient, token, (update,))
    refused = wire.SegmentAttributeUpdated  # an earlier attempt has merged the event
    await connection.ask(merge, wire.SegmentsMerged, refused, timeout_s=_TIMEOUT_S)
