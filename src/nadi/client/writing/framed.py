"""The events of a block as they will lie in segments, in any order: from a list, an array, or framed events.

Each function takes an order, or None for the existing one, and returns a function that copies the framed events
between two places in that order. It copies because a piece that waits long must not keep other pieces in memory;
with None, all are requested at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from nadi.model.event import int_array, whole_events
from nadi.model.framing import HEADER_BYTES, event_header, event_headers

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Positions: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Framed: TypeAlias = Callable[[int, int], bytes | memoryview]
SMALL_BYTES = 256  # events up to this size are cheaper to copy than to find


def framed_list(events: list[bytes], sizes: Positions, order: Positions | None) -> Framed:
    """References are sorted, then each event is copied; small ones of one size are copied, then sorted."""
    size = int(sizes[0])
    header = event_header(size)
    even = bool((sizes == size).all())
    if even and size <= SMALL_BYTES and order is not None:
        return _rows(header.join([b"", *events]), HEADER_BYTES + size, order)
    in_order: Sequence[bytes] = events if order is None else itemgetter(*order.tolist())(events)
    if even:
        return lambda first, stop: header.join([b"", *in_order[first:stop]])
    parts: list[bytes] = [b""] * (2 * len(events))
    parts[0::2] = event_headers((sizes if order is None else sizes[order]).tolist())
    parts[1::2] = in_order
    return lambda first, stop: b"".join(parts[2 * first : 2 * stop])


def framed_array(events: pa.Array, sizes: Positions, order: Positions | None) -> Framed:
    """Headers and events are taken in turn from an array of all headers followed by all events."""
    import numpy as np
    import pyarrow as pa

    count = len(events)
    headers = _binary(np.arange(0, HEADER_BYTES * count + 1, HEADER_BYTES), sizes.astype(">u8"))
    both = pa.concat_arrays([headers, events])
    in_turn = np.empty(2 * count, np.int64)
    in_turn[0::2] = np.arange(count) if order is None else order
    in_turn[1::2] = in_turn[0::2] + count
    taken = _taken(both, in_turn)
    return lambda first, stop: taken(2 * first, 2 * stop)


def framed_again(framed: bytes | memoryview, order: Positions | None) -> Framed:
    """Events that are framed already; not copied if nothing is sorted."""
    import numpy as np

    block, size = whole_events(memoryview(framed))
    assert size == len(framed), "a piece is whole events"
    borders = np.append(block.starts, size)
    if order is None:
        return lambda first, stop: memoryview(framed)[borders[first] : borders[stop]]
    return _taken(_binary(borders, framed), order)


def _rows(framed: bytes, size: int, order: Positions) -> Framed:
    """Framed events of one size."""
    import numpy as np
    import pyarrow as pa

    row = f"V{size}"
    rows = np.frombuffer(framed, row)

    def taken(first: int, stop: int) -> memoryview:
        data = pa.allocate_buffer(size * (stop - first))  # Arrow keeps its memory: no page is new to the process
        rows.take(order[first:stop], out=np.frombuffer(data, row), mode="clip")  # "raise" would make another copy
        return memoryview(data)

    return taken


def _taken(array: pa.Array, order: Positions) -> Framed:
    return lambda first, stop: memoryview(array.take(int_array(order[first:stop])).buffers()[2])


def _binary(offsets: Positions, data: Any) -> pa.Array:
    """An Arrow array over `data`; the offsets must fit 32 bits, as those of a block do."""
    import numpy as np
    import pyarrow as pa

    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
