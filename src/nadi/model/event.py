"""Whole events in a range of a segment's bytes.

An `EventBlock` knows where each event starts, and returns all payloads as one Arrow array, without a Python object for
each event, or as a list of bytes objects that Arrow makes. `nadi.model.framing` says how one event is laid out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from nadi.errors import ProtocolError
from nadi.limits import KIB, MAX_LARGE_EVENT_BYTES
from nadi.model.framing import HEADER, HEADER_BYTES

_LENGTH = struct.Struct(">Q")  # a valid header's first half is 0, so the header as one number is the length
_LOOK_BYTES, _LOOK_MAX_BYTES = 4 * KIB, 64 * KIB  # stepped over before whole_events looks for equal lengths
_FEW = 128  # up to so many payloads, cutting them out one by one is faster than starting Arrow
_SMALL_BYTES = 64 * KIB  # up to this size, copying everything is faster than a view for each slice


def int_array(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    """Return an Arrow array over the same memory; pa.array would first spend half a second importing pandas."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


@dataclass(frozen=True, slots=True)
class EventBlock:
    """Whole events read from one segment.

    data: the framed bytes of these events and nothing else. starts: int64 position in `data` of each
    event's header. offset: where `data` starts in the segment.
    """

    data: memoryview
    starts: np.ndarray[Any, np.dtype[np.int64]]
    offset: int

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.events())

    def events(self) -> list[bytes]:
        """Return all payloads as bytes objects, made all at once: a fifth of the time it takes one by one."""
        if len(self.starts) > _FEW:
            events: list[bytes] = self.payloads().to_pylist()
            return events
        data = bytes(self.data) if len(self.data) <= _SMALL_BYTES else self.data  # no view for each slice of bytes
        borders = pairwise([*self.starts.tolist(), len(data)])
        return [bytes(data[start + HEADER_BYTES : end]) for start, end in borders]

    def offsets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the int64 offset in the segment of each event's header."""
        return self.starts + self.offset

    def payloads(self) -> pa.Array:
        """Return all payloads as an Arrow `binary` array; one copy, made by Arrow, drops the headers."""
        count = len(self.starts)
        if count == 0:
            return pa.array([], pa.binary())
        borders = np.empty(2 * count + 1, np.int32)
        borders[0:-1:2] = self.starts
        borders[1::2] = self.starts + HEADER_BYTES
        borders[-1] = len(self.data)
        both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(borders), pa.py_buffer(self.data)])
        return both.take(int_array(np.arange(1, 2 * count, 2)))


@dataclass(frozen=True, slots=True)
class EventPlaces:
    """Where events that follow each other lie in a segment, without their bytes; the fields as in `EventBlock`."""

    starts: np.ndarray[Any, np.dtype[np.int64]]
    offset: int
    size_bytes: int

    def __len__(self) -> int:
        return len(self.starts)

    def offsets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the int64 offset in the segment of each event's header."""
        return self.starts + self.offset


def joined(blocks: Sequence[EventBlock]) -> EventBlock:
    """Return consecutive blocks of a segment as one block, in a copy."""
    data = memoryview(b"".join([block.data for block in blocks]))
    first = blocks[0].offset
    return EventBlock(data, np.concatenate([block.starts + (block.offset - first) for block in blocks]), first)


def whole_events(
    data: memoryview, offset: int = 0, *, max_events: int | None = None, max_steps: int | None = None
) -> tuple[EventBlock, int]:
    """Return the whole events at the start of `data`, and how many bytes they take.

    `offset` is where `data` starts in its segment; at most `max_events` are taken, and after about `max_steps` that
    each took a step of their own it ends, too. Raises ProtocolError if the bytes aren't events.

    Events are stepped over one by one in a loop that does next to nothing; every few KiB, if the last two are
    equally long, array comparisons find how many more have that length.
    """
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
            raise ProtocolError(f"no event begins at offset {offset + position:,}: header {kind}, {length}")
    return EventBlock(data[:position], starts, offset), position


def _step(data: memoryview, size: int, position: int, stop: int, starts: list[int]) -> int:
    """Append to `starts` where each event from `position` to `stop` starts; return where the last of them ends.

    A header is read as one unsigned number, which is just the length if the header is valid. Anything
    wrong with it makes that number larger than `size` may be, so the step after it ends beyond `size`, as
    after an incomplete last event: only that one header needs a check.
    """
    stop = min(stop, size - HEADER_BYTES + 1)
    unpack, append = _LENGTH.unpack_from, starts.append
    while position < stop:
        append(position)
        position += unpack(data, position)[0] + HEADER_BYTES
    return position


def _run(data: memoryview, position: int, stride: int, most: int) -> int:
    """How many events from `position` on, at most `most`, are as long as the one that ends there.

    Looks at 16 headers, then at twice as many each time, so it never looks at many more than it finds.
    """
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
