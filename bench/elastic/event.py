"""An event of the demonstration: its key, its number among that key's events, its time of writing, and a line.

The first 16 bytes, big-endian: the key's number (4), the sequence (4), the machine's monotonic clock in ns (8), which
is common to all processes. So a reader parses the headers of a whole block as one array.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa

HEADER = struct.Struct(">IIQ")
Headers = np.ndarray[Any, np.dtype[Any]]
_FIELDS = np.dtype([("key", ">u4"), ("sequence", ">u4"), ("written_ns", ">u8")])


def headers(payloads: pa.Array) -> Headers:
    """Return the fields `key`, `sequence` and `written_ns` of each event in an Arrow `binary` array.

    >>> found = headers(pa.array([HEADER.pack(7, 1, 5) + b"a line", HEADER.pack(7, 2, 6)], pa.binary()))
    >>> found["key"].tolist(), found["sequence"].tolist(), found["written_ns"].tolist()
    ([7, 7], [1, 2], [5, 6])
    """
    _, offsets, data = payloads.buffers()
    if len(payloads) == 0 or data is None:
        return np.empty(0, _FIELDS)
    starts = np.frombuffer(offsets, np.int32)[payloads.offset : payloads.offset + len(payloads)]
    places = starts[:, None] + np.arange(HEADER.size, dtype=np.int32)
    found: Headers = np.frombuffer(data, np.uint8)[places].view(_FIELDS).ravel()
    return found
