"""Opens the sender of a stream: to its current segments and their successors, with the times its writer notes."""

from __future__ import annotations

from uuid import uuid4

from nadi.client.segments.stores import SegmentStores
from nadi.client.writing.event_time import NotedTimes, check_writer_id
from nadi.client.writing.sender import ACK_TIMEOUT_S, EventSender
from nadi.errors import StreamSealedError
from nadi.naming import segment_name


async def open_sender(
    stores: SegmentStores,
    scope: str,
    stream: str,
    *,
    ack_timeout_s: float = ACK_TIMEOUT_S,
    blocking: bool = False,
    writer_id: str | None = None,
    automatically_note_time: bool = False,
) -> EventSender:
    """Open a sender to the stream's current segments; StreamSealedError if there are none."""
    if writer_id is not None:
        check_writer_id(writer_id)
    controller = stores.controller
    segments = await controller.current_segments(scope, stream)
    if not segments:
        raise StreamSealedError(f"stream {scope}/{stream}")
    sender = EventSender(
        stores,
        f"{scope}/{stream}",
        segments,
        name_of=lambda segment_id: segment_name(scope, stream, segment_id),
        find_successors=lambda segment_id: controller.successors(scope, stream, segment_id),
        ack_timeout_s=ack_timeout_s,
        blocking=blocking,
    )
    sender.times = NotedTimes(
        stores,
        scope,
        stream,
        writer_id or str(uuid4()),
        sender,
        continues=writer_id is not None,
    )
    if automatically_note_time:
        sender.times.note_automatically()
    return sender
