"""How an event lies in a segment: `i32 0 · i32 length · payload`. `nadi.model.event` reads many of them at once.

Apart from it, for the controller looks at the headers of a few watermarks and has no use for Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

HEADER_BYTES = 8
HEADER = struct.Struct(">ii")
_SHORT_HEADERS = [HEADER.pack(0, size) for size in range(4096)]


def event_header(size: int) -> bytes:
    """The 8 bytes that stand before a payload of `size` bytes."""
    return _SHORT_HEADERS[size] if size < len(_SHORT_HEADERS) else HEADER.pack(0, size)


def event_headers(sizes: list[int]) -> Iterable[bytes]:
    """Those of many payloads, faster than one by one."""
    if max(sizes) < len(_SHORT_HEADERS):
        return map(_SHORT_HEADERS.__getitem__, sizes)
    return map(event_header, sizes)


def frame_events(events: Iterable[bytes]) -> bytes:
    """The events as they lie in a segment.

    >>> frame_events([b"hi"]).hex()
    '00000000000000026869'
    """
    parts: list[bytes] = []
    for event in events:
        parts.append(event_header(len(event)))
        parts.append(event)
    return b"".join(parts)
