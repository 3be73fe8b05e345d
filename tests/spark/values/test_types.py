"""Conversion of schemas' types to Arrow and Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from google.protobuf import any_pb2, descriptor_pb2, struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2

from nadi.client.serializers import avro_columns as avro
from nadi.client.serializers import documents
from nadi.client.serializers.arrow_columns import plain
from nadi.client.serializers.protobuf_columns import arrow_type
from nadi.client.serializers.structs import precise_schema
from nadi.client.serializers.types import of_ddl
from nadi.errors import InvalidArgumentError
from nadi.spark.columns import spark_schema


def spark(kind: pa.DataType) -> str:
    found = spark_schema(pa.schema([("value", plain(kind))]))["value"].dataType.simpleString()
    assert isinstance(found, str)
    return found.removeprefix("struct<").removesuffix(">")


class Node(msgspec.Struct):
    children: list[Node] = []


class Point(msgspec.Struct):
    x: int
    y: float | None = None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (bool, "boolean"),
        (int, "bigint"),
        (int | None, "bigint"),
        (float, "double"),
        (int | float, "double"),
        (str, "string"),
        (bytes, "binary"),
        (datetime, "timestamp"),
        (date, "date"),
        (time, "string"),
        (timedelta, "string"),
        (UUID, "string"),
        (Decimal, "string"),
        (Any, "string"),
        (int | str, "string"),
        (list[int | None], "array<bigint>"),
        (dict[str, float], "map<string,double>"),
        (dict[int, list[str]], "map<bigint,array<string>>"),
        (Point, "struct<x:bigint,y:double>"),
        (Node, "struct<children:array<string>>"),
        (tuple[int, str], "string"),
    ],
)
def test_of_structs(kind: Any, expected: str) -> None:
    schema = precise_schema(msgspec.defstruct("Row", [("it", kind)]))
    assert spark(documents.arrow_type(schema)) == f"it:{expected}"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ("bytes", "binary"),
        ("string", "string"),
        ({"type": "fixed", "name": "F", "size": 3}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp_ntz"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "int", "logicalType": "time-millis"}, "string"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9,2)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2}, "string"),
        ({"type": "array", "items": ["null", "int"]}, "array<int>"),
        ({"type": "map", "values": "long"}, "map<string,bigint>"),
        (["null", "string"], "string"),
        (["int", "null", "long"], "bigint"),
        (["float", "double"], "double"),
        (["int", "string"], "string"),
        ({"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}, "struct<x:int>"),
        ({"type": "record", "name": "I", "fields": []}, "string"),
        ({"type": "array", "items": "R"}, "array<string>"),
    ],
)
def test_of_avro(schema: Any, expected: str) -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "it", "type": schema}]}
    assert spark(avro.type_of(json.dumps(record).encode())) == f"it:{expected}"


def test_of_protobuf() -> None:
    assert spark(arrow_type(timestamp_pb2.Timestamp.DESCRIPTOR)) == "timestamp"
    assert spark(arrow_type(wrappers_pb2.UInt64Value.DESCRIPTOR)) == "decimal(20,0)"
    assert spark(arrow_type(any_pb2.Any.DESCRIPTOR)) == "type_url:string,value:binary"
    assert spark(arrow_type(struct_pb2.Struct.DESCRIPTOR)) == "string"
    option = "name:string,value:struct<type_url:string,value:binary>"
    assert spark(arrow_type(type_pb2.EnumValue.DESCRIPTOR)) == f"name:string,number:int,options:array<struct<{option}>>"
    assert "nested_type:array<string>" in spark(arrow_type(descriptor_pb2.DescriptorProto.DESCRIPTOR)), "itself"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.uint8(), "smallint"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.large_string(), "string"),
        (pa.binary(3), "binary"),
        (pa.date64(), "date"),
        (pa.time64("ns"), "string"),
        (pa.timestamp("ns", "Europe/Vienna"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.duration("ms"), "interval day to second"),
        (pa.decimal256(50, 2), "string"),
        (pa.large_list(pa.int8()), "array<tinyint>"),
        (pa.map_(pa.string(), pa.uint16()), "map<string,int>"),
        (pa.null(), "string"),
        (pa.json_(), "string"),
        (pa.uuid(), "binary"),
    ],
)
def test_of_arrow(kind: pa.DataType, expected: str) -> None:
    assert spark(pa.struct([("it", kind)])) == f"it:{expected}"


def test_types_unknown_to_spark_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match=r"value\.a\.element is month_day_nano_interval"):
        plain(pa.struct([("a", pa.list_(pa.month_day_nano_interval()))]))
    with pytest.raises(InvalidArgumentError):
        plain(pa.struct([("a", pa.int8()), ("a", pa.int8())]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time timestamp, value double", "time:timestamp,value:double"),
        ("STRUCT<a: INT, b: struct<c: tinyint>>", "a:int,b:struct<c:tinyint>"),
        ("`a b` long NOT NULL COMMENT 'so, many', c dec(7, 2), d numeric", "a b:bigint,c:decimal(7,2),d:decimal(10,0)"),
        ("m map<string, array<timestamp_ntz>>", "m:map<string,array<timestamp_ntz>>"),
        ("größe real, b binary, d date", "größe:float,b:binary,d:date"),
    ],
)
def test_of_ddl(text: str, expected: str) -> None:
    assert spark(of_ddl(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a int,",
        "a int b int",
        "a interval",
        "a array<int",
        "a int> b",
        "a decimal(39, 1)",
        "a decimal(5, 6)",
        "a int, a long",
        "a.b int",
        ", int",
        "a " + "array<" * 100,
        f"a decimal({'9' * 5000})",
        'a int, `b"c` int',
        "a struct<`b\\\\c`: int>",
    ],
)
def test_invalid_ddl_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="'value_schema'"):
        of_ddl(text)


@dataclass
class Required:
    a: int
    b: int | None
    c: int = 7


def test_required_fields_are_not_nullable() -> None:
    kind = documents.arrow_type(precise_schema(Required))
    assert [kind.field(name).nullable for name in "abc"] == [False, True, True]
    assert json.loads(kind.field("c").metadata[b"default"]) == 7
    kind = of_ddl("a int not null, b int")
    assert [kind.field(name).nullable for name in "ab"] == [False, True]
    assert plain(kind).field("a").nullable, "the value may be null as a whole"
