"""Key-value tables as used by the official Java client: over gRPC, before the whole server."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from nadi.controller.state.metadata import TableName
from nadi.controller.state.records import EpochSegment, TableConfig
from nadi.model.segments import tiles
from nadi.wire import commands as wire
from nadi.wire.fields import NO_VERSION, WireTableEntry
from nadi.wire.rpc import controller_pb2 as pb

from .fake_store import FakeStore
from .rpc import Call, code_of, served
from .support import running

CREATED = pb.CreateKeyValueTableStatus
DELETED = pb.DeleteKVTableStatus
FOUND = pb.KeyValueTableConfigResponse
SCOPE = pb.ScopeInfo(scope="home")


def table_config(name: str = "prices", **more: Any) -> Any:
    fields: dict[str, Any] = {"partitionCount": 3, "primaryKeyLength": 8, "secondaryKeyLength": 4}
    return pb.KeyValueTableConfig(scope="home", kvtName=name, **(fields | more))


def info(name: str = "prices") -> Any:
    return pb.KeyValueTableInfo(scope="home", kvtName=name)


async def numbers(call: Call, name: str = "prices") -> list[int]:
    reply = await call("getCurrentSegmentsKeyValueTable", info(name))
    return [segment.segmentId.segmentId for segment in reply.segmentRanges]


async def names(call: Call) -> list[str]:
    """List all tables of the scope as clients do: until a page is empty."""
    listed: list[str] = []
    token = pb.ContinuationToken()
    while True:
        page = await call("listKeyValueTablesInScope", pb.KVTablesInScopeRequest(scope=SCOPE, continuationToken=token))
        assert page.HasField("continuationToken")
        if not page.kvtables:
            return listed
        listed += [table.kvtName for table in page.kvtables]
        token = page.continuationToken


async def test_a_table_is_created_with_its_segments_and_echoed() -> None:
    async with served() as (call, store, _controller):
        await call("createScope", SCOPE)
        config = table_config(rolloverSizeBytes=1 << 20)
        assert (await call("createKeyValueTable", config)).status == CREATED.SUCCESS
        assert (await call("createKeyValueTable", config)).status == CREATED.TABLE_EXISTS
        read = await call("getKeyValueTableConfiguration", info())
        assert (read.status, read.config) == (FOUND.SUCCESS, config)
        ranges = (await call("getCurrentSegmentsKeyValueTable", info())).segmentRanges
        assert all(s.segmentId.streamInfo == pb.StreamInfo(scope="home", stream="prices") for s in ranges)
        assert tiles([EpochSegment(s.segmentId.segmentId, s.minKey, s.maxKey) for s in ranges])
        assert await numbers(call) == [0, 1, 2]
        assert not (await call("checkStreamExists", pb.StreamInfo(scope="home", stream="prices"))).exists
        for number in range(3):
            segment = f"home/prices_kvtable/{number}.#epoch.0"
            answer = await store.exchange(wire.GetTableSegmentInfo(1, segment, ""))
            assert isinstance(answer, wire.TableSegmentInfo)
            assert answer.key_length == 12


async def test_invalid_tables_are_rejected() -> None:
    async with served() as (call, _store, _controller):
        await call("createScope", SCOPE)
        for name in ("", "_a", "a_b", "a/b", "a" * 251):
            assert (await call("createKeyValueTable", table_config(name))).status == CREATED.INVALID_TABLE_NAME
            assert (await call("getKeyValueTableConfiguration", info(name))).status == FOUND.TABLE_NOT_FOUND
            assert (await call("deleteKeyValueTable", info(name))).status == DELETED.TABLE_NOT_FOUND
        nowhere = table_config()
        nowhere.scope = "none"
        assert (await call("createKeyValueTable", nowhere)).status == CREATED.SCOPE_NOT_FOUND
        wrongs: tuple[dict[str, Any], ...] = (
            {"partitionCount": 0},
            {"partitionCount": 1 << 30},
            {"primaryKeyLength": 0},
            {"secondaryKeyLength": -1},
            {"primaryKeyLength": 200, "secondaryKeyLength": 57},
            {"rolloverSizeBytes": -1},
        )
        for wrong in wrongs:
            code = await code_of(call("createKeyValueTable", table_config(**wrong)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT, wrong
        assert await names(call) == []
        missing = pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope="none"))
        page = await call("listKeyValueTablesInScope", missing)
        assert page.status == pb.KVTablesInScopeResponse.SCOPE_NOT_FOUND
        assert await code_of(call("getCurrentSegmentsKeyValueTable", info())) is grpc.StatusCode.NOT_FOUND
        odd = pb.KVTablesInScopeRequest(scope=SCOPE, continuationToken=pb.ContinuationToken(token="not mine"))
        assert await code_of(call("listKeyValueTablesInScope", odd)) is grpc.StatusCode.INVALID_ARGUMENT


async def test_delete_removes_entries_and_numbers_continue() -> None:
    async with served() as (call, store, _controller):
        await call("createScope", SCOPE)
        await call("createKeyValueTable", table_config())
        segment = "home/prices_kvtable/0.#epoch.0"
        entry = WireTableEntry(b"k" * 12, NO_VERSION, b"value")
        stored = await store.exchange(wire.UpdateTableEntries(1, segment, "", (entry,)))
        assert isinstance(stored, wire.TableEntriesUpdated)
        assert (await call("deleteKeyValueTable", info())).status == DELETED.SUCCESS
        assert (await call("deleteKeyValueTable", info())).status == DELETED.TABLE_NOT_FOUND
        gone = await store.exchange(wire.GetTableSegmentInfo(1, segment, ""))
        assert isinstance(gone, wire.NoSuchSegment)
        assert (await call("createKeyValueTable", table_config())).status == CREATED.SUCCESS
        assert await numbers(call) == [3, 4, 5]


async def test_tables_are_listed_page_by_page() -> None:
    async with served() as (call, _store, _controller):
        await call("createScope", SCOPE)
        assert await names(call) == []
        expected = [f"t{i}" for i in range(30)]  # the store returns at most seven at a time
        await asyncio.gather(*(call("createKeyValueTable", table_config(name)) for name in expected))
        listed = await names(call)
        assert len(listed) == len(set(listed))
        assert sorted(listed) == sorted(expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
async def test_recreated_table_reuses_no_number(partitions: list[int]) -> None:
    async with running(FakeStore()) as controller:
        name = TableName("home", "prices")
        await controller.create_scope(name.scope)
        used: set[int] = set()
        for count in partitions:
            await controller.create_table(name, TableConfig(count, 4, 0))
            segments = (await controller.table(name)).segments
            assert tiles(segments)
            mine = {segment.id for segment in segments}
            assert len(mine) == count
            assert not mine & used
            used |= mine
            await controller.delete_table(name)
