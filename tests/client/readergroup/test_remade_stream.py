"""A stream is deleted and made anew under its name: whoever read the old one is told that, and what to do."""

from __future__ import annotations

import pytest

from nadi.client import ReaderGroupManager, StreamManager
from nadi.errors import InvalidStreamCutError, StreamRemadeError

from .support import new_group, new_stream, numbers, read_all, write


def remake(manager: StreamManager, stream: str, count: int) -> None:
    manager.seal_stream("sc", stream)
    manager.delete_stream("sc", stream)
    manager.create_stream("sc", stream)
    write(manager, stream, 0, count)


def test_a_group_is_told_and_reads_the_new_one_after_a_reset(
    manager: StreamManager, groups: ReaderGroupManager
) -> None:
    stream = new_stream(manager, 1, 10)
    group = new_group(groups, stream)
    with group.create_reader("before") as reader:
        assert len(read_all(10, reader)) == 10
    remake(manager, stream, 25)
    told = f"sc/{stream} was deleted and recreated.*reset_reader_group"
    with group.create_reader("after") as reader, pytest.raises(StreamRemadeError, match=told):
        reader.read_next_event(60)
    group.reset_reader_group([manager.cuts("sc", stream).head()])
    with group.create_reader("again") as reader:
        found = read_all(25, reader)
    assert numbers(found) == list(range(25))


def test_a_group_that_had_read_all_of_the_old_one_is_told_too(
    manager: StreamManager, groups: ReaderGroupManager
) -> None:
    stream = new_stream(manager, 2, 10)
    whole, part = new_group(groups, stream), new_group(groups, stream, ends=[manager.cuts("sc", stream).tail()])
    manager.seal_stream("sc", stream)
    for group in (whole, whole, part):
        with group.create_reader("before") as reader:
            list(reader)
    manager.delete_stream("sc", stream)
    manager.create_stream("sc", stream)
    with whole.create_reader("after") as reader, pytest.raises(StreamRemadeError):
        reader.read_next_event(60)
    with part.create_reader("after") as reader:
        read = reader.read_next_event(60)
    assert read is not None
    assert read.is_read_completed, "it has read all that it was to read"


def test_a_cut_of_the_old_stream_is_none_of_the_new_one(manager: StreamManager) -> None:
    stream = new_stream(manager, 1, 10)
    old = manager.cuts("sc", stream).tail()
    remake(manager, stream, 25)
    with pytest.raises(InvalidStreamCutError, match="before the stream was deleted and recreated"):
        manager.create_reader("sc", stream, start=old)
