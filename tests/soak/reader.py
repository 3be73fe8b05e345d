"""A reader process to be killed: notes each event before it asks for more.

A note is one line, written at once (`notes.py`). On SIGTERM it leaves cleanly. Readers with odd numbers read blocks;
the others process events slowly, so that they end in the middle of one; every third pauses occasionally."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

from nadi.client import EventRead, StreamManager
from nadi.errors import ReaderOfflineError


def lines(read: EventRead) -> list[str]:
    now = time.monotonic_ns()
    if read.checkpoint is not None:
        return [f"checkpoint {now} {read.checkpoint}"]
    if read.gap is not None:
        end = -1 if read.gap.to_offset is None else read.gap.to_offset
        return [f"gap {now} {read.gap.segment} {read.gap.from_offset} {end}"]
    places = [read.offset] if read.block is None else read.block.offsets().tolist()
    return [f"event {now} {read.segment} {at} {event.decode()}" for at, event in zip(places, read.events, strict=True)]


def main(uri: str, scope: str, group: str, reader_id: str, path: str) -> None:
    is_leaving = False

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal is_leaving
        is_leaving = True

    signal.signal(signal.SIGTERM, leave)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(*texts: str) -> None:
        os.write(file, "".join(f"{text}\n" for text in texts).encode())

    number = int(path.rpartition(".")[2])
    by_blocks, pauses = number % 2 == 1, number % 3 == 0
    count = 0
    with StreamManager(uri) as manager:
        reader = manager.reader_group_manager(scope).get_reader_group(group).create_reader(reader_id)
        try:
            while not is_leaving:
                read = (reader.read_next_block if by_blocks else reader.read_next_event)(0.2)
                if read is None:
                    continue
                if read.is_read_completed:
                    break
                note(*lines(read))
                count += 1
                if not by_blocks:
                    time.sleep(0.0005)
                if pauses and count % 300 == 0:
                    time.sleep(1.0)
            reader.close()
            note(f"closed {time.monotonic_ns()}")
        except ReaderOfflineError:  # it was stopped for so long that its segments were reassigned
            note(f"offline {time.monotonic_ns()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
