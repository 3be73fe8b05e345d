"""Subscribers of a stream: who is one, and which cuts they may publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import grpc

from nadi.controller.state.metadata import StreamName
from nadi.naming import segment_id
from nadi.standalone.server import Server
from nadi.wire.rpc import controller_pb2 as pb

from .rpc import Call, code_of, over_server
from .support import until
from .test_reader_groups import ID, METERS, group_config, info, prepare

OTHER = pb.StreamInfo(scope="home", stream="other")
STATUS = pb.UpdateSubscriberStatus


def cuts(*streams: Any) -> list[Any]:
    return [pb.StreamCut(streamInfo=stream) for stream in streams]


async def subscribers(call: Call, stream: Any) -> list[str]:
    reply = await call("listSubscribers", stream)
    assert reply.status == pb.SubscribersResponse.SUCCESS
    return sorted(reply.subscribers)


def published(cut: dict[int, int], generation: int = 0, group_id: str = ID, group: str = "home/readers") -> Any:
    return pb.SubscriberStreamCut(
        subscriber=group,
        generation=generation,
        readerGroupId=group_id,
        streamCut=pb.StreamCut(streamInfo=METERS, cut=cut),
    )


async def publish(call: Call, *args: Any, **more: Any) -> int:
    return int((await call("updateSubscriberStreamCut", published(*args, **more))).status)


def test_groups_subscribe_while_their_retention_type_asks_for_it(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
        await prepare(call, "meters", "other")
        await call("createReaderGroup", group_config("silent"))
        assert await subscribers(call, METERS) == []
        await call("createReaderGroup", group_config("a", retentionType=1, startingStreamCuts=cuts(METERS, OTHER)))
        await call("createReaderGroup", group_config("b", retentionType=2))
        assert await subscribers(call, METERS) == ["home/a", "home/b"]
        assert await subscribers(call, OTHER) == ["home/a"]
        update = group_config("a", retentionType=1, startingStreamCuts=cuts(OTHER))
        assert (await call("updateReaderGroup", update)).generation == 1
        assert await subscribers(call, METERS) == ["home/b"]
        assert await subscribers(call, OTHER) == ["home/a"]
        assert (await call("updateReaderGroup", group_config("b", retentionType=0))).generation == 1
        assert await subscribers(call, METERS) == []
        assert (await call("updateReaderGroup", group_config("silent", retentionType=2))).generation == 1
        assert await subscribers(call, METERS) == ["home/silent"]
        await call("deleteReaderGroup", info("silent"))
        await call("deleteReaderGroup", info("a"))
        assert await subscribers(call, METERS) == []
        assert await subscribers(call, OTHER) == []
        missing = await call("listSubscribers", pb.StreamInfo(scope="home", stream="none"))
        assert missing.status == pb.SubscribersResponse.STREAM_NOT_FOUND

    over_server(tmp_path, test)


def test_a_published_cut_only_moves_on(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
        await prepare(call)
        stream = StreamName("home", "meters")
        await call("createReaderGroup", group_config(retentionType=1))

        async def stored() -> dict[int, int]:
            found = await server.controller.metadata.subscribers(stream).get("home/readers", fresh=True)
            assert found is not None
            return found.value.cut

        assert await publish(call, {0: 10, 1: 5}) == STATUS.SUCCESS
        assert await publish(call, {0: 10, 1: 5}) == STATUS.SUCCESS
        assert await publish(call, {0: 10, 1: 4}) == STATUS.STREAM_CUT_NOT_VALID
        assert await publish(call, {0: 10}) == STATUS.STREAM_CUT_NOT_VALID
        assert await publish(call, {0: 10, 7: 5}) == STATUS.STREAM_CUT_NOT_VALID
        assert await stored() == {0: 10, 1: 5}
        work = await server.controller.scale(stream, [1], [(0.5, 0.7), (0.7, 1.0)])
        await until(lambda: server.controller.is_scaled(stream, work.change.epoch - 1), 10_000_000)
        new = {segment_id(2, 1): 0, segment_id(3, 1): 0}
        assert await publish(call, {0: 10, **new}) == STATUS.SUCCESS
        assert await publish(call, {0: 11, 1: 50}) == STATUS.STREAM_CUT_NOT_VALID
        assert await stored() == {0: 10, **new}
        assert await publish(call, {}) == STATUS.SUCCESS
        assert await stored() == {}

    over_server(tmp_path, test)


def test_a_cut_is_taken_from_the_group_as_it_is_now_only(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
        await prepare(call)
        await call("createReaderGroup", group_config(retentionType=1))
        cut = {0: 0, 1: 0}
        for group in ("home/none", "", "readers", "x" * 10_000):
            assert await publish(call, cut, group=group) == STATUS.SUBSCRIBER_NOT_FOUND
        assert await publish(call, cut, group_id=str(UUID(int=1))) == STATUS.SUBSCRIBER_NOT_FOUND
        assert await publish(call, cut, 1) == STATUS.GENERATION_MISMATCH
        assert await publish(call, {0: 7, 1: 7}) == STATUS.SUCCESS
        await call("updateReaderGroup", group_config(retentionType=1))
        assert await publish(call, {0: 8, 1: 8}) == STATUS.GENERATION_MISMATCH
        assert await publish(call, {0: 6, 1: 8}, 1) == STATUS.STREAM_CUT_NOT_VALID  # the update kept the cut
        assert await publish(call, {0: 8, 1: 8}, 1) == STATUS.SUCCESS
        nowhere = published(cut)
        nowhere.streamCut.streamInfo.stream = "none"
        assert (await call("updateSubscriberStreamCut", nowhere)).status == STATUS.STREAM_NOT_FOUND

    over_server(tmp_path, test)


def test_a_new_group_of_an_old_name_starts_without_its_cut(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
        await prepare(call)
        await call("createReaderGroup", group_config(retentionType=1))
        assert await publish(call, {0: 7, 1: 7}) == STATUS.SUCCESS
        await call("deleteReaderGroup", info())
        new = str(UUID(int=9))
        await call("createReaderGroup", group_config(retentionType=1, readerGroupId=new))
        assert await publish(call, {0: 1, 1: 1}) == STATUS.SUBSCRIBER_NOT_FOUND
        assert await publish(call, {0: 1, 1: 1}, group_id=new) == STATUS.SUCCESS

    over_server(tmp_path, test)


def test_a_deleted_stream_takes_its_subscribers_along(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
        await prepare(call)
        await call("createReaderGroup", group_config(retentionType=1))
        assert await publish(call, {0: 7, 1: 7}) == STATUS.SUCCESS
        await call("sealStream", METERS)
        await call("deleteStream", METERS)
        assert await publish(call, {0: 8, 1: 8}) == STATUS.STREAM_NOT_FOUND
        await prepare(call)
        assert await subscribers(call, METERS) == []
        assert await publish(call, {2: 8, 3: 8}) == STATUS.SUBSCRIBER_NOT_FOUND
        assert (await call("deleteReaderGroup", info())).status == pb.DeleteReaderGroupStatus.SUCCESS

    over_server(tmp_path, test)


def test_no_group_subscribes_to_a_groups_own_stream(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
        await prepare(call)
        await call("createReaderGroup", group_config())
        state = pb.StreamInfo(scope="home", stream="_RGreaders")
        update = group_config(retentionType=1, startingStreamCuts=cuts(state))
        assert await code_of(call("updateReaderGroup", update)) is grpc.StatusCode.INVALID_ARGUMENT
        assert (await call("updateReaderGroup", group_config(startingStreamCuts=cuts(state)))).generation == 1

    over_server(tmp_path, test)
