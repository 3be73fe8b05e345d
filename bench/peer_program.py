"""A peer's program: does one work of `script/bench peers` with a running server, and prints its measurements.

The figures are its last line, as JSON. Before it, the reader of the tail prints `reading` once it can't miss new
events, and so does the program of `start`, which runs before the server and receives its address on standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from bench.peer_work import (
    ACK_RATE,
    ACK_S,
    END,
    KEYS,
    LARGE,
    LOAD_S,
    LONE,
    MANY_KEYS,
    SMALL,
    SPREAD_RATE,
    SPREAD_S,
    TAIL_RATE,
    TAIL_S,
    WARM_S,
    WARM_WRITE_S,
    WRITE_S,
    Figures,
    Peer,
    Setting,
)

_LONGEST = 2.0  # times the seconds of a steady rate, if the peer can't keep it
_LEAST_SLEEP_S = 0.001


def percentile_ms(waits: Sequence[float], part: int) -> float:
    """Return a percentile of sorted seconds, in milliseconds."""
    return waits[min(len(waits) * part // 100, len(waits) - 1)] * 1e3


class Pace:
    """Waits before each event at a steady rate. A thread sleeps at least a millisecond, so some are written together;
    if the peer can't keep the rate, it writes fewer, for at most twice the time."""

    def __init__(self, rate: int, seconds: float) -> None:
        self._rate, self._seconds = rate, seconds
        self.began = 0.0
        self.count = 0

    def __iter__(self) -> Iterator[float]:
        self.began = time.perf_counter()
        for number in range(int(self._rate * self._seconds)):
            now = time.perf_counter() - self.began
            if now > self._seconds * _LONGEST:
                return
            self.count = number + 1
            wait = number / self._rate - now
            yield max(wait, _LEAST_SLEEP_S) if wait > 0 else 0.0

    def share(self) -> float:
        """The share of the requested rate that was written and acknowledged by now."""
        return self.count / (time.perf_counter() - self.began) / self._rate


def _write(peer: Peer, size: int, seconds: float) -> Figures:
    count = 0
    began = 0.0

    def go_on(written: int) -> bool:
        nonlocal count, began
        began = began or time.perf_counter()
        count = written
        return time.perf_counter() - began < seconds

    peer.write(size, go_on)
    rate = count / (time.perf_counter() - began)
    return {"events": rate, "mb": rate * size / 1e6}


def _write_warm(peer: Peer, size: int, scale: float) -> Figures:
    _write(peer, size, WARM_WRITE_S * scale)
    return _write(peer, size, WRITE_S * scale)


def _round_trip(peer: Peer, scale: float) -> Figures:
    count = int(LONE * scale)
    waits = sorted(peer.round_trips(SMALL, 2 * count)[count:])
    return {"p50": percentile_ms(waits, 50), "p99": percentile_ms(waits, 99)}


def _read(peer: Peer, count: int) -> Figures:
    began = time.perf_counter()
    peer.read(count)
    return {"mb": count * LARGE / (time.perf_counter() - began) / 1e6}


def _acknowledged(peer: Peer, keys: Sequence[str], size: int, pace: Pace, warm_s: float) -> Figures:
    """Return acknowledgements at a steady rate, without events of the first `warm_s`; share: of the rate, kept."""
    event, noted = os.urandom(size), list[tuple[float, float]]()
    peer.write_steadily(keys, pace, lambda: event, lambda sent: noted.append((sent, time.perf_counter())))
    share = pace.share()
    assert len(noted) == pace.count, f"{pace.count} events were written, and {len(noted)} acknowledged"
    waits = sorted(done - sent for sent, done in noted if sent >= pace.began + warm_s)
    return {"share": share} | {f"p{part}": percentile_ms(waits, part) for part in (50, 95, 99)}


def _after_load(peer: Peer, scale: float) -> Figures:
    _write(peer, LARGE, LOAD_S * scale)
    return _acknowledged(peer, KEYS, SMALL, Pace(ACK_RATE, ACK_S * scale), 0.0)


def _spread(peer: Peer, scale: float) -> Figures:
    return _acknowledged(peer, MANY_KEYS, LARGE, Pace(SPREAD_RATE, SPREAD_S * scale), WARM_S * scale)


def _write_tail(peer: Peer, scale: float) -> Figures:
    pace = Pace(TAIL_RATE, TAIL_S * scale)
    padding = bytes(SMALL - 8)
    peer.write_steadily(KEYS, pace, lambda: time.monotonic_ns().to_bytes(8, "big") + padding, None)
    share = pace.share()
    peer.write_steadily(KEYS[:1], [0.0], lambda: END, None)
    return {"share": share}


def _read_tail(peer: Peer, scale: float) -> Figures:
    """Read events written after the first seconds. A writer that can't keep the rate ends before all are written."""
    noted: list[tuple[int, int]] = []
    count = int(TAIL_RATE * TAIL_S * scale)

    def take(event: bytes) -> bool:
        if len(event) == SMALL:
            noted.append((int.from_bytes(event[:8], "big"), time.monotonic_ns()))
        return len(event) != len(END) and len(noted) < count

    peer.read_tail(lambda: print("reading", flush=True), take)
    warm = min(noted)[0] + int(WARM_S * scale * 1e9)
    waits = sorted((read - written) / 1e9 for written, read in noted if written >= warm)
    return {"p50": percentile_ms(waits, 50), "p99": percentile_ms(waits, 99)}


def _fill(peer: Peer, count: int) -> Figures:
    peer.write(LARGE, lambda written: written < count)
    return {}


def _prepare(peer: Peer) -> Figures:
    peer.prepare()
    return {}


def _start(make: Callable[[Setting], Peer], setting: Setting) -> Figures:
    print("reading", flush=True)
    peer = make(replace(setting, address=sys.stdin.readline().strip()))
    peer.prepare()
    peer.round_trips(SMALL, 1)
    return {"at": time.monotonic()}


def main(make: Callable[[Setting], Peer]) -> None:
    """Run PROGRAM WORK SETTING, the latter as JSON."""
    work, setting = sys.argv[1], Setting(**json.loads(sys.argv[2]))
    scale = setting.scale
    writes = {f"write-{size}": partial(_write_warm, size=size, scale=scale) for size in (100, 1_000, 10_000)}
    works: dict[str, Callable[[Peer], Figures]] = {
        **writes,
        "prepare": _prepare,
        "fill": partial(_fill, count=setting.count),
        "read": partial(_read, count=setting.count),
        "round-trip": partial(_round_trip, scale=scale),
        "after-load": partial(_after_load, scale=scale),
        "spread": partial(_spread, scale=scale),
        "tail-write": partial(_write_tail, scale=scale),
        "tail-read": partial(_read_tail, scale=scale),
    }
    found = _start(make, setting) if work == "start" else works[work](make(setting))
    print(json.dumps(found), flush=True)
