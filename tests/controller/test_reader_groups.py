"""Reader groups as the official Java client asks for them: over gRPC, before the whole server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pytest

from nadi.standalone.server import Server
from nadi.wire import commands as wire
from nadi.wire.rpc import controller_pb2 as pb

from .fake_store import FakeStore
from .rpc import Call, code_of, over_grpc, over_server

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


def test_a_group_is_created_with_its_stream_and_echoed(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
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
        found = await server.store.exchange(wire.GetStreamSegmentInfo(1, "home/_RGreaders/0.#epoch.0", ""))
        assert isinstance(found, wire.StreamSegmentInfo)
        assert found.exists
        assert "_MARK_RGreaders" not in await streams_in(call)
        read = await call("getReaderGroupConfig", pb.ReaderGroupInfo(scope="home", readerGroup="readers"))
        assert (read.status, read.config) == (FOUND.SUCCESS, expected)
        another = await call("createReaderGroup", group_config(readerGroupId=str(UUID(int=5))))
        assert (another.status, another.config) == (CREATED.SUCCESS, expected)

    over_server(tmp_path, test)


def test_its_stream_rolls_over_at_four_mebibytes_unless_told_otherwise() -> None:
    async def test(call: Call, store: FakeStore) -> None:
        await prepare(call)
        for name, given, expected in (("a", 0, 4 << 20), ("b", 1 << 20, 1 << 20)):
            await call("createReaderGroup", group_config(name, rolloverSizeBytes=given))
            stream = await call("getStreamConfiguration", pb.StreamInfo(scope="home", stream=f"_RG{name}"))
            assert (stream.rolloverSizeBytes, stream.scalingPolicy.minNumSegments) == (expected, 1)

    over_grpc(test)


def test_what_cannot_be_a_group(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
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

    over_server(tmp_path, test)


@pytest.mark.parametrize("given", ["", str(UUID(int=0))])
def test_a_group_without_an_id_gets_one(given: str, tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
        await prepare(call)
        created = await call("createReaderGroup", group_config(readerGroupId=given))
        assert UUID(created.config.readerGroupId).version == 4

    over_server(tmp_path, test)


def test_an_update_names_the_generation_it_changes(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
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

    over_server(tmp_path, test)


def test_only_one_of_many_updates_at_once_succeeds(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
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

    over_server(tmp_path, test)


def test_delete_takes_the_stream_along_and_numbers_go_on(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
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

    over_server(tmp_path, test)


def test_a_group_outlives_its_stream_as_a_forced_delete_of_the_scope_has_it(tmp_path: Path) -> None:
    """The Java client seals and deletes every stream it lists, `_RG` ones too, before it deletes the groups."""

    async def test(call: Call, server: Server) -> None:
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

    over_server(tmp_path, test)


def test_a_scope_is_deleted_with_its_groups(tmp_path: Path) -> None:
    async def test(call: Call, server: Server) -> None:
        await prepare(call)
        for name in ("a", "b", "c"):
            await call("createReaderGroup", group_config(name, retentionType=2))
        scope = pb.ScopeInfo(scope="home")
        assert (await call("deleteScope", scope)).status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY
        assert (await call("deleteScopeRecursive", scope)).status == pb.DeleteScopeStatus.SUCCESS
        await prepare(call)
        assert (await call("getReaderGroupConfig", info("a"))).status == FOUND.RG_NOT_FOUND
        assert not (await call("listSubscribers", METERS)).subscribers

    over_server(tmp_path, test)


def test_groups_outlive_the_server(tmp_path: Path) -> None:
    async def create(call: Call, server: Server) -> None:
        await prepare(call)
        await call("createReaderGroup", group_config(retentionType=1))

    async def look(call: Call, server: Server) -> None:
        assert (await call("getReaderGroupConfig", info())).config == group_config(retentionType=1)
        assert (await call("listSubscribers", METERS)).subscribers == ["home/readers"]

    over_server(tmp_path, create)
    over_server(tmp_path, look)


def test_what_clients_keep_goes_with_its_group_and_its_scope(tmp_path: Path) -> None:
    """The tables in which nadi's clients keep a group's state, bookmarks and schemas; a user's own table stays."""
    names = ("_RGa", "_RGb", "_bookmarks", "_schemas", "notes")

    async def test(call: Call, server: Server) -> None:
        async def there() -> set[str]:
            found = set()
            for name in names:
                asked = wire.GetTableSegmentInfo(1, f"home/{name}_kvtable/0.#epoch.0", "")
                if isinstance(await server.store.exchange(asked), wire.TableSegmentInfo):
                    found.add(name)
            return found

        await prepare(call)
        for group in "ab":
            await call("createReaderGroup", group_config(group))
        for name in names:
            made = await server.store.exchange(wire.CreateTableSegment(1, f"home/{name}_kvtable/0.#epoch.0", ""))
            assert isinstance(made, wire.SegmentCreated)
        assert (await call("deleteReaderGroup", info("a"))).status == DELETED.SUCCESS
        assert await there() == {"_RGb", "_bookmarks", "_schemas", "notes"}
        await call("deleteScopeRecursive", pb.ScopeInfo(scope="home"))
        assert await there() == {"notes"}

    over_server(tmp_path, test)


def test_a_store_that_is_away_is_told_as_unavailable() -> None:
    async def test(call: Call, store: FakeStore) -> None:
        await prepare(call)
        store.die_at(0)
        assert await code_of(call("createReaderGroup", group_config())) is grpc.StatusCode.UNAVAILABLE
        assert await code_of(call("getReaderGroupConfig", info())) is grpc.StatusCode.UNAVAILABLE

    over_grpc(test)
