"""Reader groups as used by the official Java client: over gRPC, before the whole server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pytest

from nadi.controller.state.metadata import StreamName
from nadi.naming import segment_id
from nadi.wire import commands as wire
from nadi.wire.rpc import controller_pb2 as pb

from .rpc import Call, code_of, served
from .support import until

ID = "7b0fe3a2-55f1-4b2c-8c80-0e6f6f3b9d11"
METERS = pb.StreamInfo(scope="home", stream="meters")
STATE = pb.StreamInfo(scope="home", stream="_RGreaders")
CREATED = pb.CreateReaderGroupResponse
FOUND = pb.ReaderGroupConfigResponse
UPDATED = pb.UpdateReaderGroupResponse
DELETED = pb.DeleteReaderGroupStatus


def group_config(name: str = "readers", **more: Any) -> Any:
    fields: dict[str, Any] = {
        "groupRefreshTimeMillis": 3_000,
        "automaticCheckpointIntervalMillis": 30_000,
        "maxOutstandingCheckpointRequest": 3,
        "readerGroupId": ID,
        "startingStreamCuts": [pb.StreamCut(streamInfo=METERS)],
    }
    return pb.ReaderGroupConfiguration(scope="home", readerGroupName=name, **(fields | more))


def info(name: str = "readers", group_id: str = ID) -> Any:
    return pb.ReaderGroupInfo(scope="home", readerGroup=name, readerGroupId=group_id)


async def prepare(call: Call, *streams: str) -> None:
    await call("createScope", pb.ScopeInfo(scope="home"))
    for stream in streams or ("meters",):
        config = pb.StreamConfig(
            streamInfo=pb.StreamInfo(scope="home", stream=stream), scalingPolicy=pb.ScalingPolicy(minNumSegments=2)
        )
        assert (await call("createStream", config)).status == pb.CreateStreamStatus.SUCCESS


async def streams_in(call: Call, scope: str = "home") -> set[str]:
    page = await call("listStreamsInScope", pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope=scope)))
    return {stream.stream for stream in page.streams}


async def test_a_group_is_created_with_its_stream_and_echoed() -> None:
    async with served() as (call, store, _controller):
        await prepare(call)
        asked = group_config(
            groupRefreshTimeMillis=1,
            automaticCheckpointIntervalMillis=-1,
            maxOutstandingCheckpointRequest=7,
            retentionType=2,
            startingStreamCuts=[
                pb.StreamCut(streamInfo=METERS, cut={0: 5, 1: 0, 1 << 32: -1}),
                pb.StreamCut(streamInfo=pb.StreamInfo(scope="home", stream="_MARKmeters")),
            ],
            endingStreamCuts=[pb.StreamCut(streamInfo=METERS)],
            rolloverSizeBytes=12345,
            generation=9,
        )
        created = await call("createReaderGroup", asked)
        assert created.status == CREATED.SUCCESS
        expected = group_config()
        expected.CopyFrom(asked)
        expected.generation = 0
        assert created.config == expected
        (segment,) = (await call("getCurrentSegments", STATE)).segmentRanges
        assert (segment.segmentId.segmentId, segment.minKey, segment.maxKey) == (0, 0.0, 1.0)
        found = await store.exchange(wire.GetStreamSegmentInfo(1, "home/_RGreaders/0.#epoch.0", ""))
        assert isinstance(found, wire.StreamSegmentInfo)
        assert found.exists
        assert "_MARK_RGreaders" not in await streams_in(call)
        read = await call("getReaderGroupConfig", pb.ReaderGroupInfo(scope="home", readerGroup="readers"))
        assert (read.status, read.config) == (FOUND.SUCCESS, expected)
        another = await call("createReaderGroup", group_config(readerGroupId=str(UUID(int=5))))
        assert (another.status, another.config) == (CREATED.SUCCESS, expected)


async def test_group_stream_rolls_over_at_four_mebibytes_by_default() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        for name, given, expected in (("a", 0, 4 << 20), ("b", 1 << 20, 1 << 20)):
            await call("createReaderGroup", group_config(name, rolloverSizeBytes=given))
            stream = await call("getStreamConfiguration", pb.StreamInfo(scope="home", stream=f"_RG{name}"))
            assert (stream.rolloverSizeBytes, stream.scalingPolicy.minNumSegments) == (expected, 1)


async def test_invalid_groups_are_rejected() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        for name in ("", "_a", "a_b", "a/b", "a" * 251, "ä"):
            assert (await call("createReaderGroup", group_config(name))).status == CREATED.INVALID_RG_NAME
            assert (await call("getReaderGroupConfig", info(name))).status == FOUND.RG_NOT_FOUND
            assert (await call("deleteReaderGroup", info(name))).status == DELETED.RG_NOT_FOUND
        assert (await call("createReaderGroup", group_config("a" * 250))).status == CREATED.SUCCESS
        nowhere = group_config()
        nowhere.scope = "none"
        assert (await call("createReaderGroup", nowhere)).status == CREATED.SCOPE_NOT_FOUND
        assert (await call("updateReaderGroup", nowhere)).status == UPDATED.RG_NOT_FOUND
        twice = [pb.StreamCut(streamInfo=METERS), pb.StreamCut(streamInfo=METERS)]
        other = pb.StreamCut(streamInfo=pb.StreamInfo(scope="home", stream="other"))
        wrongs: tuple[dict[str, Any], ...] = (
            {"startingStreamCuts": []},
            {"startingStreamCuts": twice},
            {"startingStreamCuts": [pb.StreamCut(streamInfo=pb.StreamInfo(scope="home", stream="a/b"))]},
            {"startingStreamCuts": [pb.StreamCut(streamInfo=METERS, cut=dict.fromkeys(range(100_000), 1 << 62))]},
            {"endingStreamCuts": [other]},
            {"maxOutstandingCheckpointRequest": 0},
            {"retentionType": 3},
            {"rolloverSizeBytes": -1},
            {"readerGroupId": "zzz"},
        )
        for wrong in wrongs:
            code = await code_of(call("createReaderGroup", group_config("x", **wrong)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT, wrong
        missing = group_config("x", retentionType=1, startingStreamCuts=[other])
        assert await code_of(call("createReaderGroup", missing)) is grpc.StatusCode.NOT_FOUND
        assert await streams_in(call) == {"meters", "_MARKmeters", "_RG" + "a" * 250}


@pytest.mark.parametrize("given", ["", str(UUID(int=0))])
async def test_a_group_without_an_id_gets_one(given: str, tmp_path: Path) -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        created = await call("createReaderGroup", group_config(readerGroupId=given))
        assert UUID(created.config.readerGroupId).version == 4


async def test_an_update_names_the_generation_it_changes() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        assert (await call("updateReaderGroup", group_config())).status == UPDATED.RG_NOT_FOUND
        await call("createReaderGroup", group_config())
        for generation in range(3):
            changed = group_config(generation=generation, groupRefreshTimeMillis=generation + 10)
            reply = await call("updateReaderGroup", changed)
            assert (reply.status, reply.generation) == (UPDATED.SUCCESS, generation + 1)
            assert (await call("updateReaderGroup", changed)).status == UPDATED.INVALID_CONFIG
        read = (await call("getReaderGroupConfig", info())).config
        assert (read.generation, read.groupRefreshTimeMillis, read.readerGroupId) == (3, 12, ID)
        other_id = group_config(generation=3, readerGroupId=str(UUID(int=7)))
        assert (await call("updateReaderGroup", other_id)).status == UPDATED.INVALID_CONFIG
        wrong = group_config(generation=3, startingStreamCuts=[])
        assert await code_of(call("updateReaderGroup", wrong)) is grpc.StatusCode.INVALID_ARGUMENT
        assert (await call("getReaderGroupConfig", info())).config == read


async def test_only_one_of_many_updates_at_once_succeeds() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        created = await asyncio.gather(
            *(call("createReaderGroup", group_config(readerGroupId=str(UUID(int=i + 1)))) for i in range(8))
        )
        ids = {reply.config.readerGroupId for reply in created}
        assert len(ids) == 1
        assert all(reply.status == CREATED.SUCCESS for reply in created)
        (group_id,) = ids
        changed = group_config(readerGroupId=group_id)
        replies = await asyncio.gather(*(call("updateReaderGroup", changed) for _ in range(8)))
        assert sorted(reply.status for reply in replies) == [UPDATED.SUCCESS] + [UPDATED.INVALID_CONFIG] * 7


async def test_delete_removes_the_stream_and_numbers_continue() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        await call("createReaderGroup", group_config())
        assert (await call("deleteReaderGroup", info(group_id=str(UUID(int=3))))).status == DELETED.RG_NOT_FOUND
        assert (await call("deleteReaderGroup", info())).status == DELETED.SUCCESS
        assert (await call("deleteReaderGroup", info())).status == DELETED.RG_NOT_FOUND
        assert (await call("getReaderGroupConfig", info())).status == FOUND.RG_NOT_FOUND
        assert await streams_in(call) == {"meters", "_MARKmeters"}
        assert await code_of(call("getCurrentSegments", STATE)) is grpc.StatusCode.NOT_FOUND
        await call("createReaderGroup", group_config(readerGroupId=str(UUID(int=4))))
        (segment,) = (await call("getCurrentSegments", STATE)).segmentRanges
        assert segment.segmentId.segmentId == 1


async def test_group_outlives_its_stream_in_a_forced_scope_deletion(tmp_path: Path) -> None:
    """The Java client seals and deletes every stream it lists, including `_RG` ones, before it deletes the groups."""

    async with served() as (call, _store, _controller):
        await prepare(call)
        await call("createReaderGroup", group_config())
        for name in sorted(await streams_in(call)):
            stream = pb.StreamInfo(scope="home", stream=name)
            await call("sealStream", stream)
            await call("deleteStream", stream)
        assert not await streams_in(call)
        scope = pb.ScopeInfo(scope="home")
        assert (await call("deleteScope", scope)).status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY
        read = await call("getReaderGroupConfig", info())
        assert (await call("deleteReaderGroup", info(group_id=read.config.readerGroupId))).status == DELETED.SUCCESS
        assert (await call("deleteScope", scope)).status == pb.DeleteScopeStatus.SUCCESS


async def test_a_scope_is_deleted_with_its_groups() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        for name in ("a", "b", "c"):
            await call("createReaderGroup", group_config(name, retentionType=2))
        scope = pb.ScopeInfo(scope="home")
        assert (await call("deleteScope", scope)).status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY
        assert (await call("deleteScopeRecursive", scope)).status == pb.DeleteScopeStatus.SUCCESS
        await prepare(call)
        assert (await call("getReaderGroupConfig", info("a"))).status == FOUND.RG_NOT_FOUND
        assert not (await call("listSubscribers", METERS)).subscribers


async def test_client_tables_are_deleted_with_their_group_and_scope(tmp_path: Path) -> None:
    """The tables of nadi's clients for group states, bookmarks and schemas are deleted; a user's own table stays."""
    names = ("_RGa", "_RGb", "_bookmarks", "_schemas", "notes")

    async with served() as (call, store, _controller):

        async def there() -> set[str]:
            found = set()
            for name in names:
                asked = wire.GetTableSegmentInfo(1, f"home/{name}_kvtable/0.#epoch.0", "")
                if isinstance(await store.exchange(asked), wire.TableSegmentInfo):
                    found.add(name)
            return found

        await prepare(call)
        for group in "ab":
            await call("createReaderGroup", group_config(group))
        for name in names:
            made = await store.exchange(wire.CreateTableSegment(1, f"home/{name}_kvtable/0.#epoch.0", ""))
            assert isinstance(made, wire.SegmentCreated)
        assert (await call("deleteReaderGroup", info("a"))).status == DELETED.SUCCESS
        assert await there() == {"_RGb", "_bookmarks", "_schemas", "notes"}
        await call("deleteScopeRecursive", pb.ScopeInfo(scope="home"))
        assert await there() == {"notes"}


# --- subscribers of a stream, and the cuts they may publish -----------------------------------------


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


async def test_groups_subscribe_while_their_retention_type_asks_for_it() -> None:
    async with served() as (call, _store, _controller):
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


async def test_published_cut_never_goes_back() -> None:
    async with served() as (call, _store, controller):
        await prepare(call)
        stream = StreamName("home", "meters")
        await call("createReaderGroup", group_config(retentionType=1))

        async def stored() -> dict[int, int]:
            found = await controller.metadata.subscribers(stream).get("home/readers", fresh=True)
            assert found is not None
            return found.value.cut

        assert await publish(call, {0: 10, 1: 5}) == STATUS.SUCCESS
        assert await publish(call, {0: 10, 1: 5}) == STATUS.SUCCESS
        assert await publish(call, {0: 10, 1: 4}) == STATUS.STREAM_CUT_NOT_VALID
        assert await publish(call, {0: 10}) == STATUS.STREAM_CUT_NOT_VALID
        assert await publish(call, {0: 10, 7: 5}) == STATUS.STREAM_CUT_NOT_VALID
        assert await stored() == {0: 10, 1: 5}
        work = await controller.scale(stream, [1], [(0.5, 0.7), (0.7, 1.0)])
        await until(lambda: controller.is_scaled(stream, work.change.epoch - 1), 10_000_000)
        new = {segment_id(2, 1): 0, segment_id(3, 1): 0}
        assert await publish(call, {0: 10, **new}) == STATUS.SUCCESS
        assert await publish(call, {0: 11, 1: 50}) == STATUS.STREAM_CUT_NOT_VALID
        assert await stored() == {0: 10, **new}
        assert await publish(call, {}) == STATUS.SUCCESS
        assert await stored() == {}


async def test_cut_of_an_outdated_generation_is_rejected() -> None:
    async with served() as (call, _store, _controller):
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
        assert await publish(call, {0: 6, 1: 8}, 1) == STATUS.STREAM_CUT_NOT_VALID  # the cut survived the update
        assert await publish(call, {0: 8, 1: 8}, 1) == STATUS.SUCCESS
        nowhere = published(cut)
        nowhere.streamCut.streamInfo.stream = "none"
        assert (await call("updateSubscriberStreamCut", nowhere)).status == STATUS.STREAM_NOT_FOUND


async def test_a_new_group_of_an_old_name_starts_without_its_cut() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        await call("createReaderGroup", group_config(retentionType=1))
        assert await publish(call, {0: 7, 1: 7}) == STATUS.SUCCESS
        await call("deleteReaderGroup", info())
        new = str(UUID(int=9))
        await call("createReaderGroup", group_config(retentionType=1, readerGroupId=new))
        assert await publish(call, {0: 1, 1: 1}) == STATUS.SUBSCRIBER_NOT_FOUND
        assert await publish(call, {0: 1, 1: 1}, group_id=new) == STATUS.SUCCESS


async def test_deleting_a_stream_deletes_its_subscribers() -> None:
    async with served() as (call, _store, _controller):
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


async def test_no_group_subscribes_to_a_groups_own_stream() -> None:
    async with served() as (call, _store, _controller):
        await prepare(call)
        await call("createReaderGroup", group_config())
        state = pb.StreamInfo(scope="home", stream="_RGreaders")
        update = group_config(retentionType=1, startingStreamCuts=cuts(state))
        assert await code_of(call("updateReaderGroup", update)) is grpc.StatusCode.INVALID_ARGUMENT
        assert (await call("updateReaderGroup", group_config(startingStreamCuts=cuts(state)))).generation == 1
