"""A constant load on a stream, and the disk usage of the server's folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nadi.client import StreamManager

MIB = 1 << 20
_LATE_S = 0.5  # at most this much delay is made up for after a pause of the machine


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes on disk: in both tiers, and in the log's files alone."""

    after_s: float
    written: int
    tier1: int
    tier2: int
    kept: int

    def __str__(self) -> str:
        sizes = f"written {self.written / MIB:7.1f}, kept {self.kept / MIB:6.1f}"
        return f"{self.after_s:5.0f} s: {sizes}, tier 1 {self.tier1 / MIB:6.1f}, tier 2 {self.tier2 / MIB:6.1f} MiB"


def on_disk(folder: Path, part: str) -> int:
    """Return the size of the files whose paths have that part."""
    total = 0
    for path in folder.rglob("*"):
        if part in path.relative_to(folder).parts:
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:  # deleted meanwhile
                continue
    return total


class Load:
    """Writes events of `size` bytes at a steady rate, by keys over all segments, until it is stopped."""

    def __init__(self, uri: str, scope: str, stream: str, *, bytes_per_s: int, size: int = 10_000) -> None:
        self.written = 0
        self.error: BaseException | None = None
        self._place, self._uri = (scope, stream), uri
        self._pause_s, self._size = size / bytes_per_s, size
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        began = time.monotonic()
        try:
            with StreamManager(self._uri) as manager, manager.create_writer(*self._place) as writer:
                number = 0
                while not self._ended.wait(max(0.0, began + number * self._pause_s - time.monotonic())):
                    ack = writer.write_event(number.to_bytes(8, "big") * (self._size // 8), f"{number % 50}")
                    number += 1
                    if number % 100 == 0:
                        ack.result(60)
                    self.written += self._size + 8
                    late_s = time.monotonic() - began - number * self._pause_s
                    began += max(0.0, late_s - _LATE_S)
                writer.flush()
        except BaseException as error:
            self.error = error

    @contextmanager
    def running(self) -> Iterator[Load]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join(120)
        if self.error is not None:
            raise self.error


def watch(
    manager: StreamManager,
    folder: Path,
    load: Load,
    *,
    seconds: float,
    every_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Usage]:
    """Measure the folder periodically and print the results."""
    began, usages = time.monotonic(), list[Usage]()
    while time.monotonic() - began < seconds:
        time.sleep(every_s)
        meanwhile()
        kept = manager.retained(*load._place).size_bytes
        tiers = on_disk(folder, "log"), on_disk(folder, "tier2")
        usages.append(Usage(time.monotonic() - began, load.written, *tiers, kept))
        print(usages[-1], flush=True)
    return usages
