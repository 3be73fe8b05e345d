"""Damage in an event that was too large for one append: whoever skips it goes on behind the whole event."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import nadi
from nadi.limits import MIB

MARK = b"a mark that stands nowhere else"


@pytest.mark.parametrize(
    ("at", "is_noise", "stop"),
    [(0.01, True, True), (0.5, True, True), (0.95, True, True), (0.01, False, True), (0.01, False, False)],
)
def test_behind_a_damaged_large_event_the_next_one_is_read(
    tmp_path: Path, at: float, *, is_noise: bool, stop: bool
) -> None:
    """The server knows where appends begin, and a large event has several: none of them is where to go on, even
    where all that follows looks like headers of empty events."""
    large = bytearray(random.Random(1).randbytes(20 * MIB) if is_noise else 20 * MIB)
    place = int(at * len(large))
    large[place : place + len(MARK)] = MARK
    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        manager.create_scope("s")
        manager.create_stream("s", "t", 1)
        with manager.create_writer("s", "t") as writer:
            for event in (b"before", bytes(large), b"after", b"later"):
                writer.write_event(event, "key").result(60)
        if not stop:
            server.kill()
    spoil(tmp_path, MARK)
    with nadi.embedded(tmp_path) as server, nadi.StreamManager(server.controller_uri) as manager:
        end = manager.stream_info("s", "t").tail
        read = [event.data for event in manager.read_events("s", "t", end=end, on_damage="skip")]
    assert read[-2:] == [b"after", b"later"]
    # what is damaged at its start may share a block of checksums with what stands before it
    assert read[:-2] in ([b"before"], [] if place < MIB else [b"before"])


def spoil(folder: Path, what: bytes) -> None:
    """Flip a bit of it wherever it is stored."""
    found = 0
    for path in folder.rglob("*"):
        if path.is_file() and (at := path.read_bytes().find(what)) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([what[0] ^ 1]))
            found += 1
    assert found
