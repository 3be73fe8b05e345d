"""Streams and groups for tests, and checks of their readers' results."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

from nadi.client import EventRead, EventReader, ReaderGroup, ReaderGroupManager, StreamManager
from tests.support.waiting import until

SHORT = {"refresh_ms": 100, "dead_after_ms": 60_000}  # no reader dies if the machine pauses
_names = itertools.count()
Read = TypeVar("Read")


def new_stream(manager: StreamManager, segments: int = 4, events: int = 0) -> str:
    stream = f"st{next(_names)}"
    manager.create_stream("sc", stream, segments)
    if events:
        write(manager, stream, 0, events)
    return stream


def write(manager: StreamManager, stream: str, first: int, last: int) -> None:
    with manager.create_writer("sc", stream) as writer:
        writer.write_batch([b"%d" % i for i in range(first, last)], [f"k{i % 16}" for i in range(first, last)])


def new_group(groups: ReaderGroupManager, streams: str | list[str], **options: Any) -> ReaderGroup:
    name = f"g{next(_names)}"
    assert groups.create_reader_group(name, streams, **{**SHORT, **options})
    return groups.get_reader_group(name)


def got(read: Read | None) -> Read:
    """Return a read's result, which must not be None."""
    assert read is not None
    return read


def numbers(reads: list[EventRead]) -> list[int]:
    return [int(read.event) for read in reads if read.event is not None]


def read_all(count: int, *readers: EventReader) -> list[EventRead]:
    """Read `count` events, and any results soon after them."""
    found: list[EventRead] = []

    def take(quiet_s: float) -> bool:
        for reader in readers:
            while (read := reader.read_next_event(quiet_s)) is not None and not read.is_read_completed:
                found.append(read)
        return len(numbers(found)) >= count

    until(lambda: take(0.05))
    take(0.3)
    return found


def in_order(found: list[int]) -> bool:
    last: dict[int, int] = {}
    for number in found:
        if number <= last.get(number % 16, -1):
            return False
        last[number % 16] = number
    return True
