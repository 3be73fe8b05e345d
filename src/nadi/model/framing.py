"""Layout of events in a segment, `i32 0 · i32 length · payload`, and a scanner for their starts.

Separate from `nadi.model.event`, which returns the events, because servers don't need Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from nadi.errors import ProtocolError
from nadi.limits import KIB, MAX_LARGE_EVENT_BYTES

if TYPE_CHECKING:
    import numpy as np

HEADER_BYTES = 8
HEADER = struct.Struct(">ii")
_LENGTH = struct.Struct(">Q")  # a valid header's first half is 0, so the header as one number is the length
_LOOK_BYTES, _LOOK_MAX_BYTES = 4 * KIB, 64 * KIB  # scanned between searches for runs of equal lengths
Starts: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_SHORT_HEADERS = [HEADER.pack(0, size) for size in range(4096)]


def event_header(size: int) -> bytes:
    """Return the 8-byte header of a payload of `size` bytes."""
    return _SHORT_HEADERS[size] if size < len(_SHORT_HEADERS) else HEADER.pack(0, size)


def event_headers(sizes: list[int]) -> Iterable[bytes]:
    """Return the headers of many payloads, faster than one by one."""
    if max(sizes) < len(_SHORT_HEADERS):
        return map(_SHORT_HEADERS.__getitem__, sizes)
    return map(event_header, sizes)


def frame_events(events: Iterable[bytes]) -> bytes:
    """Return the events with their headers, as a segment stores them.

    >>> frame_events([b"hi"]).hex()
    '00000000000000026869'
    """
    parts: list[bytes] = []
    for event in events:
        parts.append(event_header(len(event)))
        parts.append(event)
    return b"".join(parts)


def event_starts(
    data: memoryview, offset: int = 0, *, max_events: int | None = None, max_steps: int | None = None
) -> tuple[Starts, int]:
    """Return the int64 positions of the complete events at the start of `data`, and their total size in bytes.

    offset: the offset of `data` in its segment. Stops after `max_events`, or after about `max_steps` single steps.
    ProtocolError if the bytes aren't events.

    A minimal loop steps over single events; every few KiB, if the last two have the same length, array comparisons
    find how many more follow with that length.
    """
    import numpy as np

    size = min(len(data), HEADER_BYTES + MAX_LARGE_EVENT_BYTES)
    limit = size if max_events is None else max_events
    parts: list[Any] = []
    singles: list[int] = []
    position = count = steps = 0
    most_steps = size if max_steps is None else max_steps
    look = _LOOK_BYTES
    while count < limit and steps < most_steps:
        before = len(singles)
        position = _step(data, size, position, position + look, singles)
        count += len(singles) - before
        steps += len(singles) - before
        if position + HEADER_BYTES > size:
            break
        stride, run = position - singles[-1], 0
        if len(singles) - before > 1 and singles[-1] - singles[-2] == stride:
            run = _run(data, position, stride, min((size - position) // stride, limit - count))
        if run == 0:
            look = min(2 * look, _LOOK_MAX_BYTES)
            continue
        parts.append(np.array(singles, np.int64))
        parts.append(np.arange(position, position + run * stride, stride, dtype=np.int64))
        singles = []
        position += run * stride
        count += run
        look = _LOOK_BYTES
    starts = np.array(singles, np.int64)
    if parts:
        starts = np.concatenate([*parts, starts])
    if count > limit:
        position = int(starts[limit])
        starts = starts[:limit]
    elif position > size:
        position = int(starts[-1])
        starts = starts[:-1]
        kind, length = HEADER.unpack_from(data, position)
        if kind != 0 or not 0 <= length <= MAX_LARGE_EVENT_BYTES:
            raise ProtocolError(f"the bytes at offset {offset + position:,} are not an event: header {kind}, {length}")
    return starts, position


def _step(data: memoryview, size: int, position: int, stop: int, starts: list[int]) -> int:
    """Append the starts of the events from `position` to `stop` to `starts`; return the end of the last event.

    A header is read as one unsigned number: a valid header's length. An invalid header gives a number larger than any
    `size`, so the scan ends beyond `size`, as after an incomplete last event: only the last header needs a check.
    """
    stop = min(stop, size - HEADER_BYTES + 1)
    unpack, append = _LENGTH.unpack_from, starts.append
    while position < stop:
        append(position)
        position += unpack(data, position)[0] + HEADER_BYTES
    return position


def _run(data: memoryview, position: int, stride: int, most: int) -> int:
    """Count the events from `position` on, at most `most`, that have the length of the previous event.

    Compares 16 headers, then twice as many each time, so it compares few more than it counts.
    """
    import numpy as np

    run, rows = 0, 16
    while run < most:
        rows = min(rows, most - run)
        headers = np.ndarray((rows,), ">u8", data, position + run * stride, (stride,))
        differs = headers != stride - HEADER_BYTES
        if differs.any():
            return run + int(differs.argmax())
        run += rows
        rows *= 2
    return run
