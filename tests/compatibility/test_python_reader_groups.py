"""The official package's reader groups: readers share a stream, each event is read once, each key in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import nadi
from tests.compatibility.conftest import Official
from tests.compatibility.events import by_key, merge_all, merge_first, numbered, split_first, texts

pytestmark = pytest.mark.compatibility

STREAM = "stream"


def written(client: Official, scope: str, start: int, end: int, stream: str = STREAM) -> list[str]:
    writer = client.manager.create_writer(scope, stream, max_inflight_events=50)
    events = numbered(start, end)
    client.extras.write(writer, events)
    return texts(events)


def test_readers_come_and_go(client: Official, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 3)
    events = written(client, scope, 0, 300)
    group = client.manager.create_reader_group("group", scope, STREAM)
    read: list[bytes] = []
    for number in range(8):
        reader = group.create_reader(f"reader-{number}")
        segment_slice = reader.get_segment_slice_async()
        read += [event for _, event in client.extras.take(segment_slice, 15)]
        reader.release_segment(segment_slice)  # in the middle of it
        reader.reader_offline()
    assert len(read) == 8 * 15
    read += client.extras.read(group.create_reader("last"), 300 - len(read))
    assert by_key(read) == by_key(events)


def test_reader_stops_at_an_empty_event(client: Official, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 1)
    writer = client.manager.create_writer(scope, STREAM)
    client.extras.write(writer, [(event, "key") for event in (b"before", b"", b"after")])
    reader = client.manager.create_reader_group("group", scope, STREAM).create_reader("reader")
    assert client.extras.read_slice(reader) == [b"before"]
    assert [client.extras.read_slice(reader) for _ in range(5)] == [[]] * 5


def test_dead_reader_can_be_declared_offline(client: Official, official: Callable[[], Official], scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 2)
    events = written(client, scope, 0, 100)
    group = client.manager.create_reader_group("group", scope, STREAM)
    dying = official()
    reader = dying.manager.create_reader_group("group", scope, STREAM).create_reader("dying")
    assert len(dying.extras.take(reader.get_segment_slice_async(), 5)) == 5
    dying.process.close()
    group.get_streamcut()  # updates the group, which would silently ignore an unknown reader
    group.reader_offline("dying")
    # nothing was released, so nothing counts as read
    assert by_key(client.extras.read(group.create_reader("heir"), 100)) == by_key(events)


def test_two_readers_share_the_segments(client: Official, scope: str) -> None:
    """The second reader gets its share when the first one releases segments, about 10 s after the start."""
    client.manager.create_stream(scope, STREAM, 4)
    group = client.manager.create_reader_group("group", scope, STREAM)
    readers = [group.create_reader("first"), group.create_reader("second")]
    events: list[str] = []
    read: list[list[bytes]] = [[], []]
    while not read[1] and len(events) < 1_500:
        events += written(client, scope, len(events), len(events) + 50)
        for reader, events_read in zip(readers, read, strict=True):
            events_read += client.extras.read_slice(reader)  # waits a second without a segment
    assert all(read), "both have segments"
    events += written(client, scope, len(events), len(events) + 200)
    remaining = client.extras.share(readers, len(events) - len(read[0]) - len(read[1]))
    assert all(remaining), "both have segments"
    assert by_key(read[0] + read[1] + remaining[0] + remaining[1]) == by_key(events)


def test_a_stream_is_split_and_merged_under_a_reader(
    client: Official, nadi_manager: nadi.StreamManager, scope: str
) -> None:
    client.manager.create_stream(scope, STREAM, 1)
    group = client.manager.create_reader_group("group", scope, STREAM)
    reader = group.create_reader("reader")
    events: list[str] = []
    read: list[bytes] = []
    for number, scale in enumerate((split_first, split_first, merge_all, split_first)):
        events += written(client, scope, number * 100, number * 100 + 100)
        read += client.extras.read(reader, len(events) - 50 - len(read))
        scale(nadi_manager, scope, STREAM)
    events += written(client, scope, 400, 500)
    read += client.extras.read(reader, len(events) - len(read))
    assert by_key(read) == by_key(events)


def test_reader_at_the_tail_gets_later_events(client: Official, official: Callable[[], Official], scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 1)
    waiting = official()
    reader = waiting.manager.create_reader_group("group", scope, STREAM).create_reader("reader")
    waiting.process.begin(waiting.extras, "read", reader, 20)
    events = written(client, scope, 0, 20)
    assert by_key(waiting.process.result()) == by_key(events)


def test_from_the_tail(client: Official, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 2)
    written(client, scope, 0, 50)
    group = client.manager.create_reader_group("group", scope, STREAM, read_from_tail=True)
    reader = group.create_reader("reader")
    later = written(client, scope, 50, 100)
    assert by_key(client.extras.read(reader, 50)) == by_key(later)


@pytest.mark.parametrize("scaled", [False, True])
def test_from_a_stream_cut(client: Official, nadi_manager: nadi.StreamManager, scope: str, scaled: bool) -> None:
    client.manager.create_stream(scope, STREAM, 2)
    events = written(client, scope, 0, 100)
    first = client.manager.create_reader_group("first", scope, STREAM)
    reader = first.create_reader("reader")
    segment_slice = reader.get_segment_slice_async()
    head = [event for _, event in client.extras.take(segment_slice, 20)]
    reader.release_segment(segment_slice)
    reader.reader_offline()
    cut = first.get_streamcut()
    if scaled:
        split_first(nadi_manager, scope, STREAM)
        merge_first(nadi_manager, scope, STREAM)
    events += written(client, scope, 100, 200)
    second = client.manager.create_reader_group("second", scope, STREAM, stream_cut=cut)
    remaining = client.extras.read(second.create_reader("reader"), 180)
    assert by_key(head + remaining) == by_key(events)
    positions = cut.get_segment_offset_map()
    start = nadi.StreamCut(scope, STREAM, {int(segment): offset for segment, offset in positions.items()})
    tail = nadi_manager.stream_info(scope, STREAM).tail
    again = [event.data for event in nadi_manager.read_events(scope, STREAM, start=start, end=tail)]
    assert by_key(again) == by_key(remaining), "nadi's own client reads the same from the same cut"


def test_a_group_of_two_streams(client: Official, scope: str) -> None:
    events = []
    for number, stream in enumerate(("one", "two")):
        client.manager.create_stream(scope, stream, 2)
        events += written(client, scope, number * 50, number * 50 + 50, stream)
    config = client.package.StreamReaderGroupConfig(False, scope, "one", "two")
    group = client.manager.create_reader_group_with_config("group", scope, config)
    read = client.extras.read(group.create_reader("reader"), 100)
    assert sorted(event.decode() for event in read) == sorted(events)


def test_deleted_group_starts_over(client: Official, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 1)
    events = written(client, scope, 0, 30)
    for _ in range(2):
        group = client.manager.create_reader_group("group", scope, STREAM)
        reader = group.create_reader("reader")
        assert by_key(client.extras.read(reader, 30)) == by_key(events)
        reader.reader_offline()
        client.manager.delete_reader_group("group", scope)


def test_a_stream_truncated_under_its_readers(client: Official, nadi_manager: nadi.StreamManager, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 1)
    written(client, scope, 0, 100)
    cut = nadi_manager.stream_info(scope, STREAM).tail
    kept = written(client, scope, 100, 150)
    nadi_manager.truncate_stream(cut)
    group = client.manager.create_reader_group("group", scope, STREAM)
    assert by_key(client.extras.read(group.create_reader("reader"), 50)) == by_key(kept)
