"""A reader that is dropped without `close`, as after an error: its process lives on, and the group must not wait."""

from __future__ import annotations

from nadi.client import ReaderGroupManager, StreamManager
from tests.support.waiting import until

from .support import new_group, new_stream, numbers, read_all


def test_what_an_abandoned_reader_had_goes_to_the_others(manager: StreamManager, groups: ReaderGroupManager) -> None:
    group = new_group(groups, new_stream(manager, 2, 40), dead_after_ms=600_000)
    reader = group.create_reader("dropped")
    assert reader.read_next_event(60)
    del reader
    until(lambda: group.online_readers() == [])
    with group.create_reader("next") as reader:
        assert sorted(numbers(read_all(40, reader))) == list(range(40))


def test_an_abandoned_reader_holds_up_no_checkpoint(manager: StreamManager, groups: ReaderGroupManager) -> None:
    group = new_group(groups, new_stream(manager, 2, 40), dead_after_ms=600_000)
    reader = group.create_reader("dropped")
    assert reader.read_next_event(60)
    del reader
    assert group.initiate_checkpoint("passed", timeout=60).stream_cuts
