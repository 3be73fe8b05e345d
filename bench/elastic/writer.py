"""The writer, in a separate process: follows a plan, and stores the number of events of each key.

Every 10 ms it writes the events that are due. Each second it notes their number, and its delay.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import cycle
from pathlib import Path

import nadi
from bench.elastic import plan
from bench.elastic.event import HEADER
from bench.part import say_ready

TICK_S = 0.01


def main(uri: str, scope: str, stream: str, folder: Path) -> None:
    lines, rates = plan.load(folder)
    counts = [0] * (1 + max(number for number, _, _ in lines))
    source = cycle(lines)
    with (
        nadi.StreamManager(uri) as manager,
        (folder / "progress").open("w", buffering=1) as progress,
        manager.create_writer(scope, stream) as writer,
    ):
        say_ready()
        written, due_before, began = 0, 0, time.monotonic()
        for second, rate in enumerate(rates):
            ticks = round(1 / TICK_S)
            for tick in range(1, ticks + 1):
                wait = began + second + tick * TICK_S - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                due = due_before + rate * tick // ticks
                now_ns = time.monotonic_ns()
                for _ in range(due - written):
                    number, key, text = next(source)
                    writer.write_event(HEADER.pack(number, counts[number], now_ns) + text, key)
                    counts[number] += 1
                written = due
            due_before += rate
            late_s = time.monotonic() - began - second - 1
            note = {"at_ms": time.time_ns() // 1_000_000, "rate": rate, "written": written, "late_s": late_s}
            progress.write(json.dumps(note) + "\n")
        writer.flush()
    (folder / "counts").write_text("".join(f"{count}\n" for count in counts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
