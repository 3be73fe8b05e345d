"""A segment's time index, as it is sent: moments in ms since 1970, and offsets; and its clocks.

A clock is a number. That of the server, by which events arrive, is ARRIVAL. A time that events have themselves has two
clocks, made of how it is read, by which the latest and the earliest events are found (`segmentstore.state.time_index`).
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
INDEXED = b"nadi.idx"  # of 8 bytes, the clock has the others
_STRETCH = [("end", ">i8"), ("earliest", ">i8"), ("latest", ">i8")]
_ENTRY, _ENTRY_BYTES = [("moment", ">i8"), ("offset", ">i8")], 16
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True, slots=True)
class Moments:
    """moments, offsets: all bytes before `offsets[i]` came before `moments[i]`. The others as in `MomentsListed`."""

    moments: Numbers
    offsets: Numbers
    is_last: bool
    appended_ms: int
    start: int


def clock_of(definition: str) -> int:
    """The LATEST clock of a time that is read from events in that way."""
    return int.from_bytes(blake2b(definition.encode(), digest_size=8).digest()) >> 2 << 1 or 2


def earliest_of(clock: int) -> int:
    """The EARLIEST clock that belongs to a LATEST one."""
    return clock + 1


def is_earliest(clock: int) -> bool:
    return clock % 2 == 1


def check_clock(clock: int) -> None:
    """InvalidArgumentError unless it is ARRIVAL, a LATEST or an EARLIEST clock."""
    if clock < ARRIVAL or clock == earliest_of(ARRIVAL):
        raise InvalidArgumentError(f"{clock} is no clock of a time index")


def indexed_attribute(clock: int) -> bytes:
    """The segment's attribute that says up to where its events' times are in the index."""
    return INDEXED + clock.to_bytes(8)


def packed_stretches(ends: Numbers, earliest: Numbers, latest: Numbers) -> bytes:
    """Stretches of events, one behind the other: where each ends, and the earliest and latest time in it; NO_TIMES if
    none of its events has one."""
    import numpy as np

    packed = np.empty(len(ends), _STRETCH)
    packed["end"], packed["earliest"], packed["latest"] = ends, earliest, latest
    return packed.tobytes()


def stretches_in(packed: bytes) -> list[tuple[int, int, int]]:
    """What `packed_stretches` made; ValueError if it did not."""
    import numpy as np

    found: list[tuple[int, int, int]] = np.frombuffer(packed, _STRETCH).tolist()
    return found


def packed_moments(entries: Sequence[tuple[int, int]]) -> bytes:
    import numpy as np

    return np.array(entries, _ENTRY).tobytes()


def moments_in(reply: wire.MomentsListed) -> Moments:
    """What a store told; ProtocolError if it can't be read, or isn't in order.

    >>> reply = wire.MomentsListed(1, "a/b/0.#epoch.0", packed_moments([(1000, 8), (2000, 16)]), True, 2500, 0)
    >>> moments_in(reply).offsets.tolist()
    [8, 16]
    """
    import numpy as np

    if len(reply.moments) % _ENTRY_BYTES:
        raise ProtocolError(f"moments of {reply.segment} can't be read: they have {len(reply.moments)} bytes")
    entries = np.frombuffer(reply.moments, _ENTRY)
    moments, offsets = entries["moment"].astype(np.int64), entries["offset"].astype(np.int64)
    if (np.diff(moments) <= 0).any() or (np.diff(offsets) <= 0).any():
        raise ProtocolError(f"moments of {reply.segment} are not in order")
    if not len(entries) and not reply.is_last:
        raise ProtocolError(f"no moments of {reply.segment} were told, and more are to come")
    return Moments(moments, offsets, reply.is_last, reply.appended_ms, reply.start)
