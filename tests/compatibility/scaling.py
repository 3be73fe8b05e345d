"""Scaling and reading by nadi's own client, beside what an official client does."""

from __future__ import annotations

import nadi


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
