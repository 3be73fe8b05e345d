"""Bytes that a server writes to its disk for each stored byte, once all data is in tier 2.

Includes the log, chunks, their compaction, the state and its snapshots; zeros in new files of the log are counted
separately, as a running server reuses its files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import nadi
from bench.measure import KEYS, SCOPE, STREAM, Figure, open_stream
from bench.process import FilledFiles, disk_bytes, settle
from nadi.segmentstore.data_dir import TIER2

SIZES = (100, 1_000, 10_000)  # bytes of an event
STORED_BYTES = 400_000_000  # of each size, event headers included
BATCH_BYTES = 1_000_000
MOST = 1.15
_HEADER_BYTES = 8  # of an event in its segment


def amplification(folder: Path, stored_bytes: int = STORED_BYTES) -> list[Figure]:
    figures: list[Figure] = []
    for size in SIZES:
        for name, write in (("write_event", _singly), ("write_batch", _in_batches)):
            written, filled = _measure(folder / f"{name}-{size}", size, stored_bytes, write)
            what = f"{size:,}-byte events, {name}"
            figures += [
                Figure(
                    f"{what}: disk bytes a stored byte", (written - filled) / stored_bytes, "times", MOST, at_most=True
                ),
                Figure(f"{what}: and zeros in new files of the log", filled / stored_bytes, "times"),
            ]
    return figures


Write = Callable[[nadi.EventWriter, int, int], None]


def _measure(folder: Path, size: int, stored_bytes: int, write: Write) -> tuple[int, int]:
    """Return the bytes written, and those of them that are zeros in new files of the log."""
    with nadi.embedded(folder) as server, nadi.StreamManager(server.controller_uri) as manager:
        open_stream(manager)
        before = disk_bytes(server.pid)
        with FilledFiles.watched(folder / "container-0" / "log") as filled:
            with manager.create_writer(SCOPE, STREAM) as writer:
                write(writer, size, stored_bytes // (size + _HEADER_BYTES))
                writer.flush()
            settle(server.pid, folder / TIER2, sum(manager.stream_info(SCOPE, STREAM).tail.positions.values()))
            return disk_bytes(server.pid) - before, filled.bytes


def _singly(writer: nadi.EventWriter, size: int, count: int) -> None:
    events = [os.urandom(size) for _ in range(100)]
    for number in range(count):
        writer.write_event(events[number % 100], KEYS[number % 1000])


def _in_batches(writer: nadi.EventWriter, size: int, count: int) -> None:
    length = max(1, BATCH_BYTES // size)
    events, keys = [os.urandom(size) for _ in range(length)], [KEYS[number % 1000] for number in range(length)]
    while count:
        some = min(length, count)
        writer.write_batch(events[:some], keys[:some])
        count -= some
