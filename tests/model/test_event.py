"""Framing of events round-trips for any lengths and any end of the bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import ProtocolError
from nadi.limits import MAX_LARGE_EVENT_BYTES
from nadi.model.event import EventBlock, joined, whole_events
from nadi.model.framing import HEADER_BYTES, event_header, event_headers, event_starts, frame_events

mixed = st.lists(st.binary(max_size=40), max_size=60)
# Long runs of equally long events with odd ones between them; zeros look like headers.
runs = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 300), st.sampled_from([b"\0", b"x", b"\0\0\0\1"])), max_size=6
).map(lambda pieces: [(fill * size)[:size] for size, count, fill in pieces for _ in range(count)])
event_lists = mixed | runs


def simply_parsed(data: bytes) -> list[int]:
    """Return the start of each complete event, by the definition."""
    starts, position = [], 0
    while position + HEADER_BYTES <= len(data):
        end = position + HEADER_BYTES + int.from_bytes(data[position + 4 : position + 8])
        if end > len(data):
            break
        starts.append(position)
        position = end
    return starts


@given(event_lists, st.integers(0, 1 << 40))
def test_framed_events_read_back(events: list[bytes], offset: int) -> None:
    data = frame_events(events)
    block, taken = whole_events(memoryview(data), offset)
    assert taken == block.size_bytes == len(data)
    assert block.events() == list(block) == block.payloads().to_pylist() == events
    assert all(type(event) is bytes for event in block.events())
    assert len(block) == len(events)
    assert block.offsets().tolist() == [start + offset for start in simply_parsed(data)]


@given(st.lists(event_lists, min_size=1, max_size=5), st.integers(0, 1 << 40))
def test_joined_blocks_are_the_block_of_all_their_bytes(lists: list[list[bytes]], offset: int) -> None:
    blocks, end = [], offset
    for events in lists:
        block, size = whole_events(memoryview(frame_events(events)), end)
        blocks.append(block)
        end += size
    whole, _ = whole_events(memoryview(b"".join(map(frame_events, lists))), offset)
    found = joined(blocks)
    assert (found.offset, bytes(found.data), found.starts.tolist()) == (
        offset,
        bytes(whole.data),
        whole.starts.tolist(),
    )
    assert list(found) == [event for events in lists for event in events]


@given(event_lists, st.data())
def test_a_partial_event_at_the_end_is_left(events: list[bytes], data: st.DataObject) -> None:
    whole = frame_events(events)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    block, taken = whole_events(memoryview(cut))
    starts = simply_parsed(cut)
    assert block.starts.tolist() == starts
    assert list(block) == block.payloads().to_pylist() == events[: len(starts)]
    rest, _ = whole_events(memoryview(whole)[taken:], taken)
    assert list(block) + list(rest) == events


@given(event_lists, st.integers(0, 700))
def test_no_more_events_than_asked_for(events: list[bytes], most: int) -> None:
    starts, taken = event_starts(memoryview(frame_events(events)), max_events=most)
    assert starts.tolist() == simply_parsed(frame_events(events[:most]))
    assert taken == len(frame_events(events[:most]))


@given(event_lists, st.data())
def test_bad_header_is_rejected_with_its_offset(events: list[bytes], data: st.DataObject) -> None:
    bad = data.draw(
        st.sampled_from(
            [
                b"\0\0\0\1\0\0\0\0",  # another type
                b"\xff\xff\xff\xff\0\0\0\0",
                b"\0\0\0\0\xff\xff\xff\xff",  # a negative length
                b"\0\0\0\0" + (MAX_LARGE_EVENT_BYTES + 1).to_bytes(4),
            ]
        )
    )
    good = frame_events(events)
    tail = data.draw(st.binary(max_size=20))
    with pytest.raises(ProtocolError, match=f"{len(good) + 1000:,}"):
        whole_events(memoryview(good + bad + tail), 1000)
    starts, _ = event_starts(memoryview(good + bad + tail), max_events=len(events))
    assert len(starts) == len(events), "the requested events are before the bad header"


def test_incomplete_long_event_is_not_an_error() -> None:
    data = event_header(MAX_LARGE_EVENT_BYTES) + b"the beginning"
    block, taken = whole_events(memoryview(data))
    assert (len(block), taken) == (0, 0)


def test_the_longest_runs_are_found_whole() -> None:
    events = [b"a" * 10] * 50_000 + [b"b" * 11] + [b"c" * 10] * 20_000
    block, _ = whole_events(memoryview(frame_events(events)))
    assert list(block) == events


def test_framing_is_that_of_the_protocol() -> None:
    assert frame_events([b"hi", b""]).hex() == "0000000000000002686900000000" + "00000000"


@given(st.lists(st.integers(0, 9_000), min_size=1), st.booleans())
def test_headers_of_many_events_are_those_of_each(sizes: list[int], short: bool) -> None:
    sizes = [size % 4_100 for size in sizes] if short else sizes
    assert list(event_headers(sizes)) == [event_header(size) for size in sizes]
    assert [int.from_bytes(header, "big") for header in event_headers(sizes)] == sizes


@pytest.mark.parametrize("sizes", [[100] * 1_000, [4_096, 5_000] * 100])
def test_events_alike_or_long_become_bytes_without_arrow(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    events = [number.to_bytes(2) * (size // 2) for number, size in enumerate(sizes)]
    block, _ = whole_events(memoryview(frame_events(events)))
    monkeypatch.setattr(EventBlock, "payloads", None)  # its import takes longer than reading 50 MB
    assert block.events() == events
