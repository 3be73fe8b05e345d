"""A reader without a group: a program that stores its position before it handles a block repeats nothing, after it
loses nothing, wherever it is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from nadi import StreamCut, StreamManager
from tests.support.waiting import until

_streams = count()


def main(uri: str, stream: str, order: str, folder: str) -> None:
    """The program that is killed: it handles an event by appending it to a file."""
    place, temporary = Path(folder, "position"), Path(folder, "position.new")
    start = StreamCut.from_text(place.read_text()) if place.exists() else None
    with StreamManager(uri) as manager, open(Path(folder, "got"), "ab", buffering=0) as got:
        reader = manager.create_reader("sc", stream, start=start)
        while (read := reader.next_block()) is not None:

            def store() -> None:
                temporary.write_text(reader.position().as_text())
                os.replace(temporary, place)

            if order == "before":
                store()
            for event in read[1]:
                got.write(event + b"\n")
            if order == "after":
                store()


@pytest.mark.parametrize("order", ["before", "after"])
def test_program_killed_at_random_repeats_or_loses_what_its_order_says(
    uri: str, manager: StreamManager, tmp_path: Path, order: str
) -> None:
    chance, stream, written = random.Random(order), f"alone-{next(_streams)}", 0
    manager.create_stream("sc", stream, 2)
    got, place = tmp_path / "got", tmp_path / "position"
    got.touch()
    for _ in range(4):
        command = [
            sys.executable,
            "-c",
            "from tests.client.test_reader_delivery import main; import sys; main(*sys.argv[1:])",
        ]
        with subprocess.Popen([*command, uri, stream, order, str(tmp_path)]) as process:
            most = got.stat().st_size + chance.randrange(1, 3_000)
            for _ in range(10):
                with manager.create_writer("sc", stream) as writer:
                    writer.write_batch([b"%d" % n for n in range(written, written + 100)], ["k"] * 100)
                written += 100
            until(lambda most=most: place.exists() and got.stat().st_size >= most)  # type: ignore[misc]
            process.kill()
    found = Counter(int(line) for line in got.read_bytes().split())
    start, end = StreamCut.from_text(place.read_text()), manager.cuts("sc", stream).tail()
    rest = [int(event.data) for event in manager.read_events("sc", stream, start=start, end=end)]
    if order == "before":
        assert max((found + Counter(rest)).values()) == 1
    else:
        assert set(found) | set(rest) == set(range(written))
