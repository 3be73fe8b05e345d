"""Compact encoding of the sizes of consecutive events, with run lengths for equal sizes.

A size includes the event's header. Numbers are as narrow as the largest payload allows; `places` lists the indexes of
numbers that stand for several events, and `counts` how many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from nadi.errors import ProtocolError
from nadi.limits import MAX_LARGE_EVENT_BYTES
from nadi.model.framing import HEADER_BYTES
from nadi.wire import commands as wire

if TYPE_CHECKING:
    import numpy as np

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_WIDTHS = (1, 2, 4)  # bytes of a payload's length
_ALIKE = 8  # shorter runs are sent one by one: an index and a count take as much space


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    width: int
    lengths: bytes
    places: bytes
    counts: bytes


@dataclass(frozen=True, slots=True)
class EventSizes:
    """Decoded sizes of consecutive events, in order; reached and checked as in `wire.EventSizesListed`."""

    sizes: Numbers
    reached: int
    checked: int


def packed_sizes(sizes: Numbers) -> bytes:
    """Encode sizes in at most 5 bytes per event, and far less if sizes repeat.

    >>> import numpy as np
    >>> len(packed_sizes(np.full(100_000, 108)))
    17
    """
    import numpy as np

    lengths = sizes - HEADER_BYTES
    begins = np.flatnonzero(np.diff(lengths, prepend=-1))
    runs = np.diff(begins, append=len(lengths))
    is_long = runs >= _ALIKE
    times = np.where(is_long, 1, runs)
    lengths = np.repeat(lengths[begins], times)
    places = np.cumsum(times)[is_long] - 1
    width = next(width for width in _WIDTHS if not len(lengths) or int(lengths.max()) < 1 << 8 * width)
    packed = _Packed(
        width,
        lengths.astype(f">u{width}").tobytes(),
        places.astype(">u4").tobytes(),
        runs[is_long].astype(">u4").tobytes(),
    )
    return msgspec.msgpack.encode(packed)


def sizes_in(request: wire.ListEventSizes, reply: wire.EventSizesListed) -> EventSizes:
    """Decode a store's reply; ProtocolError if it is malformed or doesn't match the request.

    >>> import numpy as np
    >>> request = wire.ListEventSizes(1, "a/b/0.#epoch.0", 20, 20, 99, 10, "")
    >>> reply = wire.EventSizesListed(1, "a/b/0.#epoch.0", packed_sizes(np.array([9, 30, 8])), 67, 67)
    >>> sizes_in(request, reply).sizes.tolist()
    [9, 30, 8]
    """
    sizes = _unpacked(reply, request.most)
    if reply.reached != request.start + int(sizes.sum()):
        raise ProtocolError(f"event sizes of {reply.segment} don't add up to their end at {reply.reached:,}")
    if not reply.reached <= reply.checked <= max(request.start, request.end):
        raise ProtocolError(
            f"event sizes of {reply.segment} up to {request.end:,} were requested; the reply reaches "
            f"{reply.reached:,} and checked bytes up to {reply.checked:,}"
        )
    return EventSizes(sizes, reply.reached, reply.checked)


def _unpacked(reply: wire.EventSizesListed, most: int) -> Numbers:
    """Decode at most `most` sizes: a few bytes can represent any number."""
    import numpy as np

    try:
        packed = msgspec.msgpack.decode(reply.sizes, type=_Packed)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"event sizes of {reply.segment} can't be read: {error}") from error
    if packed.width not in _WIDTHS or len(packed.lengths) % packed.width or len(packed.places) % 4:
        raise ProtocolError(f"event sizes of {reply.segment} can't be read: the width is {packed.width} bytes")
    lengths = np.frombuffer(packed.lengths, f">u{packed.width}").astype(np.int64)
    places = np.frombuffer(packed.places, ">u4").astype(np.int64)
    if len(packed.counts) != len(packed.places) or (np.diff(places) <= 0).any() or (places >= len(lengths)).any():
        raise ProtocolError(f"event sizes of {reply.segment} have run lengths at invalid indexes")
    counts = np.frombuffer(packed.counts, ">u4").astype(np.int64)
    if not counts.all() or len(lengths) - len(counts) + int(counts.sum()) > most:
        raise ProtocolError(f"event sizes of {reply.segment} have a run length of 0, or exceed {most:,} events")
    if (lengths > MAX_LARGE_EVENT_BYTES).any():
        raise ProtocolError(f"event sizes of {reply.segment} include {int(lengths.max()):,} bytes, above the limit")
    times = np.ones(len(lengths), np.int64)
    times[places] = counts
    return np.repeat(lengths + HEADER_BYTES, times)
