"""Events that tell by themselves whether any is missing, doubled or out of order; what nadi's own client does beside
an official one: scaling, and reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import nadi

Written = list[tuple[str, str]]  # event, routing key


def numbered(start: int, end: int, *, keys: int = 7, label: str = "event") -> Written:
    """One event for each number from `start` to before `end`; the keys take turns."""
    return [(f"key {number % keys}/{label}/{number}", f"key {number % keys}") for number in range(start, end)]


def by_key(events: Iterable[bytes | str]) -> dict[tuple[str, str], list[int]]:
    """The numbers of the events, in order, by routing key and label.

    Equal for what was written and what was read exactly if nothing is missing, nothing is there twice,
    and each key is in order. Keys of different labels (writers, transactions) are in no order to each other.
    """
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for event in events:
        key, label, number = (event if isinstance(event, str) else event.decode()).split("/")
        found[key, label].append(int(number))
    return dict(found)


def texts(written: Written) -> list[str]:
    return [event for event, _ in written]


def split_first(manager: nadi.StreamManager, scope: str, stream: str) -> None:
    """Replace the segment of the lowest keys by two."""
    first = min(manager.current_segments(scope, stream), key=lambda segment: segment.low)
    middle = (first.low + first.high) / 2
    manager.scale_stream(scope, stream, [first.segment_id], [(first.low, middle), (middle, first.high)])


def merge_first(manager: nadi.StreamManager, scope: str, stream: str) -> None:
    """Replace the two segments of the lowest keys by one."""
    first, second, *_ = sorted(manager.current_segments(scope, stream), key=lambda segment: segment.low)
    manager.scale_stream(scope, stream, [first.segment_id, second.segment_id], [(first.low, second.high)])


def merge_all(manager: nadi.StreamManager, scope: str, stream: str) -> None:
    """Replace all segments by one."""
    segments = manager.current_segments(scope, stream)
    manager.scale_stream(scope, stream, [segment.segment_id for segment in segments], [(0.0, 1.0)])


def read_all(manager: nadi.StreamManager, scope: str, stream: str) -> list[bytes]:
    """All events up to the present tail."""
    tail = manager.stream_info(scope, stream).tail
    return [event.data for event in manager.read_events(scope, stream, end=tail)]
