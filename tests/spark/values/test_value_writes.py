"""Write rows as events of a stored schema, and read them with the stream's serializers."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.types import ArrayType, CalendarIntervalType, DataType, MapType, NullType, StringType, StructType

from nadi.client.serializers import Arrow, Avro, Protobuf, Struct
from nadi.client.serializers.arrow_columns import plain
from nadi.errors import InvalidArgumentError, SerializationError
from nadi.spark.columns import arrow_columns, spark_schema
from nadi.spark.options.table import SparkFormat
from nadi.spark.source_requests import SourceRequest

from ..queries import Home

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def written(home: Home, stream: str, serializer: Any, kind: pa.DataType, *rows: Any, **given: Any) -> list[Any]:
    """Write the rows like Spark's tasks and driver; return the values that the serializer reads."""
    home.manager.create_stream("home", stream)
    home.manager.create_writer("home", stream, serializer=serializer).close()
    write(home, stream, kind, *rows, **given)
    now = home.manager.cuts("home", stream).tail()
    return [event.value for event in home.manager.read_events("home", stream, serializer=serializer, end=now)]


def write(home: Home, stream: str, kind: pa.DataType, *rows: Any, **given: Any) -> None:
    options = {"controller": home.uri, "scope": "home", "stream": stream} | given
    schema = spark_schema(pa.schema([("value", plain(kind)), ("routing_key", pa.string())]))
    writer = SourceRequest(options, SparkFormat.NADI).writer(schema, overwrite=False)
    assert isinstance(writer, DataSourceArrowWriter)
    columns = arrow_columns(schema)
    some = [{"value": row, "routing_key": "key"} for row in rows]
    writer.commit([writer.write(iter([pa.RecordBatch.from_pylist(some, schema=columns)]))])


class Reading(msgspec.Struct):
    meter: str
    wh: float
    time: datetime
    tags: dict[str, list[int]]
    room: str = "unknown"
    note: str | None = "none"
    more: Any = None


VALUE = pa.struct(
    [
        ("note", pa.string()),
        ("wh", pa.float64()),
        ("time", pa.timestamp("us", "UTC")),
        ("meter", pa.string()),
        ("tags", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ("room", pa.string()),
        ("more", pa.string()),
    ]
)
ROW = {"meter": "hall", "wh": 1.5, "time": NOON, "tags": [("a", [1])], "room": "A", "note": "n", "more": '{"x": [1]}'}


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_structs(home: Home, encoding: Any) -> None:
    nulls = ROW | {"room": None, "note": None, "more": None}
    found = written(home, encoding, Struct(Reading, encoding), VALUE, ROW, nulls, value_format=encoding)
    assert found == [
        Reading("hall", 1.5, NOON, {"a": [1]}, "A", "n", {"x": [1]}),
        Reading("hall", 1.5, NOON, {"a": [1]}, "unknown", None, None),
    ]


def test_avro(home: Home) -> None:
    fields: list[Any] = [
        {"name": "wh", "type": "double"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "room", "type": "string", "default": "?"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "either", "type": ["long", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
    ]
    names = ("wh", "time", "at", "room", "note", "either", "price")
    kinds = (
        *(pa.float64(), pa.timestamp("us", "UTC"), pa.string(), pa.string(), pa.string(), pa.string()),
        pa.decimal128(5, 2),
    )
    row = {
        "wh": 1.5,
        "time": NOON,
        "at": "02:03:04",
        "room": None,
        "note": None,
        "either": "7",
        "price": Decimal("1.25"),
    }
    serializer = Avro({"type": "record", "name": "R", "fields": fields})
    kind = pa.struct(list(zip(names, kinds, strict=True)))
    (found,) = written(home, "avro", serializer, kind, row, value_format="avro")
    assert found.pop("at").isoformat() == "02:03:04"
    assert found == {name: value for name, value in row.items() if name != "at"} | {"room": "?", "either": 7}


def test_protobuf(home: Home) -> None:
    option = pa.struct([("name", pa.string())])
    kind = pa.struct(
        [("name", pa.string()), ("syntax", pa.string()), ("options", pa.list_(pa.field("element", option)))]
    )
    rows = [{"name": "x", "syntax": "SYNTAX_PROTO3", "options": [{"name": "a"}, {"name": "b"}]}, {"name": "y"}]
    found = written(home, "protobuf", Protobuf(type_pb2.Enum), kind, *rows, value_format="protobuf")
    assert found == [
        type_pb2.Enum(name="x", syntax=type_pb2.SYNTAX_PROTO3, options=[type_pb2.Option(name=one) for one in "ab"]),
        type_pb2.Enum(name="y"),
    ]
    moment = timestamp_pb2.Timestamp(seconds=int(NOON.timestamp()), nanos=5000)
    known: list[tuple[Any, pa.DataType, Any]] = [
        (moment, pa.timestamp("us", "UTC"), NOON + timedelta(microseconds=5)),
        (wrappers_pb2.UInt64Value(value=2**64 - 1), pa.uint64(), Decimal(2**64 - 1)),
        (struct_pb2.Value(bool_value=True), pa.string(), "true"),
    ]
    for number, (message, kind, value) in enumerate(known):
        serializer = Protobuf(type(message))
        assert written(home, f"known-{number}", serializer, kind, value, value_format="protobuf") == [message]


def test_arrow(home: Home) -> None:
    schema = pa.schema([("count", pa.uint32()), ("at", pa.timestamp("ms", "UTC")), ("note", pa.large_string())])
    kind = pa.struct([("at", pa.timestamp("us", "UTC")), ("count", pa.int64())])
    rows: list[dict[str, Any]] = [{"at": NOON, "count": 1}, {"at": None, "count": 2**32 - 1}]
    found = written(home, "arrow", Arrow(schema), kind, *rows, value_format="arrow")
    assert [batch.to_pylist() for batch in found] == [[row | {"note": None}] for row in rows]
    with pytest.raises(SerializationError, match="4294967296"):
        write(home, "arrow", kind, {"at": None, "count": 2**32}, value_format="arrow")


def test_named_version_is_written(home: Home) -> None:
    fields = [{"name": "wh", "type": "long"}]
    old = Avro({"type": "record", "name": "R", "fields": fields})
    new = Avro({"type": "record", "name": "R", "fields": [*fields, {"name": "x", "type": "int", "default": 1}]})
    kind = pa.struct([("wh", pa.int64())])
    assert written(home, "versions", old, kind, {"wh": 1}, value_format="avro") == [{"wh": 1}]
    home.manager.create_writer("home", "versions", serializer=new).close()
    write(home, "versions", kind, {"wh": 2}, value_format="avro")
    write(home, "versions", kind, {"wh": 3}, value_format="avro", value_version="1")
    assert [event.data[5] for event in home.events("versions")] == [1, 2, 1]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (pa.struct([("meter", pa.string()), ("wh", pa.int64())]), r"value\.wh is int64.*double"),
        (pa.struct([("wh", pa.float64()), ("colour", pa.int64())]), r"value\.colour"),
        (pa.struct([("meter", pa.string())]), r"value\.wh"),
        (pa.string(), r"string.*struct"),
    ],
)
def test_invalid_columns_are_rejected(home: Home, kind: pa.DataType, why: str) -> None:
    if "wrong" not in home.manager.list_streams("home"):
        home.manager.create_stream("home", "wrong")
        home.manager.create_writer("home", "wrong", serializer=Struct(Reading)).close()
    with pytest.raises(InvalidArgumentError, match=why):
        write(home, "wrong", kind, value_format="json")


@pytest.mark.parametrize(
    "part",
    [MapType(NullType(), NullType(), False), ArrayType(MapType(NullType(), StringType())), CalendarIntervalType()],
)
def test_columns_of_unsupported_types_are_rejected(home: Home, part: DataType) -> None:
    if "parts" not in home.manager.list_streams("home"):
        home.manager.create_stream("home", "parts")
        home.manager.create_writer("home", "parts", serializer=Struct(Reading)).close()
    schema = StructType().add("value", StructType().add("tags", part))
    options = {"controller": home.uri, "scope": "home", "stream": "parts", "value_format": "json"}
    with pytest.raises(InvalidArgumentError, match="'value' is struct<tags:"):
        SourceRequest(options, SparkFormat.NADI).writer(schema, overwrite=False)


def test_invalid_rows_are_rejected(home: Home) -> None:
    home.manager.create_stream("home", "rows")
    home.manager.create_writer("home", "rows", serializer=Struct(Reading)).close()
    with pytest.raises(SerializationError, match="'meter'"):
        write(home, "rows", VALUE, ROW, ROW | {"meter": None}, value_format="json")
    with pytest.raises(InvalidArgumentError, match="'value'"):
        write(home, "rows", VALUE, ROW, None, value_format="json")
    required = Protobuf(descriptor_pb2.UninterpretedOption.NamePart)
    kind = pa.struct([("name_part", pa.string()), ("is_extension", pa.bool_())])
    row = {"name_part": "x", "is_extension": None}
    with pytest.raises(SerializationError, match="'is_extension'"):
        written(home, "required", required, kind, row, value_format="protobuf")
    assert not home.events("rows"), "a task writes all of its rows or none"


class Checked(msgspec.Struct):
    wh: float
    id: UUID
    room: Literal["A", "B"]
    price: Decimal
    more: Checked | None = None
    tags: list[int] = []
    by: dict[str, float] = {}
    name: Annotated[str, msgspec.Meta(min_length=1)] | None = None


CHECKED = {
    "wh": 1.5,
    "id": f"{UUID(int=1)}",
    "room": "A",
    "price": "1.50",
    "tags": [1],
    "by": [("a", 1.0)],
    "name": "n",
}


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_row_unreadable_for_readers_is_rejected(home: Home, encoding: Any) -> None:
    serializer, stream = Struct(Checked, encoding), f"checked-{encoding}"
    fields = {"wh": pa.float64(), "tags": pa.list_(pa.int64()), "by": pa.map_(pa.string(), pa.float64())}
    kind = pa.struct([(name, fields.get(name, pa.string())) for name in CHECKED])
    found = written(home, stream, serializer, kind, CHECKED, CHECKED | {"name": None}, value_format=encoding)
    good = Checked(1.5, UUID(int=1), "A", Decimal("1.50"), None, [1], {"a": 1.0}, "n")
    assert found == [good, msgspec.structs.replace(good, name=None)]
    wrong: list[dict[str, Any]]
    wrong = [{"id": "x"}, {"room": "C"}, {"price": "?"}, {"tags": [1, None]}, {"by": [("a", None)]}, {"name": ""}]
    if encoding == "json":
        with pytest.raises(SerializationError, match="wh"):
            write(home, stream, kind, CHECKED, CHECKED | {"wh": math.nan}, value_format=encoding)
    for change in wrong:
        why = rf"\$\.{next(iter(change))}"
        with pytest.raises(SerializationError, match=why):
            write(home, stream, kind, CHECKED, CHECKED | change, value_format=encoding)
    assert len(home.events(stream)) == 2


@pytest.mark.filterwarnings("ignore:Unknown timestamp-nanos")  # Apache's package takes them for plain numbers
def test_avro_nanoseconds_and_invalid_uuid(home: Home) -> None:
    times = {"type": "long", "logicalType": "timestamp-nanos"}
    fields = [{"name": "at", "type": times}, {"name": "id", "type": {"type": "string", "logicalType": "uuid"}}]
    serializer = Avro({"type": "record", "name": "R", "fields": fields})
    kind = pa.struct([("at", pa.timestamp("us", "UTC")), ("id", pa.string())])
    row: dict[str, Any] = {"at": NOON, "id": f"{UUID(int=1)}"}
    found = written(home, "nanos", serializer, kind, row, value_format="avro")
    assert found == [{"at": int(NOON.timestamp()) * 10**9, "id": UUID(int=1)}]
    with pytest.raises(SerializationError, match="avro"):
        write(home, "nanos", kind, row | {"id": "x"}, value_format="avro")
