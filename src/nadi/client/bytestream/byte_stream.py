"""Byte streams: a stream of one segment that holds plain bytes, without events, as the official clients do.

`byte_writer` writes and `byte_reader` reads; here they are opened. Offsets count from the stream's first byte ever, so
they stay the same when the head is truncated.
"""

from __future__ import annotations

from nadi.client.bytestream.byte_reader import ByteStreamReader
from nadi.client.bytestream.byte_writer import ByteStreamWriter
from nadi.client.control.policy import FIXED
from nadi.client.segments.info import segment_info
from nadi.client.segments.stores import SegmentStores
from nadi.client.writing.sender import ACK_TIMEOUT_S
from nadi.errors import InvalidArgumentError, StreamSealedError
from nadi.naming import segment_name


async def open_byte_writer(
    stores: SegmentStores, scope: str, stream: str, ack_timeout_s: float = ACK_TIMEOUT_S
) -> ByteStreamWriter:
    """A writer at the stream's present end; InvalidArgumentError for a stream that may be scaled under it."""
    if (await stores.controller.stream_configuration(scope, stream)).scaling.kind != FIXED:
        raise InvalidArgumentError(
            f"{scope}/{stream} is scaled with its load, and a byte stream has one segment: "
            "update its scaling to ScalingPolicy.fixed(1)"
        )
    current = await stores.controller.current_segments(scope, stream)
    if not current:
        raise StreamSealedError(f"{scope}/{stream}")
    segment_id = _only(scope, stream, [piece.segment_id for piece in current])
    segment = segment_name(scope, stream, segment_id)
    info = await segment_info(stores, segment)
    return ByteStreamWriter(stores, scope, stream, segment_id, info.write_offset, ack_timeout_s)


async def open_byte_reader(
    stores: SegmentStores, scope: str, stream: str, *, start: int | None, follow: bool, timeout: float | None
) -> ByteStreamReader:
    """A reader at `start`, or at the head."""
    segment_id = await only_segment(stores, scope, stream)
    reader = ByteStreamReader(stores, scope, stream, segment_id, 0, follow=follow, timeout=timeout)
    await reader.seek(await reader.head() if start is None else start)
    return reader


async def only_segment(stores: SegmentStores, scope: str, stream: str) -> int:
    """The segment that a stream begins with; InvalidArgumentError if there are several."""
    return _only(scope, stream, list((await stores.controller.head(scope, stream)).positions))


def _only(scope: str, stream: str, segment_ids: list[int]) -> int:
    if len(segment_ids) != 1:
        raise InvalidArgumentError(
            f"{scope}/{stream} has {len(segment_ids)} segments and a byte stream has one: "
            "create a stream of one segment that never scales"
        )
    return segment_ids[0]
