"""Definitions of stream tables, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest

import nadi
from nadi.client import StreamManager, aio
from nadi.client.aio import Table
from nadi.client.serializers import Json, Struct
from nadi.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidNameError,
    NotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamTableNotFoundError,
)
from nadi.model.named_records import StoredTable
from nadi.naming import STREAM_TABLES_TABLE

SCHEMA = "meter string, wh double, at timestamp"


class Reading(msgspec.Struct):
    meter: str
    wh: int
    at: datetime


@pytest.fixture(scope="module")
def manager(uri: str) -> Iterator[StreamManager]:
    """Scope tables, with stream typed, which has a stored schema, and plain, without one."""
    with StreamManager(uri) as manager:
        manager.create_scope("tables")
        manager.create_stream("tables", "typed")
        with manager.create_writer("tables", "typed", serializer=Struct(Reading)) as typed:
            typed.write_event(Reading("m1", 3, datetime(2026, 11, 14, tzinfo=UTC)), "m1")
        manager.create_stream("tables", "plain", 2)
        yield manager


def test_definition_is_found_by_name(manager: StreamManager) -> None:
    tables = manager.stream_tables("tables")
    made = tables.define("plain", value_schema=SCHEMA, key=["meter"], event_time="at", note="the cellar")
    assert (made.scope, made.name, made.stream, made.value_format) == ("tables", "plain", "plain", "json")
    assert (made.key, made.event_time, made.note) == (("meter",), "at", "the cellar")
    assert abs((datetime.now(UTC) - made.created_at).total_seconds()) < 60
    assert tables.get("plain") == made
    other = tables.define("by-hand", stream="plain", value_schema="wh long", value_format="msgpack")
    assert tables.list() == [other, made]
    assert tables.list(stream="plain") == [other, made]
    assert tables.list(stream="typed") == []
    with pytest.raises(AlreadyExistsError):
        tables.define("by-hand", stream="plain", value_schema="wh long")
    changed = tables.define("by-hand", stream="plain", value_schema="wh double", replace=True)
    assert tables.get("by-hand") == changed
    assert changed.value_schema == "wh double"
    assert tables.delete("by-hand")
    assert not tables.delete("by-hand")
    assert tables.delete("plain")
    assert tables.list() == []
    with pytest.raises(StreamTableNotFoundError, match="'by-hand'"):
        tables.get("by-hand")


def test_columns_follow_the_stream_schema(manager: StreamManager) -> None:
    made = manager.stream_tables("tables").define("typed", key=["meter"], event_time="at")
    assert (made.value_format, made.value_schema) == (None, None)
    table = nadi.stream_table(manager, "tables", "typed")
    assert table.schema.names == ["meter", "wh", "at"]
    assert pa.table(table.rows()).drop(["segment_id", "offset"]).to_pylist() == [
        {"meter": "m1", "wh": 3, "at": datetime(2026, 11, 14, tzinfo=UTC)}
    ]
    assert manager.stream_tables("tables").delete("typed")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"value_schema": "wh"}, "value_schema"),
        ({"value_schema": "wh double", "value_format": "yaml"}, "yaml"),
        ({"value_schema": "wh double", "value_mode": "perhaps"}, "PERHAPS"),
        ({"value_schema": "wh double", "value_format": "avro"}, "avro"),
        ({"value_format": "json"}, "tables/plain"),
        ({}, "tables/plain"),
        ({"value_schema": "wh double", "key": ["meter"]}, "'meter'.* wh"),
        ({"value_schema": "m string, wh double", "key": ["wh"]}, "'wh'.*double"),
        ({"value_schema": "m array<string>, wh double", "key": ["m"]}, "'m'.*list"),
        ({"value_schema": "m string, wh double", "key": ["m", "m"]}, "'m', 'm'"),
        ({"value_schema": "m string, wh double", "key": "m"}, "key"),
        ({"value_schema": "m string, wh long, M long", "key": ["m"]}, "'m' and 'M'"),
        ({"value_schema": "m string, s array<struct<wh: long, WH: long>>"}, "'wh' and 'WH'"),
        ({"value_schema": "m string, wh double", "event_time": "wh"}, "'wh'"),
        ({"value_schema": "m string, wh double", "event_time": "at"}, "'at'"),
        ({"value_schema": "m string, t date", "key": ["m"], "event_time": "t"}, "tables/plain"),
        ({"value_schema": "m string, _change_type string", "key": ["m"]}, "tables/plain"),
        ({"value_schema": "m string, v int, _change_type int", "key": ["m"]}, "_change_type"),
        ({"value_schema": "m string", "note": "x" * 5_000}, "4,096"),
        ({"stream": "typed"}, "plain.*typed"),
    ],
)
def test_invalid_definition_is_rejected(manager: StreamManager, given: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        manager.stream_tables("tables").define("plain", **given)  # type: ignore[arg-type]
    assert manager.stream_tables("tables").list() == []


def test_missing_stream_scope_or_table_is_rejected(manager: StreamManager) -> None:
    with pytest.raises(StreamNotFoundError):
        manager.stream_tables("tables").define("nothing", value_schema="wh long")
    with pytest.raises(InvalidNameError):
        manager.stream_tables("tables").define("a/b", stream="plain", value_schema="wh long")
    with pytest.raises(NotFoundError):
        manager.stream_tables("nowhere").define("plain", value_schema="wh long")
    with pytest.raises(ScopeNotFoundError):
        manager.stream_tables("nowhere").list()
    with pytest.raises(StreamTableNotFoundError):
        nadi.stream_table(manager, "nowhere", "plain")


def test_opening_table_with_incompatible_schema_fails(manager: StreamManager) -> None:
    manager.create_stream("tables", "changing")
    schemas = manager.schemas("tables", "changing")
    schemas.register(Struct(Reading))
    manager.stream_tables("tables").define("changing", key=["meter"])

    class Other(msgspec.Struct):
        wh: int

    schemas.register(Struct(Other))
    with pytest.raises(InvalidArgumentError, match="'meter'"):
        nadi.stream_table(manager, "tables", "changing")
    manager.stream_tables("tables").delete("changing")


def test_slices_and_malformed_events(manager: StreamManager) -> None:
    manager.create_stream("tables", "mixed", 2)
    tables = manager.stream_tables("tables")
    with manager.create_writer("tables", "mixed", serializer=Json(object)) as writer:
        for number in range(6):
            writer.write_event({"meter": f"m{number}", "offset": number}, f"m{number}")
        writer.flush()
        middle = manager.cuts("tables", "mixed").tail()
        writer.write_event({"meter": 7}, "m7")
    tables.define("mixed", value_schema="meter string, offset long")
    tables.define("strict", stream="mixed", value_schema="meter string, offset long", value_mode="dropmalformed")
    early = manager.slices("tables").create("early", manager.cuts("tables", "mixed").head(), middle)
    table = nadi.stream_table(manager, "tables", "mixed")
    whole = pa.table(table.rows())
    assert whole.schema.names == ["meter", "offset", "segment_id"], "its own offset, and no other"
    assert sorted(row["meter"] or "" for row in whole.to_pylist()) == ["", "m0", "m1", "m2", "m3", "m4", "m5"]
    assert pa.table(nadi.stream_table(manager, "tables", "strict").rows()).num_rows == 6
    for place in ({"slice": "early"}, {"slice": early}, {"end": middle}, {"end": middle, "start": "head"}):
        assert pa.table(table.rows(**place)).num_rows == 6
    assert pa.table(table.rows(start=middle)).num_rows == 1
    assert pa.table(table.rows(also=["append_time"])).schema.names == ["meter", "offset", "append_time"]
    other = manager.slices("tables").create(
        "other", manager.cuts("tables", "typed").head(), manager.cuts("tables", "typed").tail()
    )
    for given in (other, "other"):
        with pytest.raises(InvalidArgumentError, match=r"other.*tables/typed"):
            table.rows(slice=given)
    for name in ("mixed", "strict"):
        tables.delete(name)


def test_deleting_stream_deletes_only_its_definitions(manager: StreamManager) -> None:
    tables = manager.stream_tables("tables")
    for stream in ("goes", "stays"):
        manager.create_stream("tables", stream)
        tables.define(stream, value_schema="wh long")
    stored = manager.table("tables", STREAM_TABLES_TABLE)
    for number in range(150):  # more than a page
        stored.put(f"table/goes-{number}".encode(), msgspec.json.encode(StoredTable("goes", 0)))
    manager.seal_stream("tables", "goes")
    assert manager.delete_stream("tables", "goes")
    assert [table.name for table in tables.list()] == ["stays"]
    manager.create_stream("tables", "goes")
    with pytest.raises(StreamTableNotFoundError):
        tables.get("goes")
    tables.delete("stays")


async def test_define_during_stream_deletion_leaves_no_definition(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion has already looked for definitions when this one is stored."""
    async with aio.StreamManager(uri) as manager:
        await manager.create_scope("race")
        tables = manager.stream_tables("race")
        await manager.create_stream("race", "meters")
        await manager.seal_stream("race", "meters")
        put = Table.put

        async def put_late(table: Table, key: bytes, value: bytes, version: int) -> int:
            assert await manager.delete_stream("race", "meters")
            return await put(table, key, value, version)

        monkeypatch.setattr(Table, "put", put_late)
        with pytest.raises(StreamNotFoundError):
            await tables.define("meters", value_schema="wh long")
        assert await tables.list() == []


async def test_concurrent_define_and_delete_leave_no_definition(uri: str) -> None:
    async with aio.StreamManager(uri) as manager, aio.StreamManager(uri) as other:
        await manager.create_scope("races")
        tables = other.stream_tables("races")
        for number in range(12):
            await manager.create_stream("races", "meters")
            await manager.seal_stream("races", "meters")

            async def define() -> None:
                with suppress(StreamNotFoundError):
                    await tables.define("meters", value_schema="wh long")

            async def delete(number: int = number) -> None:
                await asyncio.sleep(number / 1_000)
                await manager.delete_stream("races", "meters")

            await asyncio.gather(define(), delete())
            assert await tables.list() == []


async def test_concurrent_defines_of_one_name_have_one_winner(uri: str) -> None:
    async with aio.StreamManager(uri) as manager:
        await manager.create_scope("many")
        await manager.create_stream("many", "meters")
        tables = manager.stream_tables("many")
        found = await asyncio.gather(
            *(tables.define("t", stream="meters", value_schema=f"c{n} long") for n in range(8)), return_exceptions=True
        )
        assert sum(isinstance(one, AlreadyExistsError) for one in found) == 7
        assert await tables.list() == [one for one in found if not isinstance(one, BaseException)]


async def test_deleting_scope_deletes_definitions_and_damaged_records(uri: str) -> None:
    async with aio.StreamManager(uri) as manager:
        await manager.create_scope("whole")
        await manager.create_stream("whole", "meters")
        await manager.stream_tables("whole").define("meters", value_schema="wh long")
        table = manager.table("whole", STREAM_TABLES_TABLE)
        await table.put(b"table/nonsense", b"{")
        await table.put(b"table/bytes\xff", msgspec.json.encode(StoredTable("meters", 0)))
        await manager.seal_stream("whole", "meters")
        assert await manager.delete_stream("whole", "meters")
        assert await table.get(b"table/meters") is None
        assert await table.get(b"table/bytes\xff") is None
        assert await table.get(b"table/nonsense") is not None
        assert await manager.delete_scope("whole")
        await manager.create_scope("whole")
        assert await manager.stream_tables("whole").list() == []


def test_key_may_contain_event_time(manager: StreamManager) -> None:
    tables = manager.stream_tables("tables")
    tables.define("plain", value_schema="m string, at timestamp, wh long", key=["m", "at"], event_time="at")
    assert pa.table(nadi.stream_table(manager, "tables", "plain").latest()).num_rows == 0
    tables.delete("plain")


async def test_concurrent_drops_of_one_definition(uri: str) -> None:
    async with aio.StreamManager(uri) as manager:
        await manager.create_scope("drops")
        await manager.create_stream("drops", "meters")
        tables = manager.stream_tables("drops")
        for _ in range(5):
            await tables.define("meters", value_schema="wh long")
            assert any(await asyncio.gather(*(tables.delete("meters") for _ in range(4))))
            assert await tables.list() == []


def test_key_column_with_dot_in_name(manager: StreamManager) -> None:
    manager.create_stream("tables", "ecs")
    schema = "`log.level` string, log struct<level: string>, `t.ns` timestamp_ns"
    manager.stream_tables("tables").define("ecs", value_schema=schema, key=["log.level"], event_time="t.ns")
    with manager.create_writer("tables", "ecs") as writer:
        for number, nested in enumerate(("first", "last")):
            event = {"log.level": "error", "log": {"level": nested}, "t.ns": f"{number}999"}
            writer.write_event(msgspec.json.encode(event), "error")
    (row,) = pa.table(nadi.stream_table(manager, "tables", "ecs").latest()).to_pylist()
    assert (row["log.level"], row["log"]) == ("error", {"level": "last"})
    assert row["t.ns"] == datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)
    with pytest.raises(InvalidArgumentError, match=r"'log\.name'.*log\.level, log, t\.ns"):
        manager.stream_tables("tables").define("ecs", value_schema=schema, key=["log.name"], replace=True)
