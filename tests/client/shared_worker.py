"""A process that changes shared state until it is killed: `shared_worker.py URI NAME`, a line for each change."""

from __future__ import annotations

import sys

from nadi.client import StreamManager


def main(uri: str, name: str) -> None:
    manager = StreamManager(uri)
    counter = manager.shared_counter("sc", "counter")
    journal = manager.journal("sc", "journal")
    counts = manager.shared_map("sc", "counts", value_type=int)
    number = 0
    while True:
        counter.add(timeout=60)
        journal.append(f"{name} {number}".encode(), timeout=60)
        counts.compute(name, lambda count: (count or 0) + 1, timeout=60)
        if number % 10 == 9:
            counts.compact(timeout=60)
        number += 1
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
