"""What each system is asked to do in `script/bench peers`, and how its program says what it measured.

Each peer's program runs in an environment of its own, which has that peer's client and not nadi: this module needs
nothing but Python. A program does one work against a server that runs, and prints its figures as one line of JSON;
the reader of the tail prints `reading` before it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

KEYS = [f"key-{number}" for number in range(1000)]
SCOPE, STREAM = "bench", "stream"
WRITE_S = 4.0  # of writing, for each figure of it
CHUNK = 2_000  # events written between two looks at the clock
TAIL_RATE, TAIL_COUNT = 1_000, 6_000


class Peer(Protocol):
    def write(self, size: int, go_on: Callable[[int], bool]) -> None:
        """Write CHUNK events of `size` bytes while `go_on` of their number says so; all acknowledged at the end."""

    def round_trips(self, size: int, count: int) -> list[float]:
        """Write one event, wait for its acknowledgement, write the next; seconds of each."""

    def fill(self, size: int, count: int) -> None:
        """Events to be read, as fast as it goes."""

    def read(self, count: int) -> None:
        """Read `count` events from the first on, each as a bytes object."""

    def write_tail(self, waits: Iterator[float], event: Callable[[], bytes]) -> None:
        """Sleep for each of the waits, in seconds, and then write what `event` gives; flush at the end."""

    def read_tail(self, begin: Callable[[], None], take: Callable[[bytes], bool]) -> None:
        """Call `begin` once new events can't be missed, and `take` with each that comes until it says that's all."""


def percentile_ms(waits: Sequence[float], part: int) -> float:
    """Of sorted seconds, in milliseconds."""
    return waits[min(len(waits) * part // 100, len(waits) - 1)] * 1e3


def _write(peer: Peer, size: int) -> dict[str, float]:
    count = 0
    began = 0.0

    def go_on(written: int) -> bool:
        nonlocal count, began
        began = began or time.perf_counter()
        count = written
        return time.perf_counter() - began < WRITE_S

    peer.write(size, go_on)
    return {"rate": count / (time.perf_counter() - began)}


def _round_trip(peer: Peer) -> dict[str, float]:
    waits = sorted(peer.round_trips(100, 3_500)[500:])
    return {"p50": percentile_ms(waits, 50), "p99": percentile_ms(waits, 99)}


def _read(peer: Peer, count: int) -> dict[str, float]:
    began = time.perf_counter()
    peer.read(count)
    return {"rate": count / (time.perf_counter() - began)}


def _write_tail(peer: Peer) -> dict[str, float]:
    def waits() -> Iterator[float]:
        began = time.monotonic()
        for number in range(TAIL_COUNT):
            yield max(began + number / TAIL_RATE - time.monotonic(), 0.0)

    peer.write_tail(waits(), lambda: time.monotonic_ns().to_bytes(8, "big") + bytes(92))
    return {}


def _read_tail(peer: Peer) -> dict[str, float]:
    waits: list[float] = []

    def take(event: bytes) -> bool:
        waits.append((time.monotonic_ns() - int.from_bytes(event[:8], "big")) / 1e9)
        return len(waits) < TAIL_COUNT

    peer.read_tail(lambda: print("reading", flush=True), take)
    settled = sorted(waits[TAIL_COUNT // 6 :])
    return {"p50": percentile_ms(settled, 50), "p99": percentile_ms(settled, 99)}


def main(make: Callable[[str], Peer]) -> None:
    """PROGRAM WORK ADDRESS [COUNT or OPTION]"""
    work, address = sys.argv[1:3]
    count = int(sys.argv[3]) if work in ("fill", "read") else 0
    peer = make(address)
    if work == "fill":
        peer.fill(100, count)
        found: dict[str, float] = {}
    elif work.startswith("write-"):
        found = _write(peer, int(work.removeprefix("write-")))
    else:
        works: dict[str, Callable[[Peer], dict[str, float]]] = {
            "round-trip": _round_trip,
            "read": lambda peer: _read(peer, count),
            "tail-write": _write_tail,
            "tail-read": _read_tail,
        }
        found = works[work](peer)
    print(json.dumps(found), flush=True)
