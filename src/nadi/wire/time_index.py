"""Encoding of a segment's time index, which maps times in ms since 1970 to offsets, and the numbers of its clocks.

ARRIVAL is the server's clock, for arrival times. Each definition of event time has two clocks, derived from a hash of
the definition, for the latest and the earliest events (`segmentstore.state.time_index`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

from nadi.errors import InvalidArgumentError, ProtocolError
from nadi.wire import commands as wire

if TYPE_CHECKING:
    import numpy as np

ARRIVAL = 0
NO_TIMES = (1 << 63) - 1, -(1 << 63)
INDEXED = b"nadi.idx"  # first half of a 16-byte attribute; the second half is the clock
_STRETCH = [("end", ">i8"), ("earliest", ">i8"), ("latest", ">i8")]
_ENTRY, _ENTRY_BYTES = [("moment", ">i8"), ("offset", ">i8")], 16
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True, slots=True)
class Moments:
    """Decoded entries: bytes before `offsets[i]` arrived before `moments[i]`; other fields as in `MomentsListed`."""

    moments: Numbers
    offsets: Numbers
    is_last: bool
    appended_ms: int
    start: int


def clock_of(definition: str) -> int:
    """Return the LATEST clock of a definition of event time."""
    return int.from_bytes(blake2b(definition.encode(), digest_size=8).digest()) >> 2 << 1 or 2


def earliest_of(clock: int) -> int:
    """Return the EARLIEST clock that belongs to a LATEST clock."""
    return clock + 1


def is_earliest(clock: int) -> bool:
    return clock % 2 == 1


def check_clock(clock: int) -> None:
    """Raise InvalidArgumentError unless it is ARRIVAL, a LATEST or an EARLIEST clock."""
    if clock < ARRIVAL or clock == earliest_of(ARRIVAL):
        raise InvalidArgumentError(f"{clock} is not a clock of a time index")


def indexed_attribute(clock: int) -> bytes:
    """Return the segment attribute that holds the offset up to which event times are indexed."""
    return INDEXED + clock.to_bytes(8)


def packed_stretches(ends: Numbers, earliest: Numbers, latest: Numbers) -> bytes:
    """Encode consecutive ranges of events: end, earliest and latest time of each; NO_TIMES without times."""
    import numpy as np

    packed = np.empty(len(ends), _STRETCH)
    packed["end"], packed["earliest"], packed["latest"] = ends, earliest, latest
    return packed.tobytes()


def stretches_in(packed: bytes) -> list[tuple[int, int, int]]:
    """Decode the output of `packed_stretches`; ValueError."""
    import numpy as np

    stretches: list[tuple[int, int, int]] = np.frombuffer(packed, _STRETCH).tolist()
    return stretches


def packed_moments(entries: Sequence[tuple[int, int]]) -> bytes:
    import numpy as np

    return np.array(entries, _ENTRY).tobytes()


def moments_in(reply: wire.MomentsListed) -> Moments:
    """Decode a store's reply; ProtocolError if it is malformed or out of order.

    >>> reply = wire.MomentsListed(1, "a/b/0.#epoch.0", packed_moments([(1000, 8), (2000, 16)]), True, 2500, 0)
    >>> moments_in(reply).offsets.tolist()
    [8, 16]
    """
    import numpy as np

    if len(reply.moments) % _ENTRY_BYTES:
        raise ProtocolError(f"the time index of {reply.segment} can't be read: it has {len(reply.moments)} bytes")
    entries = np.frombuffer(reply.moments, _ENTRY)
    moments, offsets = entries["moment"].astype(np.int64), entries["offset"].astype(np.int64)
    if (np.diff(moments) <= 0).any() or (np.diff(offsets) <= 0).any():
        raise ProtocolError(f"the time index of {reply.segment} is out of order")
    if not len(entries) and not reply.is_last:
        raise ProtocolError(f"a reply without time index entries of {reply.segment} announces more")
    return Moments(moments, offsets, reply.is_last, reply.appended_ms, reply.start)
