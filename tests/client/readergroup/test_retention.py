"""Groups that delay the retention of their streams, with release by checkpoints or by calls."""

from __future__ import annotations

import asyncio

import pytest

from nadi.client import ReaderGroup, ReaderGroupManager, StreamDataRetention, StreamManager, aio
from nadi.client.manager.streams import stores_of
from nadi.errors import InvalidArgumentError, InvalidStreamCutError
from nadi.model.streamcut import StreamCut
from nadi.wire.rpc import controller_pb2 as pb
from tests.support.waiting import until

from .support import new_group, new_stream, read_all

MANUAL = StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT
AUTOMATIC = StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT


def subscribers(uri: str, stream: str) -> list[str]:
    async def ask() -> list[str]:
        async with aio.StreamManager(uri) as client:
            request = pb.StreamInfo(scope="sc", stream=stream)
            controller = stores_of(client).controller
            return list((await controller.call("listSubscribers", request, pb.SubscribersResponse)).subscribers)

    return asyncio.run(ask())


def is_released(uri: str, group: ReaderGroup, cut: StreamCut) -> bool:
    """Return whether the controller rejects a release of anything before `cut`."""
    earlier = StreamCut(cut.scope, cut.stream, {i: at - 1 for i, at in cut.positions.items()})

    async def ask() -> bool:
        async with aio.StreamManager(uri) as client:
            group_id = (await stores_of(client).controller.reader_group_id("sc", group.name)).lower()
            try:
                await stores_of(client).controller.update_subscriber_stream_cut(f"sc/{group.name}", group_id, earlier)
            except InvalidStreamCutError:
                return True
            return False

    return asyncio.run(ask())


def test_group_without_retention_does_not_subscribe(
    uri: str, manager: StreamManager, groups: ReaderGroupManager
) -> None:
    stream = new_stream(manager, 1, 10)
    group = new_group(groups, stream)
    assert subscribers(uri, stream) == []
    with pytest.raises(InvalidArgumentError, match="NONE"):
        group.update_retention_stream_cut([manager.stream_info("sc", stream).tail])


def test_manual_release_delays_truncation(uri: str, manager: StreamManager, groups: ReaderGroupManager) -> None:
    stream = new_stream(manager, 2, 10)
    group = new_group(groups, stream, retention=MANUAL)
    assert subscribers(uri, stream) == [f"sc/{group.name}"]
    info = manager.stream_info("sc", stream)
    assert not is_released(uri, group, info.tail)
    group.update_retention_stream_cut([info.tail])
    assert is_released(uri, group, info.tail)
    with pytest.raises(InvalidStreamCutError):
        group.update_retention_stream_cut([info.head])
    assert groups.delete_reader_group(group.name)
    assert subscribers(uri, stream) == []


def test_checkpoint_releases_events_before_it(uri: str, manager: StreamManager, groups: ReaderGroupManager) -> None:
    streams = [new_stream(manager, 2, 50), new_stream(manager, 1, 10)]
    group = new_group(groups, streams, retention=AUTOMATIC, checkpoint_interval_ms=300)
    with group.create_reader("a") as first, group.create_reader("b") as second:
        read_all(60, first, second)
        for stream in streams:
            tail = manager.stream_info("sc", stream).tail

            def read_on(tail: StreamCut = tail) -> bool:
                first.read_next_event(0.1)
                second.read_next_event(0.1)
                return any(one.stream_cuts[f"sc/{tail.stream}"] == tail for one in group.checkpoints())

            until(read_on)
            until(lambda tail=tail: read_on() and is_released(uri, group, tail))  # type: ignore[misc]
        with pytest.raises(InvalidArgumentError, match="AUTOMATIC"):
            group.update_retention_stream_cut([])
