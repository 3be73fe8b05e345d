"""Damaging valid bytes, the report of a fuzz run and its early end; and a writer and a reader that must
not be affected by other connections."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path

from nadi.client import StreamManager
from tests.support.waiting import until_async

INTERESTING_BYTES = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)
INTEGERS = (0, 1, -1, 2, 7, 8, 100, 1 << 15, 1 << 24, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63), 1 << 32)


def noise(chance: random.Random, most: int = 200) -> bytes:
    return chance.randbytes(chance.randrange(most))


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return `data` with one to four small changes."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(damaged) + 1)
        match chance.randrange(6):
            case 0 if place < len(damaged):
                damaged[place] ^= 1 << chance.randrange(8)
            case 1 if place < len(damaged):
                damaged[place] = chance.choice(INTERESTING_BYTES)
            case 2:
                damaged[place:place] = noise(chance, 12)
            case 3:
                del damaged[place : place + chance.randint(1, 8)]
            case 4:
                del damaged[place:]
            case _:
                damaged[place:place] = damaged[place : place + chance.randint(1, 40)]
    return bytes(damaged)


def integer(chance: random.Random, bits: int) -> int:
    """Return a signed integer of `bits` bits, often at an edge."""
    value = chance.choice(INTEGERS) if chance.random() < 0.7 else chance.getrandbits(bits)
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


EACH_S = 60.0  # the longest that one input may take


class Finding(AssertionError):
    """A failure, with the input that caused it."""


def memory_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process."""
    pages = Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Report:
    """Counts of a run: inputs, outcomes, speed and memory."""

    def __init__(self, target: str, seed: int) -> None:
        self.target = target
        self.seed = seed
        self.inputs = 0
        self.outcomes: Counter[str] = Counter()
        self.memory: list[int] = []
        self.slowest_s = 0.0
        self._began = time.monotonic()

    def saw(self, outcome: str, took_s: float, shown: str) -> None:
        self.inputs += 1
        self.outcomes[outcome] += 1
        self.slowest_s = max(self.slowest_s, took_s)
        if took_s > EACH_S:
            raise Finding(f"{self.target} seed {self.seed}: {took_s:.1f} s for {shown}")

    def grown_bytes(self) -> int:
        """Return the growth of memory from the end of the first tenth to the end."""
        first = self.memory[len(self.memory) // 10]
        return self.memory[-1] - first

    def __str__(self) -> str:
        took = time.monotonic() - self._began
        outcomes = ", ".join(f"{name} {count:,}" for name, count in self.outcomes.most_common(12))
        return (
            f"{self.target}: {self.inputs:,} inputs (seed {self.seed}) in {took:.0f} s, {self.inputs / took:,.0f}/s; "
            f"slowest {self.slowest_s * 1000:.0f} ms; memory {self.memory[0] >> 20} -> {self.memory[-1] >> 20} MiB, "
            f"{self.grown_bytes() / (1 << 20):+.1f} MiB after the first tenth; {outcomes}"
        )


PAUSE_S = 0.02


class Canary:
    """`async with Canary(uri)`: writes and reads events all the time; the end checks that none is missing."""

    def __init__(self, controller_uri: str) -> None:
        self._uri = controller_uri
        self._stop = threading.Event()
        self.events = 0
        self.slowest_s = 0.0

    def _sing(self, stop: threading.Event) -> None:
        with StreamManager(self._uri) as manager:
            manager.create_scope("canary")
            manager.create_stream("canary", "steady")
            head = manager.stream_info("canary", "steady").head
            writer = manager.create_writer("canary", "steady")
            reader = manager.create_reader("canary", "steady", start=head)
            seen: list[bytes] = []
            while not stop.is_set():
                began = time.monotonic()
                writer.write_event(str(self.events).encode(), "k").result(EACH_S)
                self.events += 1
                while len(seen) < self.events:
                    found = reader.next_block(EACH_S)
                    if found is None:
                        raise Finding("the canary's stream ended")
                    seen += list(found[1])
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                time.sleep(PAUSE_S)
            if seen != [str(number).encode() for number in range(self.events)]:
                raise Finding("the canary's events are not those it wrote, in order")

    async def __aenter__(self) -> Canary:
        self._song = asyncio.create_task(asyncio.to_thread(self._sing, self._stop))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await until_async(lambda: self.events or self._song.done())
        self._stop.set()
        await self._song
        if kind is None and self.events == 0:
            raise Finding("the canary never sang")

    def __str__(self) -> str:
        return f"canary: {self.events:,} events written and read, slowest {self.slowest_s * 1000:.0f} ms"
