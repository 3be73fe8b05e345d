"""The official package writes events in all its ways, and while the stream is scaled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import nadi
from tests.compatibility.conftest import Official
from tests.compatibility.events import by_key, merge_all, numbered, read_all, split_first, texts

pytestmark = pytest.mark.compatibility

STREAM = "stream"


@pytest.mark.parametrize("in_flight", [0, 1, 20])
def test_events_are_stored_in_order(
    client: Official, nadi_manager: nadi.StreamManager, scope: str, in_flight: int
) -> None:
    client.manager.create_stream(scope, STREAM, 3)
    writer = client.manager.create_writer(scope, STREAM, max_inflight_events=in_flight)
    as_text, as_bytes = numbered(0, 150), numbered(150, 300)
    client.extras.write(writer, as_text)
    client.extras.write(writer, [(event.encode(), key) for event, key in as_bytes])
    assert by_key(read_all(nadi_manager, scope, STREAM)) == by_key(texts(as_text + as_bytes))


def test_events_written_with_await(client: Official, nadi_manager: nadi.StreamManager, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 2)
    written = numbered(0, 100)
    client.extras.write_async(client.manager.create_writer(scope, STREAM), written)
    assert by_key(read_all(nadi_manager, scope, STREAM)) == by_key(texts(written))


def test_events_without_routing_keys(client: Official, nadi_manager: nadi.StreamManager, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 4)
    written: list[tuple[str, None]] = [(f"event {number}", None) for number in range(200)]
    client.extras.write(client.manager.create_writer(scope, STREAM, max_inflight_events=10), written)
    read = read_all(nadi_manager, scope, STREAM)
    assert sorted(event.decode() for event in read) == sorted(event for event, _ in written)
    tail = nadi_manager.stream_info(scope, STREAM).tail
    assert all(offset > 0 for offset in tail.positions.values()), "spread over all segments"


def test_several_writers_at_once(
    client: Official, official: Callable[[], Official], nadi_manager: nadi.StreamManager, scope: str
) -> None:
    client.manager.create_stream(scope, STREAM, 2)
    clients = [client, official(), official()]
    parts = [numbered(0, 300, label=f"writer {number}") for number in range(len(clients))]
    for client, part in zip(clients, parts, strict=True):
        writer = client.manager.create_writer(scope, STREAM, max_inflight_events=5)
        client.process.begin(client.extras, "write", writer, part)
    for client in clients:
        client.process.result()
    assert by_key(read_all(nadi_manager, scope, STREAM)) == by_key(texts([e for part in parts for e in part]))


@pytest.mark.parametrize(("in_flight", "events"), [(0, 4_000), (100, 40_000)])
def test_a_stream_is_split_and_merged_under_a_writer(
    client: Official, nadi_manager: nadi.StreamManager, scope: str, in_flight: int, events: int
) -> None:
    client.manager.create_stream(scope, STREAM, 1)
    writer = client.manager.create_writer(scope, STREAM, max_inflight_events=in_flight)
    written = numbered(0, events)
    client.extras.write(writer, written[:10])
    client.process.begin(client.extras, "write", writer, written[10:])
    for _ in range(3):
        split_first(nadi_manager, scope, STREAM)
        split_first(nadi_manager, scope, STREAM)
        merge_all(nadi_manager, scope, STREAM)
    client.process.result()
    tail = nadi_manager.stream_info(scope, STREAM).tail
    read = list(nadi_manager.read_events(scope, STREAM, end=tail))
    assert by_key(event.data for event in read) == by_key(texts(written))
    assert len({event.segment_id for event in read}) > 2, "not scaled during the writes"


def test_a_large_event_after_a_split(client: Official, nadi_manager: nadi.StreamManager, scope: str) -> None:
    client.manager.create_stream(scope, STREAM, 1)
    writer = client.manager.create_writer(scope, STREAM)
    large = b"x" * (10 << 20)
    client.extras.write(writer, [(b"before", "key"), (large, "key")])
    split_first(nadi_manager, scope, STREAM)
    client.extras.write(writer, [(large, "key"), (b"after", "key")])
    assert read_all(nadi_manager, scope, STREAM) == [b"before", large, large, b"after"]
