"""The entries of a segment's time index, as they are sent: moments in ms since 1970, and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nadi.errors import ProtocolError
from nadi.wire import commands as wire

_ENTRY = np.dtype([("moment", ">i8"), ("offset", ">i8")])
Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Moments:
    """moments, offsets: all bytes before `offsets[i]` came before `moments[i]`. The others as in `MomentsListed`."""

    moments: Numbers
    offsets: Numbers
    is_last: bool
    appended_ms: int
    start: int


def packed_moments(entries: Sequence[tuple[int, int]]) -> bytes:
    return np.array(entries, _ENTRY).tobytes()


def moments_in(reply: wire.MomentsListed) -> Moments:
    """What a store told; ProtocolError if it can't be read, or isn't in order.

    >>> reply = wire.MomentsListed(1, "a/b/0.#epoch.0", packed_moments([(1000, 8), (2000, 16)]), True, 2500, 0)
    >>> moments_in(reply).offsets.tolist()
    [8, 16]
    """
    if len(reply.moments) % _ENTRY.itemsize:
        raise ProtocolError(f"moments of {reply.segment} can't be read: they have {len(reply.moments)} bytes")
    entries = np.frombuffer(reply.moments, _ENTRY)
    moments, offsets = entries["moment"].astype(np.int64), entries["offset"].astype(np.int64)
    if (np.diff(moments) <= 0).any() or (np.diff(offsets) <= 0).any():
        raise ProtocolError(f"moments of {reply.segment} are not in order")
    if not len(entries) and not reply.is_last:
        raise ProtocolError(f"no moments of {reply.segment} were told, and more are to come")
    return Moments(moments, offsets, reply.is_last, reply.appended_ms, reply.start)
