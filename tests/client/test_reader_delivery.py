"""A killed reader without a group repeats no event if it stores its position before handling a block, and loses no
event if it stores it afterwards."""

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
    """The program that is killed; it handles events by appending them to a file."""
    stored, temporary = Path(folder, "position"), Path(folder, "position.new")
    start = StreamCut.from_text(stored.read_text()) if stored.exists() else None
    with StreamManager(uri) as manager, open(Path(folder, "got"), "ab", buffering=0) as got:
        reader = manager.create_reader("sc", stream, start=start)
        while (read := reader.next_block()) is not None:

            def store() -> None:
                temporary.write_text(reader.position().as_text())
                os.replace(temporary, stored)

            if order == "before":
                store()
            for event in read[1]:
                got.write(event + b"\n")
            if order == "after":
                store()


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", ["before", "after"])
def test_program_killed_at_random_repeats_or_loses_events_by_its_order(
    uri: str, manager: StreamManager, tmp_path: Path, order: str, kills: int
) -> None:
    chance, stream, written = random.Random(order), f"alone-{next(_streams)}", 0
    manager.create_stream("sc", stream, 2)
    got, position = tmp_path / "got", tmp_path / "position"
    got.touch()
    for _ in range(kills):
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
            until(lambda most=most: position.exists() and got.stat().st_size >= most)  # type: ignore[misc]
            process.kill()
    handled = Counter(int(line) for line in got.read_bytes().split())
    start, end = StreamCut.from_text(position.read_text()), manager.cuts("sc", stream).tail()
    unread = [int(event.data) for event in manager.read_events("sc", stream, start=start, end=end)]
    if order == "before":
        assert max((handled + Counter(unread)).values()) == 1
    else:
        assert set(handled) | set(unread) == set(range(written))
