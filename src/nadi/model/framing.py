"""How an event lies in a segment: `i32 0 · i32 length · payload`. `nadi.model.event` reads many of them at once.

Apart from it, for the controller looks at the headers of a few watermarks and has no use for Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

HEADER_BYTES = 8
HEADER = struct.Struct(">ii")
_SHORT_HEADERS = [HEADER.pack(0, n) for n in range(4096)]


def event_header(size: int) -> bytes:
    """The 8 bytes that stand before a payload of `size` bytes."""
    return _SHORT_HEADERS[size] if size < 4096 else HEADER.pack(0, size)


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
