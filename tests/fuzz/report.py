"""What a fuzz run tells at its end, and what ends it early."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

EACH_S = 60.0  # the longest that one input may take


class Finding(AssertionError):
    """Something that must not happen, with the input that did it."""


def memory_bytes(pid: int | None = None) -> int:
    """Resident memory of a process."""
    pages = Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Report:
    """Counts of one run: its inputs, what came of them, its speed and its memory."""

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
        """Growth of memory from the end of the first tenth to the end."""
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
