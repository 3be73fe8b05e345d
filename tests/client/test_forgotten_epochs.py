"""Errors for clients whose positions are in epochs that the server no longer knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import nadi
from nadi.client import StreamManager
from nadi.errors import EpochExpiredError, InvalidArgumentError, InvalidStreamCutError, TruncatedError
from nadi.model.streamcut import StreamCut

STREAM = ("sc", "st")
SCALINGS = 14


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[StreamManager]:
    limits = {"NADI_LIMITS": "epochs_retained=3,epochs_forgotten_at_once=2"}
    with nadi.embedded(tmp_path, environment=limits) as server, StreamManager(server.controller_uri) as manager:
        manager.create_scope("sc")
        manager.create_stream(*STREAM, 2)
        yield manager


def write(manager: StreamManager, text: str) -> None:
    with manager.create_writer(*STREAM) as writer:
        for number in range(8):
            writer.write_event(f"{text} {number}".encode(), str(number)).result(60)


def scale(manager: StreamManager, times: int) -> None:
    """Split and merge the lower half of the keys; the segment of the upper half remains."""
    for _ in range(times):
        first, second, *others = sorted(manager.current_segments(*STREAM), key=lambda piece: piece.low)
        if others:
            manager.scale_stream(*STREAM, [first.segment_id, second.segment_id], [(0.0, 0.5)])
        else:
            manager.scale_stream(*STREAM, [first.segment_id], [(0.0, 0.25), (0.25, 0.5)])


def test_position_in_a_forgotten_epoch_raises_epoch_gone_error(manager: StreamManager) -> None:
    groups = manager.reader_group_manager("sc")
    write(manager, "old")
    old = manager.stream_info(*STREAM).head
    manager.bookmarks("sc").create("old", old)
    groups.create_reader_group("group", ["st"])
    scale(manager, SCALINGS)
    tail = manager.stream_info(*STREAM).tail
    manager.truncate_stream(tail)
    write(manager, "new")

    new = {f"new {number}".encode() for number in range(8)}
    assert {event.data for event in manager.read_events(*STREAM, end=manager.stream_info(*STREAM).tail)} == new
    cuts = manager.cuts(*STREAM)
    assert 1 in cuts.head().positions, "a segment of the first epoch still exists"
    for start in (old, manager.bookmarks("sc").get("old").cut, StreamCut(*STREAM, {0: 30, 1: 0})):
        with pytest.raises(EpochExpiredError):
            next(iter(manager.read_events(*STREAM, start=start)))
        for use in (cuts.check, cuts.settled, lambda cut: cuts.bytes_between(cut, tail)):
            with pytest.raises(TruncatedError):
                use(start)
    with pytest.raises(InvalidArgumentError):
        manager.truncate_stream(old)
    with pytest.raises(InvalidStreamCutError, match=str((99 << 32) | 3)):
        cuts.check(StreamCut(*STREAM, {(99 << 32) | 3: 0, 1: 0}))
    with groups.get_reader_group("group").create_reader("reader") as reader, pytest.raises(TruncatedError):
        list(iter(lambda: reader.read_next_event(timeout=60), b"never"))
    groups.get_reader_group("group").reset_reader_group([cuts.head()])
    with groups.get_reader_group("group").create_reader("other") as reader:
        read = [reader.read_next_event(timeout=60) for _ in range(8)]
        assert {item.event for item in read if item is not None} <= new
