"""Events that reveal whether any is missing, duplicated or out of order. Also scaling and reading by nadi's own client,
for the tests of official ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import nadi

Written = list[tuple[str, str]]  # event, routing key


def numbered(start: int, end: int, *, keys: int = 7, label: str = "event") -> Written:
    """Return one event per number from `start` to before `end`, with alternating keys."""
    return [(f"key {number % keys}/{label}/{number}", f"key {number % keys}") for number in range(start, end)]


def by_key(events: Iterable[bytes | str]) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of the events, in order, by routing key and label.

    The results for written and read events are equal exactly if no event is missing or duplicated, and each key is in
    order. Keys of different labels (writers, transactions) have no order among each other.
    """
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        key, label, number = (event if isinstance(event, str) else event.decode()).split("/")
        numbers[key, label].append(int(number))
    return dict(numbers)


def texts(written: Written) -> list[str]:
    return [event for event, _ in written]


def split_first(manager: nadi.StreamManager, scope: str, stream: str) -> None:
    """Split the segment of the lowest keys."""
    first = min(manager.current_segments(scope, stream), key=lambda segment: segment.low)
    middle = (first.low + first.high) / 2
    manager.scale_stream(scope, stream, [first.segment_id], [(first.low, middle), (middle, first.high)])


def merge_first(manager: nadi.StreamManager, scope: str, stream: str) -> None:
    """Merge the two segments of the lowest keys."""
    first, second, *_ = sorted(manager.current_segments(scope, stream), key=lambda segment: segment.low)
    manager.scale_stream(scope, stream, [first.segment_id, second.segment_id], [(first.low, second.high)])


def merge_all(manager: nadi.StreamManager, scope: str, stream: str) -> None:
    """Merge all segments into one."""
    segments = manager.current_segments(scope, stream)
    manager.scale_stream(scope, stream, [segment.segment_id for segment in segments], [(0.0, 1.0)])


def read_all(manager: nadi.StreamManager, scope: str, stream: str) -> list[bytes]:
    """Return all events up to the current tail."""
    tail = manager.stream_info(scope, stream).tail
    return [event.data for event in manager.read_events(scope, stream, end=tail)]
