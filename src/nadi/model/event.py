"""Blocks of complete events from a range of a segment's bytes.

An `EventBlock` knows each event's start and returns all payloads as one Arrow array, without a Python object per
event, or as a list of bytes objects. `nadi.model.framing` defines the layout of one event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nadi.limits import KIB
from nadi.model.framing import HEADER_BYTES, event_starts

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_FEW = 128  # up to this many payloads, slicing them one by one is faster than Arrow
_LONG_BYTES = 4 * KIB  # as is slicing payloads of this average length
_SMALL_BYTES = 64 * KIB  # up to this size, copying everything is faster than a view for each slice


def int_array(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    """Return an Arrow array over the same memory; pa.array would take half a second to import pandas first."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


@dataclass(frozen=True, slots=True)
class EventBlock:
    """Complete events read from one segment.

    data: the framed bytes of exactly these events. starts: int64 position in `data` of each event's header.
    offset: the offset of `data` in the segment.
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
        """Return all payloads as bytes objects; creating them together takes a fifth of the time."""
        if len(self.starts) > _FEW:
            alike = self._alike()
            if alike is not None or self.size_bytes < _LONG_BYTES * len(self.starts):
                events: list[bytes] = alike.tolist() if alike is not None else self.payloads().to_pylist()
                return events
        data = bytes(self.data) if len(self.data) <= _SMALL_BYTES else self.data  # slicing bytes creates no views
        borders = pairwise([*self.starts.tolist(), len(data)])
        return [bytes(data[start + HEADER_BYTES : end]) for start, end in borders]

    def _alike(self) -> np.ndarray[Any, Any] | None:
        """Return the payloads as an array if all have the same length: it becomes a list three times as fast."""
        import numpy as np

        count = len(self.starts)
        size, rest = divmod(self.size_bytes, count)
        if rest or size <= HEADER_BYTES or (self.starts != np.arange(0, self.size_bytes, size)).any():
            return None
        return np.ndarray((count,), f"V{size - HEADER_BYTES}", self.data, HEADER_BYTES, (size,))

    def offsets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the int64 offset in the segment of each event's header."""
        return self.starts + self.offset

    def payloads(self) -> pa.Array:
        """Return all payloads as an Arrow `binary` array; Arrow drops the headers in one copy."""
        import numpy as np
        import pyarrow as pa

        count = len(self.starts)
        if count == 0:
            return pa.array([], pa.binary())
        borders = np.empty(2 * count + 1, np.int32)
        borders[0:-1:2] = self.starts
        borders[1::2] = self.starts + HEADER_BYTES
        borders[-1] = len(self.data)
        headers_and_payloads = pa.Array.from_buffers(
            pa.binary(), 2 * count, [None, pa.py_buffer(borders), pa.py_buffer(self.data)]
        )
        return headers_and_payloads.take(int_array(np.arange(1, 2 * count, 2)))

    def to_arrow(self) -> pa.RecordBatch:
        """Return the events as columns: `event`, the payloads, and `offset`."""
        import pyarrow as pa

        return pa.record_batch({"event": self.payloads(), "offset": int_array(self.offsets())})

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        import pyarrow as pa

        batch = self.to_arrow()
        return pa.RecordBatchReader.from_batches(batch.schema, [batch]).__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True)
class EventPositions:
    """Positions of consecutive events in a segment, without their bytes; fields as in `EventBlock`."""

    starts: np.ndarray[Any, np.dtype[np.int64]]
    offset: int
    size_bytes: int

    def __len__(self) -> int:
        return len(self.starts)

    def offsets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the int64 offset in the segment of each event's header."""
        return self.starts + self.offset


def joined(blocks: Sequence[EventBlock]) -> EventBlock:
    """Copy consecutive blocks of a segment into one block."""
    import numpy as np

    data = memoryview(b"".join([block.data for block in blocks]))
    first = blocks[0].offset
    return EventBlock(data, np.concatenate([block.starts + (block.offset - first) for block in blocks]), first)


def whole_events(data: memoryview, offset: int = 0) -> tuple[EventBlock, int]:
    """Return the complete events at the start of `data`, and their total size in bytes.

    offset: the offset of `data` in its segment. ProtocolError if the bytes aren't events.
    """
    starts, position = event_starts(data, offset)
    return EventBlock(data[:position], starts, offset), position
