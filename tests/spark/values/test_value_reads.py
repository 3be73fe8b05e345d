"""Read values from a real server: planned with the stored schema, parsed in tasks."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from google.protobuf import any_pb2, timestamp_pb2
from pyspark.sql.types import StructType

from nadi.client.serializers import Arrow, Avro, Compatibility, Json, Msgpack, Protobuf, Struct
from nadi.client.values import parser
from nadi.errors import InvalidArgumentError, SerializationError, StreamNotFoundError
from nadi.spark.reading.streaming import StreamReader
from pyspark_nadi import DefaultSource

from ..queries import Home

# --- what Spark does, without it ----------------------------------------------------------------------


def source(home: Home, stream: str, **given: Any) -> DefaultSource:
    where = {"controller": home.uri, "scope": "home", **({"stream": stream} if stream else {})}
    return DefaultSource(where | {name: str(value) for name, value in given.items()})


def schema_of(planned: DefaultSource) -> StructType:
    found = planned.schema()
    assert isinstance(found, StructType)
    return found


def read(planned: DefaultSource, schema: StructType | None = None) -> list[dict[str, Any]]:
    schema = schema or schema_of(planned)
    reader = planned.reader(schema)
    found = []
    for one in reader.partitions():
        for rows in reader.read(one):
            assert isinstance(rows, pa.RecordBatch)
            assert rows.schema.names == schema.fieldNames()
            found += rows.to_pylist()
    return found


def values(home: Home, stream: str, **given: Any) -> list[Any]:
    return [row["value"] for row in read(source(home, stream, columns="value", **given))]


def write(home: Home, stream: str, serializer: Any, *some: Any) -> None:
    if stream not in home.manager.list_streams("home"):
        home.manager.create_stream("home", stream)
    with home.manager.create_writer("home", stream, serializer=serializer) as writer:
        for value in some:
            writer.write_event(value, "key")


class Reading(msgspec.Struct):
    meter: str
    wh: int


class Reading2(msgspec.Struct):
    meter: str
    wh: float
    room: str = "unknown"


# --- formats ------------------------------------------------------------------------------------------


def test_documents_without_a_schema(home: Home) -> None:
    write(home, "json", Json(), {"meter": "hall", "wh": 1, "more": 2}, {"wh": None})
    write(home, "msgpack", Msgpack(), {"meter": "hall", "wh": 1, "more": 2}, {"wh": None})
    for stream in ("json", "msgpack"):
        given = {"value_format": stream, "value_schema": "wh int, meter string"}
        planned = source(home, stream, **given)
        assert schema_of(planned).simpleString() == (
            "struct<value:struct<wh:int,meter:string>,scope:string,stream:string,segment_id:bigint,offset:bigint>"
        )
        first, second = read(planned)
        assert first == {
            "value": {"wh": 1, "meter": "hall"}, "scope": "home", "stream": stream, "segment_id": 0, "offset": 0,
        }  # fmt: skip
        assert second["value"] == {"wh": None, "meter": None}
        assert values(home, stream, **given) == [first["value"], second["value"]]
    both = read(source(home, "json", value_format="json", value_schema="wh int", columns="value,event"))
    assert both[1] == {"value": {"wh": None}, "event": b'{"wh":null}'}


def test_structs_of_several_versions(home: Home) -> None:
    write(home, "structs", Struct(Reading), Reading("hall", 1), Reading("attic", 2))
    assert values(home, "structs", value_format="json") == [{"meter": "hall", "wh": 1}, {"meter": "attic", "wh": 2}]
    write(home, "structs", Struct(Reading2, "msgpack"), Reading2("hall", 2.5, "A"))
    write(home, "structs", Struct(Reading), Reading("hall", 3))
    newest = [
        {"meter": "hall", "wh": 1.0, "room": "unknown"},
        {"meter": "attic", "wh": 2.0, "room": "unknown"},
        {"meter": "hall", "wh": 2.5, "room": "A"},
        {"meter": "hall", "wh": 3.0, "room": "unknown"},
    ]
    assert values(home, "structs", value_format="msgpack") == newest
    assert values(home, "structs", value_format="json", value_version=1) == [
        {"meter": "hall", "wh": 1}, {"meter": "attic", "wh": 2}, None, {"meter": "hall", "wh": 3},
    ]  # fmt: skip
    assert values(home, "structs", value_format="json", value_schema="room string, wh double") == [
        {"room": row["room"] if row["room"] == "A" else None, "wh": row["wh"]} for row in newest
    ]
    with pytest.raises(InvalidArgumentError, match=r"version 2 .*home/structs.*msgpack"):
        schema_of(source(home, "structs", value_format="json"))
    with pytest.raises(InvalidArgumentError, match=r"'value_version' is 7.* version 2"):
        schema_of(source(home, "structs", value_format="json", value_version=7))


def test_avro_of_several_versions(home: Home) -> None:
    fields = [{"name": "wh", "type": "long"}]
    old = Avro({"type": "record", "name": "R", "fields": fields})
    new = Avro({"type": "record", "name": "R", "fields": [*fields, {"name": "room", "type": "string", "default": "?"}]})
    write(home, "avro", old, {"wh": 1})
    planned = source(home, "avro", value_format="avro", columns="value")
    before = schema_of(planned)
    write(home, "avro", new, {"wh": 2, "room": "hall"})
    write(home, "avro", old, {"wh": 3})
    assert values(home, "avro", value_format="avro") == [
        {"wh": 1, "room": "?"}, {"wh": 2, "room": "hall"}, {"wh": 3, "room": "?"},
    ]  # fmt: skip
    narrow = [{"wh": 1}, {"wh": 2}, {"wh": 3}]
    assert values(home, "avro", value_format="avro", value_version=1) == narrow
    assert [row["value"] for row in read(planned, before)] == narrow, "a plan keeps the version that it was made with"
    with pytest.raises(InvalidArgumentError, match="struct<value:"):
        read(planned, StructType().add("value", StructType().add("x", "long")))


def test_avro_event_of_an_older_version_has_the_defaults_of_the_newest(home: Home) -> None:
    fields = [{"name": "wh", "type": "long"}]
    cents = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    sub = {"type": "record", "name": "S", "fields": [{"name": "x", "type": "int", "default": 3}]}
    more: list[dict[str, Any]] = [
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "price", "type": cents, "default": "\u0004\u00d2"},
        {"name": "sub", "type": sub, "default": {}},
    ]
    new = Avro({"type": "record", "name": "R", "fields": [*fields, *more]})
    write(home, "defaults", Avro({"type": "record", "name": "R", "fields": fields}), {"wh": 1})
    write(home, "defaults", new, {"wh": 2})
    filled = {"raw": b"\xff", "price": Decimal("12.34"), "sub": {"x": 3}}
    assert values(home, "defaults", value_format="avro") == [{"wh": 1} | filled, {"wh": 2} | filled]


def test_protobuf(home: Home) -> None:
    message = any_pb2.Any(type_url="some")
    message.value = b"more"
    write(home, "protobuf", Protobuf(any_pb2.Any), message, any_pb2.Any())
    assert values(home, "protobuf", value_format="protobuf") == [
        {"type_url": "some", "value": b"more"}, {"type_url": "", "value": b""},
    ]  # fmt: skip
    write(home, "times", Protobuf(timestamp_pb2.Timestamp), timestamp_pb2.Timestamp(seconds=1))
    assert schema_of(source(home, "times", value_format="protobuf"))["value"].dataType.simpleString() == "timestamp"


def test_arrow_events_have_any_number_of_rows(home: Home) -> None:
    old, new = pa.schema([("wh", pa.int32())]), pa.schema([("wh", pa.int64()), ("room", pa.string())])

    def batch(schema: pa.Schema, *rows: dict[str, Any]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(list(rows), schema=schema)

    write(home, "arrow", Arrow(old), batch(old, {"wh": 1}, {"wh": 2}), batch(old))
    write(home, "arrow", Arrow(new), batch(new, {"wh": 3, "room": "hall"}))
    write(home, "arrow", Arrow(old), batch(old, {"wh": 4}))
    found = read(source(home, "arrow", value_format="arrow", columns="offset, value, event, segment_id"))
    assert [row["value"] for row in found] == [
        {"wh": 1, "room": None}, {"wh": 2, "room": None}, {"wh": 3, "room": "hall"}, {"wh": 4, "room": None},
    ]  # fmt: skip
    places = {event.offset: event.data for event in home.events("arrow")}
    assert [row["event"] for row in found] == [places[row["offset"]] for row in found]
    offsets = list(places)
    assert [row["offset"] for row in found] == [offsets[0], offsets[0], offsets[2], offsets[3]]


# --- events that can't be read ------------------------------------------------------------------------


def test_value_modes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(parser, "_warn", lambda *args: logged.append(" ".join(args)))
    write(home, "mixed", Struct(Reading), Reading("hall", 1))
    with home.manager.create_writer("home", "mixed") as writer:
        writer.write_batch(
            [b'{"meter": "hall", "wh": 2}', b"\x9d\x01\x00\x00\x00\x07{}", b"\x9d\x01\x00\x00\x00\x01{}"], "key"
        )
    write(home, "mixed", Struct(Reading), Reading("attic", 3))
    good = [{"meter": "hall", "wh": 1}, {"meter": "attic", "wh": 3}]
    assert values(home, "mixed", value_format="json") == [good[0], None, None, None, good[1]]
    assert values(home, "mixed", value_format="json", value_mode="dropMalformed") == good
    assert len(logged) == 2
    for line in logged:
        assert line.startswith("an event of stream home/mixed, in segment 0 at offset ")
        assert " json " in line
    kept = read(source(home, "mixed", value_format="json", value_mode="DROPMALFORMED", columns="value,offset,event"))
    places = {event.offset: event.data for event in home.events("mixed")}
    assert [row["event"] for row in kept] == [places[row["offset"]] for row in kept]
    offsets = list(places)
    assert [row["offset"] for row in kept] == [offsets[0], offsets[4]]
    for start, why in ((1, "schema"), (2, "7"), (3, "required field `meter`")):
        cut = home.manager.cuts("home", "mixed").head()
        begin = type(cut)("home", "mixed", {0: offsets[start]})
        with pytest.raises(SerializationError, match=f"segment 0 at offset {offsets[start]}, .*{why}"):
            values(home, "mixed", value_format="json", value_mode="FAILFAST", start_stream_cut=begin.as_text())


def test_event_of_incompatible_schema_is_invalid(home: Home) -> None:
    class Other(msgspec.Struct):
        meter: int

    write(home, "broken", Struct(Reading), Reading("hall", 1))
    home.manager.schemas("home", "broken").set_compatibility(Compatibility.NONE)
    write(home, "broken", Struct(Other), Other(2))
    assert values(home, "broken", value_format="json") == [None, {"meter": 2}]
    with pytest.raises(SerializationError, match="meter"):
        values(home, "broken", value_format="json", value_mode="FAILFAST")
    avro = Avro({"type": "record", "name": "R", "fields": []})
    home.manager.schemas("home", "broken").set_compatibility(Compatibility.NONE)
    write(home, "broken", avro, {})
    assert values(home, "broken", value_format="json", value_version=2) == [None, {"meter": 2}, None]


# --- several streams, queries -------------------------------------------------------------------------


def test_several_streams_are_read_with_the_schema_that_reads_all(home: Home) -> None:
    write(home, "several-a", Struct(Reading), Reading("a", 1))
    write(home, "several-b", Struct(Reading2), Reading2("b", 2.5))
    home.manager.create_stream("home", "several-c")
    found = read(source(home, "", stream_pattern="several-.", value_format="json"))
    assert [(row["stream"], row["value"]["wh"]) for row in found] == [("several-a", 1.0), ("several-b", 2.5)]
    write(home, "several-d", Struct(dict[str, int]), {"meter": 4})
    with pytest.raises(InvalidArgumentError):
        schema_of(source(home, "", stream_pattern="several-.", value_format="json"))


def test_query_keeps_its_planned_schema(home: Home) -> None:
    write(home, "query", Struct(Reading), Reading("hall", 1))
    planned = source(home, "query", value_format="json")
    schema = schema_of(planned)
    reader = planned.streamReader(schema)
    assert isinstance(reader, StreamReader)
    offset = reader.initialOffset()
    found: list[Any] = []
    for version, value in ((Reading, Reading("a", 1)), (Reading2, Reading2("b", 2.0, "x")), (Reading, Reading("c", 3))):
        write(home, "query", Struct(version), value)
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        for one in reader.partitions(offset, end):
            found += [row["value"] for rows in reader.read(one) for row in rows.to_pylist()]
        offset = end
    assert [row and (row["meter"], row["wh"]) for row in found] == [("hall", 1), ("a", 1), None, ("c", 3)]
    newer = source(home, "query", value_format="json")
    assert "wh:double" in schema_of(newer).simpleString()
    resumed = source(home, "query", value_format="json").streamReader(schema)
    assert isinstance(resumed, StreamReader)


# --- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"value_format": "xml"}, "'xml'"),
        ({"value_format": "json"}, "home/plain.*'value_schema'"),
        ({"value_format": "avro"}, "home/plain"),
        ({"value_format": "json", "value_schema": "a thing"}, "'value_schema' is 'a thing'"),
    ],
)
def test_options(home: Home, given: dict[str, str], why: str) -> None:
    if "plain" not in home.manager.list_streams("home"):
        home.manager.create_stream("home", "plain")
    with pytest.raises(InvalidArgumentError, match=why):
        source(home, "plain", **given).schema()


def test_pattern_without_streams_is_rejected(home: Home) -> None:
    with pytest.raises(InvalidArgumentError, match="scope home"):
        source(home, "", stream_pattern="none-.*", value_format="json").schema()


def test_missing_stream_raises_stream_not_found(home: Home) -> None:
    with pytest.raises(StreamNotFoundError, match="home/nowhere"):
        source(home, "nowhere", value_format="avro").schema()


def test_missing_package_is_reported(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    for name in ("nadi.client.serializers.avro_columns", "nadi.client.serializers.avro"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InvalidArgumentError, match=r"'avro'.*nadi\[avro\]"):
        source(home, "plain", value_format="avro").schema()


@pytest.mark.parametrize("value_format", ["json", "protobuf", "avro", "arrow"])
def test_only_the_needed_format_is_imported(value_format: str) -> None:
    own = {"avro": {"fastavro", "avro"}, "protobuf": {"google.protobuf.json_format"}}.get(value_format, set())
    others = {"fastavro", "avro", "google.protobuf.json_format", "pandas"} - own
    code = (
        "import sys, nadi.spark.source_requests, nadi.client.values.parser\n"
        "formats = ('documents', 'avro_columns', 'protobuf_columns', 'arrow')\n"
        "assert not any(f'nadi.client.serializers.{name}' in sys.modules for name in formats)\n"
        f"nadi.client.values.target.format_of({value_format!r})\n"
        f"print([name for name in {sorted(others)} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
