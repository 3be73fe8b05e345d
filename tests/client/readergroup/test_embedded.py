"""Reader groups against the whole server: balance, checkpoints, cuts, conditions, gaps, dead readers."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from nadi.client import EventRead, EventReader, ReaderGroupManager, StreamManager, aio, on_events
from nadi.client.readergroup.reader import drop_out
from nadi.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidArgumentError,
    InvalidStreamCutError,
    PastEndError,
    ReaderGroupNotFoundError,
    ReaderOfflineError,
    RequestTimeoutError,
)
from nadi.model.streamcut import StreamCut
from nadi.naming import segment_name
from tests.support.waiting import until

from .support import in_order, new_group, new_stream, numbers, read_all, write


def test_one_reader_reads_all_of_two_streams(manager: StreamManager, groups: ReaderGroupManager) -> None:
    streams = [new_stream(manager, 4, 200), new_stream(manager, 2, 100)]
    group = new_group(groups, streams)
    with group.create_reader("r") as reader:
        found = read_all(300, reader)
        assert sorted(numbers(found)) == sorted([*range(200), *range(100)])
        assert reader.read_next_event(0.01) is None
    assert group.online_readers() == []
    assert {name: cut.positions for name, cut in group.stream_cuts().items()} == {
        f"sc/{stream}": manager.stream_info("sc", stream).tail.positions for stream in streams
    }
    assert group.unread_bytes() == 0
    write(manager, streams[0], 200, 201)
    assert group.unread_bytes() == 8 + 3


def test_groups_are_created_listed_and_deleted(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager)
    group = new_group(groups, stream)
    assert not groups.create_reader_group(group.name, stream)
    assert group.name in groups.list_reader_groups()
    assert group.stream_names() == [f"sc/{stream}"]
    with group.create_reader("r") as reader:
        with pytest.raises(AlreadyExistsError):
            group.create_reader("r")
        assert groups.delete_reader_group(group.name)
        with pytest.raises(ReaderGroupNotFoundError):
            reader.read_next_event(60)
    assert not groups.delete_reader_group(group.name)
    with pytest.raises(ReaderGroupNotFoundError):
        groups.get_reader_group(group.name)
    assert groups.create_reader_group(group.name, stream)


def test_start_and_end_cuts(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 2, 50)
    start = manager.stream_info("sc", stream).tail
    write(manager, stream, 50, 90)
    ids = [piece.segment_id for piece in manager.current_segments("sc", stream)]
    manager.scale_stream("sc", stream, ids, [(0.0, 0.25), (0.25, 1.0)])
    write(manager, stream, 90, 120)
    end = manager.stream_info("sc", stream).tail
    write(manager, stream, 120, 150)
    group = new_group(groups, stream, starts=[start], ends=[end])
    with group.create_reader("a"), group.create_reader("b"):
        pass
    with group.create_reader("c") as reader:
        found = []
        while not (read := reader.read_next_event(60)) or not read.is_read_completed:
            assert read is not None
            found.append(read)
        assert sorted(numbers(found)) == list(range(50, 120))
        assert in_order(numbers(found))
    assert group.unread_bytes() == 0
    with pytest.raises(InvalidStreamCutError):
        groups.create_reader_group("other", stream, starts=[manager.stream_info("sc", new_stream(manager)).head])
    with pytest.raises(InvalidStreamCutError):
        groups.create_reader_group("other", stream, starts=[end], ends=[start])
    with pytest.raises(InvalidArgumentError):
        groups.create_reader_group("other", f"sc/{stream}/0")


@pytest.mark.parametrize("demanded_s", [60.0, pytest.param(2.0, marks=pytest.mark.slow)])  # 2 s on a quiet machine
def test_eight_readers_over_64_segments_balance(
    uri: str, manager: StreamManager, groups: ReaderGroupManager, demanded_s: float
) -> None:
    stream = new_stream(manager, 64)
    group = new_group(groups, stream, refresh_ms=500, dead_after_ms=60_000)

    def is_balanced(readers: int, segments: int) -> bool:
        counts = [len(held) for name, held in group.segments_of_readers().items() if name]
        return len(counts) == readers and sum(counts) == segments and max(counts) - min(counts) <= 1

    readers = [group.create_reader(f"r{i}") for i in range(7)]
    times = {"7 readers come": until(lambda: is_balanced(7, 64))}
    readers.append(group.create_reader("r7"))
    times["the 8th comes"] = until(lambda: is_balanced(8, 64))
    readers.pop(0).close()
    times["one goes"] = until(lambda: is_balanced(7, 64))
    ids = [piece.segment_id for piece in manager.current_segments("sc", stream)][:8]
    ranges = [manager.current_segments("sc", stream)[i] for i in range(8)]
    halves = [(r.low, (r.low + r.high) / 2) for r in ranges] + [((r.low + r.high) / 2, r.high) for r in ranges]
    manager.scale_stream("sc", stream, ids, halves)
    stop = threading.Event()

    def drain(reader: EventReader) -> None:
        while not stop.is_set():
            reader.read_next_event(0.1)

    threads = [threading.Thread(target=drain, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    try:
        times["8 segments are split"] = until(lambda: is_balanced(7, 72))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for reader in readers:
        reader.close()
    print({what: f"{seconds:.2f} s" for what, seconds in times.items()})
    assert max(times.values()) < demanded_s, times


def test_checkpoint_is_a_boundary_and_reset_returns_to_it(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 4, 400)
    group = new_group(groups, stream)
    readers = [group.create_reader(name) for name in "ab"]
    until(lambda: len(group.segments_of_readers()["b"]) == 2)
    before = [[readers[i].read_next_event(60) for _ in range(30 + i)] for i in range(2)]
    results: list[object] = []
    asking = threading.Thread(target=lambda: results.append(group.initiate_checkpoint("half", timeout=60)))
    asking.start()
    for i, reader in enumerate(readers):
        while (read := reader.read_next_event(60)) is not None and read.checkpoint is None:
            before[i].append(read)
            time.sleep(0.005)
        assert read is not None
        assert read.checkpoint == "half"
    read_before = [int(read.event) for reads in before for read in reads if read and read.event is not None]
    read_after = numbers(read_all(400 - len(read_before), *readers))
    asking.join()
    (checkpoint,) = group.checkpoints()
    assert results == [checkpoint]
    assert sorted(read_before + read_after) == list(range(400))
    cut = checkpoint.stream_cuts[f"sc/{stream}"]
    at_cut = manager.read_events("sc", stream, start=manager.stream_info("sc", stream).head, end=cut)
    assert sorted(int(event.data) for event in at_cut) == sorted(read_before)

    group.reset_reader_group(checkpoint)
    for reader in readers:
        until(lambda reader=reader: (read := reader.read_next_event(0.1)) is not None and read.is_reset)  # type: ignore[misc]
    until(lambda: not group.segments_of_readers()[""])
    assert sorted(numbers(read_all(len(read_after), *readers))) == sorted(read_after)
    for reader in readers:
        reader.close()


def test_stream_cuts_up_to_the_event_while_the_application_is_busy(
    manager: StreamManager, groups: ReaderGroupManager
) -> None:
    stream = new_stream(manager, 1, 100)
    group = new_group(groups, stream)
    with group.create_reader("r") as reader:
        reads = [reader.read_next_event(60) for _ in range(10)]
        cut = group.generate_stream_cuts()[f"sc/{stream}"]
        last = reads[-1]
        assert last is not None
        assert last.event is not None
        assert cut.positions == {0: last.offset + 8 + len(last.event)}
        assert group.checkpoints() == []
        time.sleep(1.2)  # positions are recorded once a second
        until(lambda: group.stream_cuts()[f"sc/{stream}"].positions == {0: last.offset})


def test_condition_makes_a_cut_before_its_first_event(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 2, 100)
    group = new_group(groups, stream)
    conditions = {"fifty": on_events(lambda event: event == b"50")}
    with group.create_reader("r", conditions=conditions) as reader:
        with pytest.raises(RequestTimeoutError):
            group.stream_cuts_on_condition("fifty", timeout=0.1)
        before: list[EventRead] = []
        while (read := reader.read_next_event(60)) is not None and read.event != b"50":
            before.append(read)
        rest = read_all(99 - len(numbers(before)), reader)
        cut = group.stream_cuts_on_condition("fifty", timeout=60)[f"sc/{stream}"]
        assert sorted([50, *numbers(before), *numbers(rest)]) == list(range(100))
        events = manager.read_events("sc", stream, start=manager.stream_info("sc", stream).head, end=cut)
        assert sorted(int(event.data) for event in events) == sorted(numbers(before))


def test_slow_reader_gets_a_gap_and_continues(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1, 10)
    group = new_group(groups, stream)
    cut = manager.stream_info("sc", stream).tail
    write(manager, stream, 10, 20)
    manager.truncate_stream(cut)
    with group.create_reader("r") as reader:
        found = read_all(10, reader)
        assert numbers(found) == list(range(10, 20))
        gap = found[0].gap
        assert gap is not None
        assert (gap.segment, gap.from_offset, gap.to_offset) == (f"sc/{stream}/0.#epoch.0", 0, cut.positions[0])


def test_a_gap_over_a_whole_segment(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1, 10)
    group = new_group(groups, stream)
    manager.scale_stream("sc", stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    cut = manager.stream_info("sc", stream).tail
    write(manager, stream, 10, 20)
    manager.truncate_stream(cut)
    with group.create_reader("r") as reader:
        found = read_all(10, reader)
        assert sorted(numbers(found)) == list(range(10, 20))
        assert found[0].gap is not None
        assert found[0].gap.to_offset is None


def test_a_dead_reader_is_taken_offline_and_its_unfinished_events_are_repeated(
    uri: str, manager: StreamManager, groups: ReaderGroupManager
) -> None:
    stream = new_stream(manager, 2, 100)
    group = new_group(groups, stream, dead_after_ms=3000)
    dead = group.create_reader("dead")
    first = [dead.read_next_event(60) for _ in range(5)]
    last = first[-1]
    assert last is not None
    given = dead.positions() | {last.segment: last.offset}  # but for the event in hand
    to_be_recorded = {number: given[segment_name("sc", stream, number)] for number in range(2)}
    until(lambda: group.stream_cuts()[f"sc/{stream}"].positions == to_be_recorded)
    assert isinstance(dead._core, aio.EventReader)
    drop_out(dead._core)  # as if its process had ended
    with group.create_reader("b") as other:
        waited = until(lambda: group.online_readers() == ["b"])
        assert waited < 30  # 3 s, and what a busy machine takes
        found = numbers(read_all(96, other))
    done = [int(read.event) for read in first if read and read.event is not None][:-1]
    assert sorted([*done, *found]) == list(range(100))
    with pytest.raises(ClosedError):
        dead.read_next_event(1)


def test_reader_taken_offline_by_call_raises(manager: StreamManager, groups: ReaderGroupManager) -> None:
    group = new_group(groups, new_stream(manager, 1))
    reader = group.create_reader("r")
    group.reader_offline("r")
    with pytest.raises(ReaderOfflineError):
        reader.read_next_event(60)
    reader.close()
    with group.create_reader("r"):
        assert group.online_readers() == ["r"]


def test_notifications_report_changes(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1)
    group = new_group(groups, stream)
    changes = group.notifications(every_s=0.05)
    assert (next(changes).readers, 0) == (0, 0)
    with group.create_reader("r") as reader:
        assert next(changes).readers == 1
        manager.scale_stream("sc", stream, [0], [(0.0, 0.5), (0.5, 1.0)])

        def is_split() -> bool:
            assert reader.read_next_event(0.05) is None
            return sum(map(len, group.segments_of_readers().values())) == 2

        until(is_split)
        assert next(changes).segments == 2
    assert next(changes).readers == 0


def test_reader_offline_with_positions_moves_other_readers_there(
    manager: StreamManager, groups: ReaderGroupManager
) -> None:
    stream = new_stream(manager, 1, 100)
    group = new_group(groups, stream)
    dead = group.create_reader("dead")
    for _ in range(20):
        dead.read_next_event(60)
    kept = dead.positions()
    assert isinstance(dead._core, aio.EventReader)
    drop_out(dead._core)  # as if its process had ended
    with pytest.raises(InvalidArgumentError):
        group.reader_offline("dead", dict.fromkeys(kept, -1))
    cuts = group.reader_offline("dead", {**kept, "sc/other/0.#epoch.0": 5})
    assert list(cuts[f"sc/{stream}"].positions.values()) == list(kept.values())
    with group.create_reader("b") as other:
        assert numbers(read_all(80, other)) == list(range(20, 100))
    assert group.reader_offline("dead", kept) == {}


def test_gap_is_reported_again_unless_done(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1, 10)
    group = new_group(groups, stream)
    manager.truncate_stream(manager.stream_info("sc", stream).tail)
    write(manager, stream, 10, 12)
    first = group.create_reader("first")
    first_read = first.read_next_event(60)
    first.close(is_done=False)
    with group.create_reader("second") as second:
        assert second.read_next_event(60) == first_read
        assert first_read is not None
        assert first_read.gap is not None
        assert second.positions() == {first_read.segment: 0}
        assert numbers(read_all(2, second)) == [10, 11]


def test_a_start_cut_that_waits_for_one_segment_alone(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream, halves = new_stream(manager, 1), [(0.0, 0.5), (0.5, 1.0)]
    manager.scale_stream("sc", stream, [0], halves)
    write(manager, stream, 0, 10)
    before = [piece.segment_id for piece in manager.current_segments("sc", stream)]
    manager.scale_stream("sc", stream, before, [(0.0, 1.0)])
    write(manager, stream, 10, 20)
    (merged,) = [piece.segment_id for piece in manager.current_segments("sc", stream)]
    start = StreamCut("sc", stream, {merged: -1})
    with new_group(groups, stream, starts=[start]).create_reader("r") as reader:
        assert numbers(read_all(10, reader)) == list(range(10, 20))
    end = manager.stream_info("sc", stream).tail
    assert sorted(int(e.data) for e in manager.read_events("sc", stream, start=start, end=end)) == list(range(10, 20))
    assert manager.cuts("sc", stream).events_between(start, end) == 10
    assert manager.cuts("sc", stream).settled(start).positions == {merged: 0}


def test_start_past_the_end_raises(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1)
    write(manager, stream, 0, 10)
    end = manager.stream_info("sc", stream).tail.positions[0]
    group = new_group(groups, stream, starts=[StreamCut("sc", stream, {0: end + 1})])
    with group.create_reader("r") as reader:
        with pytest.raises(PastEndError) as raised:
            reader.read_next_event(60)
        assert (raised.value.offset, raised.value.length) == (end + 1, end)
        group.reset_reader_group([StreamCut("sc", stream, {0: end})])

        def is_reset() -> bool:
            with suppress(PastEndError):  # until it has heard of it
                read = reader.read_next_event(60)
                return read is not None and read.is_reset
            return False

        until(is_reset)
        write(manager, stream, 10, 20)
        assert numbers(read_all(10, reader)) == list(range(10, 20))


def test_cut_off_a_boundary_is_rejected(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream, halves = new_stream(manager, 1), [(0.0, 0.5), (0.5, 1.0)]
    manager.scale_stream("sc", stream, [0], halves)
    write(manager, stream, 0, 10)
    before = [piece.segment_id for piece in manager.current_segments("sc", stream)]
    manager.scale_stream("sc", stream, before, [(0.0, 1.0)])
    (merged,) = [piece.segment_id for piece in manager.current_segments("sc", stream)]
    manager.scale_stream("sc", stream, [merged], halves)
    right = manager.current_segments("sc", stream)[1].segment_id
    group = new_group(groups, stream)
    for positions in ({before[0]: 0}, {before[0]: 0, right: 0}):
        cut = StreamCut("sc", stream, positions)
        with pytest.raises(InvalidStreamCutError):
            groups.create_reader_group("never", stream, starts=[cut])
        with pytest.raises(InvalidStreamCutError):
            group.reset_reader_group([cut])
    assert "never" not in groups.list_reader_groups()


def test_change_to_an_unreadable_state_is_rejected(manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 1, 10)
    group = new_group(groups, stream)
    wrong: Any = 5
    with pytest.raises(InvalidArgumentError):
        group.create_reader(wrong)
    with pytest.raises(InvalidArgumentError):
        group.initiate_checkpoint(wrong)
    with pytest.raises(InvalidArgumentError):
        group.initiate_checkpoint("")
    with pytest.raises(InvalidArgumentError):
        group.reset_reader_group("evening")  # type: ignore[arg-type]
    with group.create_reader("a") as reader:
        until(lambda: reader.read_next_event(1) is not None)
        halves: Any = {name: offset / 2 + 0.25 for name, offset in reader.positions().items()}
        with pytest.raises(InvalidArgumentError):
            group.reader_offline("a", halves)
        assert group.online_readers() == ["a"]
