"""The works of `script/bench peers` and their size: the interface of every peer.

Each peer's program runs in its own environment, which has that peer's client but not nadi: this module and
`peer_program` need nothing but Python.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

SCOPE, STREAM = "bench", "stream"
KEYS = [f"key-{number}" for number in range(1_000)]
MANY_KEYS = [f"key-{number}" for number in range(10_000)]  # of events on up to 1,000 segments
WARM = b"warm"  # the event that each key has before a steady rate begins
END = bytes(8)  # and the event after it
CHUNK = 2_000  # events written between two looks at the clock
SMALL, LARGE = 100, 1_000  # bytes of an event
WRITE_S, LOAD_S = 4.0, 6.0
LONE = 3_000  # events one by one, after as many that are not counted
ACK_RATE, ACK_S = 5_000, 10.0  # events a second, after full load
TAIL_RATE, TAIL_S = 10_000, 8.0
SPREAD_RATE, SPREAD_S = 20_000, 8.0
WARM_S = 2.0  # of a steady rate on a new server, not counted
WARM_WRITE_S = 4.0  # and of writing at full speed: Java compiles what it runs in the first seconds

Acked = Callable[[float], None]  # when an event was written, in seconds
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Setting:
    """The setting of a work. segments: of the stream, or partitions. count: of events to fill in or to read. scale: of
    the seconds of a work and of single events, less than 1 for a small form. batched: write lists of events."""

    address: str
    segments: int
    count: int = 0
    scale: float = 1.0
    batched: bool = False

    def text(self) -> str:
        return json.dumps(asdict(self))


class Peer(Protocol):
    def prepare(self) -> None:
        """Create the stream, on a new server."""

    def write(self, size: int, go_on: Callable[[int], bool]) -> None:
        """Write CHUNK events of `size` bytes while `go_on` of their number is true; all are acknowledged at the end."""

    def round_trips(self, size: int, count: int) -> list[float]:
        """Write one event, wait for its acknowledgement, write the next; return the seconds of each."""

    def read(self, count: int) -> None:
        """Read the first `count` events, each as a bytes object."""

    def write_steadily(
        self, keys: Sequence[str], waits: Iterable[float], event: Callable[[], bytes], acked: Acked | None
    ) -> None:
        """Write WARM with each of the keys, and have that acknowledged; then sleep for each of the waits, in seconds,
        and write the result of `event`, with the keys in turn. All are acknowledged at the end. acked: called after an
        acknowledgement with the event's time of writing, by time.perf_counter."""

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        """Call `begin` once new events can't be missed, and `take` with each event until it returns that it was the
        last."""
