"""A server that has lost a file of its data: one chunk of three, of a stream of events, of bytes, and of state."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nadi
from nadi.client import StreamManager
from nadi.naming import segment_name

SEGMENT = segment_name("sc", "events", 0)
PARTS, EVENTS = 3, 20  # each part of so many events in a chunk of its own; that of the second is lost
EVENT_BYTES = 8 + 1_000
PART_BYTES = EVENTS * EVENT_BYTES  # when so much is there it goes into a chunk, whole
LIMITS = f"chunk_flush_age_s=3600,chunk_flush_bytes={PART_BYTES},storage_writer_tick_s=0.02,checkpoint_interval_s=0.1"
GAP = (PART_BYTES, 2 * PART_BYTES)


def event(part: int, number: int) -> bytes:
    return f"events part {part} event {number:04}".encode().ljust(1_000, b".")


ALL = [event(part, number) for part in range(PARTS) for number in range(EVENTS)]
LEFT = [event(part, number) for part in (0, 2) for number in range(EVENTS)]


def chunk_with(folder: Path, data: bytes) -> Path:
    """The chunk that has the bytes, once one has."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for path in folder.glob("tier2/**/*"):
            if "#" not in path.name and path.is_file() and data in path.read_bytes():  # not one under way
                return path
        time.sleep(0.02)
    raise AssertionError(f"{data!r} did not come into tier 2")


@contextmanager
def damaged_server(folder: Path) -> Iterator[str]:
    """Its address; `folder` is new."""
    chunks = {}
    with (
        nadi.embedded(folder, containers=1, environment={"NADI_LIMITS": LIMITS}) as server,
        StreamManager(server.controller_uri) as manager,
    ):
        manager.create_scope("sc")
        for stream in ("events", "bytes", "state"):
            manager.create_stream("sc", stream, 1)
        state = manager.shared_map("sc", "state", value_type=str)
        with manager.create_writer("sc", "events") as events, manager.create_byte_writer("sc", "bytes") as writer:
            for part in range(PARTS):
                events.write_batch([event(part, number) for number in range(EVENTS)], "k")
                events.flush(60)
                writer.write(f"bytes part {part}".encode().ljust(PART_BYTES, b"."))
                writer.flush()
                state.put(f"key {part}", f"state part {part}".ljust(PART_BYTES, "."))
                for stream in ("events", "bytes", "state"):
                    chunks[stream, part] = chunk_with(folder, f"{stream} part {part}".encode())
    for stream in ("events", "bytes", "state"):
        assert len({chunks[stream, part] for part in range(PARTS)}) == PARTS
        chunks[stream, 1].unlink()
    with nadi.embedded(folder) as server:
        yield server.controller_uri
