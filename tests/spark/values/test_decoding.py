"""Decode events to columns with each format's module, without a server."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nadi.client.serializers import Arrow, Avro, Protobuf, Struct, arrow, documents
from nadi.client.serializers import avro_columns as avro
from nadi.client.serializers import protobuf_columns as protobuf
from nadi.client.serializers.arrow_columns import plain
from nadi.client.serializers.avro import AvroWalk, Schema
from nadi.client.serializers.columns import Decoded
from nadi.client.serializers.structs import Encoding
from nadi.client.serializers.types import is_json, of_ddl
from nadi.errors import SerializationError
from tests.client.serializers.test_avro import made, records

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def read(ddl: str, *events: bytes, encoding: Encoding = "json") -> Decoded:
    kind = of_ddl(ddl)
    found = documents.decoder(kind, b"", b'{"encoding": "%s", "schema": {}}' % encoding.encode())(events)
    assert found.values.type == plain(kind)
    found.values.validate(full=True)
    return found


def one(ddl: str, event: bytes, encoding: Encoding = "json") -> Any:
    found = read(ddl, event, encoding=encoding)
    assert not found.wrong, found.wrong
    return found.values.to_pylist()[0]


# --- JSON and msgpack ---------------------------------------------------------------------------------


def test_number_in_unit_column_is_an_instant_within_the_years() -> None:
    seconds = 1_790_000_000
    at = datetime.fromtimestamp(seconds, UTC)
    for unit, per_s in (("", 1), ("_s", 1), ("_ms", 10**3), ("_us", 10**6), ("_ns", 10**9)):
        ddl, number = f"at timestamp{unit}", seconds * per_s
        assert one(ddl, b'{"at": %d}' % number) == one(ddl, b'{"at": "2026-09-21T14:13:20Z"}') == {"at": at}
        texts = read(ddl, b'{"at": "%d"}' % number, b'{"at": "20260921"}')
        assert texts.values.is_valid().to_pylist() == ([True, True] if unit else [False, True])
        edge = 253_402_300_800 * per_s
        if edge < 1 << 63:
            assert one(ddl, b'{"at": %d}' % (edge - 1))["at"].year == 9999
        assert "at: " in read(ddl, b'{"at": %d}' % edge).wrong[0]
    assert one("at timestamp_ns", b'{"at": -1}') == {"at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)}
    for unit, finer, number in (
        ("", "ms", seconds * 1000),
        ("_ms", "ns", seconds * 10**9),
        ("", "us", seconds * 10**6),
    ):
        wrong = read(f"l array<struct<at timestamp{unit}>>", b'{"l": [{"at": %d}]}' % number).wrong[0]
        assert wrong.startswith("l: at: ")
        assert f"declare the column timestamp_{finer} if these are" in wrong


@pytest.mark.parametrize("number", [-62_135_596_801, 253_402_300_800])
def test_time_outside_years_1_to_9999_is_invalid(number: int) -> None:
    fields = [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]
    days = {"name": "day", "type": {"type": "int", "logicalType": "date"}}
    for definition, event in (
        ({"type": "record", "name": "R", "fields": fields}, {"at": number * 1000}),
        ({"type": "record", "name": "D", "fields": [days]}, {"day": number // 86_400}),
    ):
        written = json.dumps(definition).encode()
        plain_written = json.dumps({**definition, "fields": [{"name": next(iter(event)), "type": "long"}]})
        data = Avro(plain_written).serialize(event)
        found = avro.decoder(avro.type_of(written), written, written)([data])
        assert found.values.to_pylist() == [None]
        assert found.wrong
    schema = pa.schema([("l", pa.list_(pa.struct([("at", pa.timestamp("s", "UTC"))])))])
    batch = pa.RecordBatch.from_arrays([pa.array([[{"at": number}]], schema.field("l").type)], schema=schema)
    rows = Arrow(schema)
    found = arrow.decoder(arrow.type_of(rows.definition), rows.definition, rows.definition)([rows.serialize(batch)])
    assert found.wrong[0].startswith("l: at: ")
    stamp = timestamp_pb2.Timestamp(seconds=number).SerializeToString()
    message = Protobuf(timestamp_pb2.Timestamp).definition
    assert protobuf.decoder(protobuf.type_of(message), message, message)([stamp]).wrong


def test_only_requested_fields_are_read() -> None:
    event = b'{"b": {"x": [1, null]}, "more": [{}], "a": "text"}'
    assert one("a string, b struct<x array<int>>, c double", event) == {"a": "text", "b": {"x": [1, None]}, "c": None}
    assert one("`more` array<struct<z int>>, b map<string, array<long>>", event) == {
        "more": [{"z": None}],
        "b": [("x", [1, None])],
    }


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-23T12:00:00Z",
        "2026-11-23T13:00:00+01:00",
        "2026-11-23 12:00:00",
        "2026-11-23T12:00:00.000000100Z",
        1795435200,
    ],
)
def test_times_in_all_forms(text: Any) -> None:
    for encoding, encode in (("json", msgspec.json.encode), ("msgpack", msgspec.msgpack.encode)):
        assert one("t timestamp", encode({"t": text}), encoding) == {"t": NOON}  # type: ignore[arg-type]
    assert one("t timestamp", msgspec.msgpack.encode({"t": NOON}), "msgpack") == {"t": NOON}


def test_times_of_mixed_forms() -> None:
    texts = [None, "2026-11-23T12:00:00Z", "2026-11-23T12:00:00", 1795435200, "2026-11-23T12:00:00.1234567Z"]
    found = read("t timestamp", *(msgspec.json.encode({"t": text}) for text in texts))
    assert found.values.field(0).to_pylist()[:4] == [None, NOON, NOON, NOON]
    assert not found.wrong
    local = read("t timestamp_ntz", b'{"t": "2026-11-23T12:00:00"}', b'{"t": "2026-11-23T12:00:00Z"}')
    assert local.values.to_pylist() == [{"t": NOON.replace(tzinfo=None)}, None]
    assert "has a time zone" in local.wrong[1]


BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_998, UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1969-12-31T23:59:59.9999989Z", BEFORE_1970),
        ("1969-12-31T23:59:59.999998999Z", BEFORE_1970),
        ("1969-12-31 23:59:59.999998999", BEFORE_1970),
        ("2026-11-23T12:00:00.000000999+00:00", NOON),
        (-0.0000011, BEFORE_1970),
        (1795435200.1, NOON.replace(microsecond=100_000)),
    ],
)
def test_json_and_msgpack_times_finer_than_a_microsecond_are_rounded_towards_the_past(
    text: Any, moment: datetime
) -> None:
    for encoding, encode in (("json", msgspec.json.encode), ("msgpack", msgspec.msgpack.encode)):
        assert one("t timestamp", encode({"t": text}), encoding) == {"t": moment}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "moment"),
    [
        (struct.pack(">I", 1795435200), NOON),
        (struct.pack(">Q", 999 << 34 | 1795435200), NOON),
        (struct.pack(">Iq", 999_998_999, -1), BEFORE_1970),
    ],
)
def test_msgpack_timestamp_is_rounded_towards_the_past(data: bytes, moment: datetime) -> None:
    event = msgspec.msgpack.encode({"t": msgspec.msgpack.Ext(-1, data)})
    assert one("t timestamp", event, "msgpack") == {"t": moment}
    assert "has a time zone" in read("t timestamp_ntz", event, encoding="msgpack").wrong[0]
    other = msgspec.msgpack.encode({"t": msgspec.msgpack.Ext(5, data)})
    assert "timestamp" in read("t timestamp", other, encoding="msgpack").wrong[0]


def test_other_types() -> None:
    event = b'{"d": "2026-11-23", "n": 12.50, "s": "3.1", "b": "AAE=", "f": 1, "ok": true}'
    assert one("d date, n decimal(5,2), s decimal(4,1), b binary, f float, ok boolean", event) == {
        "d": date(2026, 11, 23),
        "n": Decimal("12.50"),
        "s": Decimal("3.1"),
        "b": b"\x00\x01",
        "f": 1.0,
        "ok": True,
    }


@pytest.mark.parametrize(
    ("ddl", "event", "why"),
    [
        ("a int", b"", "truncated"),
        ("a int", b"null", "Expected `object`, got `null`"),
        ("a int", b"[1]", "Expected `object`"),
        ("a int", b'{"a": "1"}', r"Expected `int \| null`, got `str` - at `\$.a`"),
        ("a int", b'{"a": 1} {}', "trailing"),
        ("a int", b'{"a": 2147483648}', r"<= 2147483647 - at `\$\.a`"),
        ("a tinyint", b'{"a": 128}', "<= 127"),
        ("a long", b'{"a": 18446744073709551615}', "out of range|<= 9223372036854775807"),
        ("a decimal(4,2)", b'{"a": 1.234}', "a: Rescaling"),
        ("a float", b'{"a": 1e300}', r"a: 1e\+300"),
        ("a array<struct<b float>>", b'{"a": [{"b": 1.5}, {"b": -1e300}]}', r"a: b: -1e\+300"),
        ("a date", b'{"a": "yesterday"}', "Invalid RFC3339|date"),
        ("a timestamp", b'{"a": "yesterday"}', "yesterday"),
        ("a timestamp", b'{"a": 99999999999999}', "."),
        ("a string", b'{"a": "\xff"}', "UTF-8|utf-8|valid"),
        ("a int not null", b"{}", "missing required field `a`"),
        ("a int not null", b'{"a": null}', "got `null`"),
        ("a array<array<int>>", b'{"a": ' + b"[" * 100_000, "."),
    ],
)
def test_invalid_event_fails_alone(ddl: str, event: bytes, why: str) -> None:
    good = b'{"a": null}' if "not null" not in ddl else b'{"a": 5}'
    found = read(ddl, good, event, good, event, event, good)
    assert list(found.wrong) == [1, 3, 4]
    assert [found.values.is_valid()[row].as_py() for row in range(6)] == [True, False, True, False, False, True]
    with pytest.raises(AssertionError, match=why):
        assert not found.wrong[1], found.wrong[1]


class Flat(msgspec.Struct):
    meter: str
    room: str = "unknown"
    note: str | None = None


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_row_omits_nulls_that_the_schema_rejects(encoding: Encoding) -> None:
    serializer = Struct(Flat, encoding)
    kind = documents.type_of(serializer.definition)
    encode = documents.encoder(kind, serializer.definition)
    rows: list[dict[str, str | None]] = [
        {"meter": "hall", "room": "A", "note": "n"},
        {"meter": "hall", "room": None, "note": None},
    ]
    events = encode(pa.array(rows, plain(kind)))
    assert [*map(serializer.deserialize, events)] == [Flat("hall", "A", "n"), Flat("hall")]
    assert encode(pa.array(rows[:1], plain(kind))) == events[:1], "where nothing is null"
    with pytest.raises(ValueError, match="'meter'"):
        encode(pa.array([rows[0] | {"meter": None}], plain(kind)))


# --- Avro ---------------------------------------------------------------------------------------------


def avro_of(fields: list[Any], *values: Any, reader: list[Any] | None = None) -> Decoded:
    writer = Avro({"type": "record", "name": "R", "fields": fields})
    wanted = Avro({"type": "record", "name": "R", "fields": reader or fields})
    kind = avro.type_of(wanted.definition)
    found = avro.decoder(kind, wanted.definition, writer.definition)([writer.serialize(value) for value in values])
    assert found.values.type == plain(kind)
    assert not found.wrong
    return found


def test_avro_times_and_others() -> None:
    fields = [
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "either", "type": ["int", "string", {"type": "array", "items": "int"}]},
        {"name": "by", "type": {"type": "map", "values": {"type": "array", "items": ["null", "string"]}}},
    ]
    value = {
        "ms": NOON,
        "us": None,
        "at": (datetime(1, 1, 1, 2, 3, 4)).time(),
        "id": "12345678-1234-5678-1234-567812345678",
        "either": [1],
        "by": {"a": ["x", None], "b": []},
    }
    expected = value | {"at": "02:03:04", "either": "[1]", "by": [("a", ["x", None]), ("b", [])]}
    found = avro_of(fields, value, value | {"us": NOON, "either": "a"}).values.to_pylist()
    assert found == [expected, expected | {"us": NOON, "either": '"a"'}]


@pytest.mark.filterwarnings("ignore:Unknown")  # Apache's package takes nanoseconds for plain numbers
@pytest.mark.parametrize("is_block", [True, False])
@pytest.mark.parametrize("local", ["", "local-"])
def test_avro_nanoseconds_are_rounded_towards_the_past(local: str, is_block: bool) -> None:
    times = {"type": "long", "logicalType": f"{local}timestamp-nanos"}
    more = [] if is_block else [{"name": "m", "type": {"type": "map", "values": times}, "default": {"a": -1}}]
    found = avro_of([{"name": "t", "type": times, "default": -1}, *more], {"t": -1}, {"t": -1001}, {"t": 1999}, {})
    numbers = found.values.field("t").cast(pa.int64()).to_pylist()
    assert numbers == [-1, -2, 1, -1]
    if more:
        assert found.values.field("m").items.cast(pa.int64()).to_pylist() == [-1, -1, -1, -1]


def as_column(kind: pa.DataType, value: Any) -> Any:
    """Return the column's value for a value of the serializer."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {
            field.name: as_column(field.type, value[field.name]) for field in map(kind.field, range(kind.num_fields))
        }
    if pa.types.is_map(kind):
        return [(key, as_column(kind.item_type, one)) for key, one in value.items()]
    if pa.types.is_list(kind):
        return [as_column(kind.value_type, one) for one in value]
    return msgspec.json.encode(value).decode() if is_json(kind) else value


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])  # a shared machine may stop for long
@given(st.data())
def test_avro_of_random_schemas(data: st.DataObject) -> None:
    schema, values, fields = data.draw(records())
    serializer = made(schema)
    assume(fields)
    some = data.draw(st.lists(values, min_size=1, max_size=4))
    kind = avro.type_of(serializer.definition)
    events = [*map(serializer.serialize, some)]
    found = avro.decoder(kind, serializer.definition, serializer.definition)(events)
    assert not found.wrong
    walk = AvroWalk(Schema(serializer.definition).root)
    for event in events:
        walk.check(event)
        assert walk.at == len(event)
    assert found.values.to_pylist() == [as_column(kind, serializer.deserialize(event)) for event in events]


def test_invalid_avro_events_fail_alone() -> None:
    writer = Avro({"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]})
    good = writer.serialize({"s": "text"})
    decode = avro.decoder(avro.type_of(writer.definition), writer.definition, writer.definition)
    found = decode([good, good[:-1], good + b"x", b"\x08\xff\xff\xff\xff", good])
    assert list(found.wrong) == [1, 2, 3]
    assert "1 byte" in found.wrong[2]
    assert found.values.to_pylist() == [{"s": "text"}, None, None, None, {"s": "text"}]


@pytest.mark.parametrize(
    ("kind", "event", "why"),
    [
        (["null", "R"], b"\x02" * 100_000 + b"\0", "2,000"),  # which would end the process
        ({"type": "array", "items": "R"}, b"\x02" * 100_000 + b"\0" * 100_000, "2,000"),
        ({"type": "array", "items": "null"}, b"\xfe" * 7 + b"\x01\0", "1,000"),
        ({"type": "array", "items": {"type": "record", "name": "I", "fields": []}}, b"\xfe\xff\xff\x0f\0", "1,000"),
    ],
)
def test_avro_beyond_limits_is_rejected(kind: Any, event: bytes, why: str) -> None:
    definition = Avro({"type": "record", "name": "R", "fields": [{"name": "it", "type": kind}]}).definition
    found = avro.decoder(avro.type_of(definition), definition, definition)([b"\0", event, b"\0"])
    assert list(found.wrong) == [1]
    assert why in found.wrong[1]
    with pytest.raises(SerializationError, match=why):
        Avro(definition.decode()).deserialize(event)


# --- Protobuf -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "nanos", "micros"), [(-1, 999_999_999, -1), (-1, 1, -1_000_000), (0, 999, 0), (-2, 0, -2_000_000)]
)
def test_protobuf_timestamp_is_rounded_towards_the_past(seconds: int, nanos: int, micros: int) -> None:
    found = messages(timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos))
    assert found.values.cast(pa.int64()).to_pylist() == [micros]


def messages(*values: Any) -> Decoded:
    serializer = Protobuf(type(values[0]))
    kind = protobuf.type_of(serializer.definition)
    decode = protobuf.decoder(kind, serializer.definition, serializer.definition)
    found = decode([serializer.serialize(value) for value in values])
    assert found.values.type == plain(kind)
    assert not found.wrong
    return found


def test_protobuf_messages() -> None:
    enum = type_pb2.Enum(name="colours", syntax=type_pb2.SYNTAX_PROTO3)
    enum.enumvalue.add(name="RED", number=3)
    enum.enumvalue.add(name="BLUE").options.add(name="shade").value.Pack(wrappers_pb2.Int32Value(value=1))
    enum.source_context.file_name = "colours.proto"
    first, second = messages(enum, type_pb2.Enum()).values.to_pylist()
    assert first["name"], first["syntax"] == ("colours", "SYNTAX_PROTO3")
    assert [(one["name"], one["number"], len(one["options"])) for one in first["enumvalue"]] == [
        ("RED", 3, 0),
        ("BLUE", 0, 1),
    ]
    assert first["source_context"] == {"file_name": "colours.proto"}
    assert second == {
        "name": "",
        "enumvalue": [],
        "options": [],
        "source_context": None,
        "syntax": "SYNTAX_PROTO2",
        "edition": "",
    }


def test_well_known_protobuf_messages() -> None:
    moment = timestamp_pb2.Timestamp()
    moment.FromDatetime(NOON - timedelta(days=30_000, microseconds=1))
    assert messages(moment).values.to_pylist() == [NOON - timedelta(days=30_000, microseconds=1)]
    document = struct_pb2.Struct()
    document.update({"a": [1, {"b": None}]})
    assert json.loads(messages(document).values.to_pylist()[0]) == {"a": [1, {"b": None}]}
    big = wrappers_pb2.UInt64Value(value=2**64 - 1)
    assert messages(big).values.to_pylist() == [Decimal(2**64 - 1)]


def test_invalid_protobuf_events_fail_alone() -> None:
    definition = Protobuf(type_pb2.Enum).definition
    decode = protobuf.decoder(protobuf.type_of(definition), definition, definition)
    found = decode([b"\xff", type_pb2.Enum(name="x").SerializeToString()])
    assert list(found.wrong) == [0]
    assert found.values[1].as_py()["name"] == "x"


# --- Arrow --------------------------------------------------------------------------------------------


def batches(schema: pa.Schema, *rows: list[Any], wanted: pa.Schema | None = None) -> Decoded:
    writer, reader = Arrow(schema), Arrow(wanted or schema)
    events = [writer.serialize(pa.RecordBatch.from_pylist(some, schema=schema)) for some in rows]
    return arrow.decoder(arrow.type_of(reader.definition), reader.definition, writer.definition)(events)


def test_an_arrow_event_has_any_number_of_rows() -> None:
    schema = pa.schema([("a", pa.uint8()), ("t", pa.timestamp("ns")), ("l", pa.large_list(pa.large_string()))])
    rows = [{"a": 1, "t": None, "l": ["x"]}, {"a": 2, "t": datetime(2026, 1, 1), "l": None}]
    found = batches(schema, rows, [], rows[:1])
    assert found.values.to_pylist() == [*rows, rows[0]]
    assert found.rows is not None
    assert found.rows.tolist() == [0, 0, 2]
    assert found.values.type == plain(pa.struct(list(schema)))


def test_arrow_columns_converted_for_spark() -> None:
    schema = pa.schema(
        [
            pa.field("needed", pa.uint64(), nullable=False),
            ("id", pa.uuid()),
            ("json", pa.json_()),
            ("time", pa.time64("us")),
            ("big", pa.decimal256(50, 1)),
            ("three", pa.list_(pa.float16(), 3)),
        ]
    )
    row = {
        "needed": 2**64 - 1,
        "id": b"0123456789abcdef",
        "json": "{}",
        "time": 3_000_000,
        "big": 1,
        "three": [1, 2, None],
    }
    arrays = [pa.array([row[field.name]], field.type) for field in schema]
    event = Arrow(schema).serialize(pa.RecordBatch.from_arrays(arrays, schema=schema))
    definition = Arrow(schema).definition
    found = arrow.decoder(arrow.type_of(definition), definition, definition)([event])
    assert found.values.to_pylist() == [row | {"needed": Decimal(2**64 - 1), "time": "00:00:03.000000", "big": "1.0"}]
    assert found.values.type == plain(pa.struct(list(schema)))


def test_arrow_times_finer_than_a_microsecond_are_rounded_towards_the_past() -> None:
    numbers = pa.array([-1, -1001, 1999, None])
    columns = {
        "ns": numbers.cast(pa.timestamp("ns")),
        "zoned": numbers.cast(pa.timestamp("ns", "Asia/Kolkata")),
        "ms": numbers.cast(pa.timestamp("ms")),
        "list": pa.ListArray.from_arrays([0, 1, 2, 3, 4], numbers.cast(pa.timestamp("ns"))),
        "inner": pa.StructArray.from_arrays([numbers.cast(pa.timestamp("ns", "UTC"))], ["t"]),
    }
    batch = pa.record_batch(columns)
    serializer = Arrow(batch.schema)
    found = arrow.decoder(arrow.type_of(serializer.definition), serializer.definition, serializer.definition)(
        [serializer.serialize(batch)]
    ).values
    micros = [-1, -2, 1, None]
    assert found.field("ns").cast(pa.int64()).to_pylist() == micros
    assert found.field("zoned").cast(pa.int64()).to_pylist() == micros
    assert found.field("ms").cast(pa.int64()).to_pylist() == [-1000, -1_001_000, 1_999_000, None]
    assert found.field("list").flatten().cast(pa.int64()).to_pylist() == micros
    assert found.field("inner").field("t").cast(pa.int64()).to_pylist() == micros


def test_invalid_arrow_events_fail_alone() -> None:
    schema = pa.schema([("s", pa.string())])
    serializer = Arrow(schema)
    good = serializer.serialize(pa.RecordBatch.from_pylist([{"s": "one"}, {"s": "two"}], schema=schema))
    bad_text = good.replace(b"two", b"t\xffo")
    decode = arrow.decoder(arrow.type_of(serializer.definition), serializer.definition, serializer.definition)
    found = decode([b"", good, b"text", bad_text, good[:-8], good])
    assert sorted(found.wrong) == [0, 2, 3, 4]
    assert found.rows is not None
    assert found.rows.tolist() == [0, 1, 1, 2, 3, 4, 5, 5]
    assert [row and row["s"] for row in found.values.to_pylist()] == [
        None,
        "one",
        "two",
        None,
        None,
        None,
        "one",
        "two",
    ]
    assert decode([b""]).values.to_pylist() == [None]


def compressed(batch: pa.RecordBatch, codec: str) -> bytes:
    """Encode a batch as an event with optional compression."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec or None)) as writer:
        writer.write_batch(batch)
    source = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(source)
    data: bytes = pa.ipc.read_message(source).serialize().to_pybytes()
    return data


@pytest.mark.parametrize(
    ("column", "codec", "why"),
    [
        (pa.array(np.zeros(2_000_000, np.int64)), "zstd", "16,0"),
        (pa.nulls(1_000_000), "", "rows"),
        (pa.ListArray.from_arrays(pa.array([0, 1_000_000]), pa.nulls(1_000_000)), "", "rows"),
        (pa.ListArray.from_arrays(pa.array([0, 1_000_000]), pa.nulls(1_000_000)), "zstd", "rows"),
    ],
)
def test_expanding_arrow_event_is_rejected(column: pa.Array, codec: str, why: str) -> None:
    batch = pa.RecordBatch.from_arrays([column], ["a"])
    serializer = Arrow(batch.schema)
    decode = arrow.decoder(arrow.type_of(serializer.definition), serializer.definition, serializer.definition)
    good = compressed(pa.RecordBatch.from_arrays([pa.nulls(3, column.type)], ["a"]), codec)
    event = compressed(batch, codec)
    assert len(event) < 5_000
    found = decode([good, event])
    assert len(found.values) == 3 + 1
    assert list(found.wrong) == [1]
    assert why in found.wrong[1]
    with pytest.raises(SerializationError, match=why):
        serializer.deserialize(event)


def test_protobuf_without_required_field_is_invalid() -> None:
    whole = descriptor_pb2.UninterpretedOption.NamePart(name_part="x", is_extension=False)
    definition = Protobuf(descriptor_pb2.UninterpretedOption).definition
    decode = protobuf.decoder(protobuf.type_of(definition), definition, definition)
    events = [
        descriptor_pb2.UninterpretedOption(name=[name]).SerializePartialToString()
        for name in (whole, descriptor_pb2.UninterpretedOption.NamePart(name_part="x"))
    ]
    found = decode(events)
    assert "required name[0].is_extension" in found.wrong[1]
    assert found.values[0].as_py()["name"] == [{"name_part": "x", "is_extension": False}]
    infinite = struct_pb2.Value(number_value=float("inf"))
    definition = Protobuf(struct_pb2.Value).definition
    found = protobuf.decoder(protobuf.type_of(definition), definition, definition)(
        [infinite.SerializeToString(), struct_pb2.Value(bool_value=True).SerializeToString()]
    )
    assert found.values.to_pylist() == [None, "true"]
    assert list(found.wrong) == [0]
