"""How an event is laid out in a segment: `i32 0 · i32 length · payload`. `nadi.model.event` reads many at once.

Separate from that module because the controller reads the headers of a few watermarks and doesn't need Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

HEADER_BYTES = 8
HEADER = struct.Struct(">ii")
_SHORT_HEADERS = [HEADER.pack(0, size) for size in range(4096)]


def event_header(size: int) -> bytes:
    """Return the 8 bytes that precede a payload of `size` bytes."""
    return _SHORT_HEADERS[size] if size < len(_SHORT_HEADERS) else HEADER.pack(0, size)


def event_headers(sizes: list[int]) -> Iterable[bytes]:
    """Return the headers of many payloads, faster than one by one."""
    if max(sizes) < len(_SHORT_HEADERS):
        return map(_SHORT_HEADERS.__getitem__, sizes)
    return map(event_header, sizes)


def frame_events(events: Iterable[bytes]) -> bytes:
    """Return the events as a segment holds them.

    >>> frame_events([b"hi"]).hex()
    '00000000000000026869'
    """
    parts: list[bytes] = []
    for event in events:
        parts.append(event_header(len(event)))
        parts.append(event)
    return b"".join(parts)
