"""Values in Spark itself: all column types, a query over several versions, and the guide's example."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from nadi.client.serializers import Arrow, Avro, Json

from ..conftest import World

pytestmark = pytest.mark.spark
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def write(world: World, stream: str, serializer: Any, *values: Any) -> None:
    if stream not in world.manager.list_streams("home"):
        world.manager.create_stream("home", stream)
    with world.manager.create_writer("home", stream, serializer=serializer) as writer:
        for value in values:
            writer.write_event(value, "key")


def test_all_column_types_in_spark(world: World) -> None:
    schema = pa.schema(
        [
            ("bool", pa.bool_()),
            ("int8", pa.int8()),
            ("uint8", pa.uint8()),
            ("int32", pa.int32()),
            ("uint64", pa.uint64()),
            ("float", pa.float32()),
            ("text", pa.large_string()),
            ("data", pa.binary(2)),
            ("day", pa.date32()),
            ("at", pa.timestamp("ns", "UTC")),
            ("local", pa.timestamp("ms")),
            ("took", pa.duration("s")),
            ("price", pa.decimal128(9, 2)),
            ("list", pa.large_list(pa.struct([("x", pa.int64())]))),
            ("map", pa.map_(pa.string(), pa.list_(pa.uint16()))),
            ("nothing", pa.null()),
        ]
    )
    row = {
        "bool": True,
        "int8": 1,
        "uint8": 255,
        "int32": 2,
        "uint64": 2**64 - 1,
        "float": 0.5,
        "text": "text",
        "data": b"ab",
        "day": date(2026, 1, 2),
        "at": NOON,
        "local": datetime(2026, 1, 2, 3),
        "took": timedelta(seconds=3),
        "price": Decimal("12.34"),
        "list": [{"x": 1}, None],
        "map": [("k", [1, None])],
        "nothing": None,
    }
    batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema=schema)
    write(world, "types", Arrow(schema), batch)
    rows = world.read("types", value_format="arrow").select("value.*")
    found, empty = (one.asDict(recursive=True) for one in rows.collect())
    assert empty == dict.fromkeys(row)
    assert found.pop("at").astimezone(UTC) == NOON
    assert found == {name: value for name, value in row.items() if name != "at"} | {
        "uint64": Decimal(2**64 - 1),
        "map": {"k": [1, None]},
    }


def test_documents_and_modes(world: World) -> None:
    write(world, "documents", Json(), {"meter": "hall", "time": NOON, "tags": {"a": [1]}}, ["no struct"])
    given = {"value_format": "json", "value_schema": "time timestamp, tags map<string, array<int>> not null"}
    rows = world.read("documents", columns="value, event", **given)
    assert rows.where("value IS NULL").first().event == b'["no struct"]'
    assert rows.selectExpr("value.tags['a'][0] AS a", "unix_seconds(value.time) AS t").first().asDict() == {
        "a": 1,
        "t": int(NOON.timestamp()),
    }
    assert world.read("documents", value_mode="DROPMALFORMED", **given).count() == 1
    with pytest.raises(PySparkException, match=r"stream home/documents, in segment 0 at offset .*Expected `object`"):
        world.read("documents", value_mode="FAILFAST", **given).count()
    with pytest.raises(PySparkException, match=r"'value_schema'.* avro"):
        world.read("documents", value_format="avro", value_schema="a int")


def test_the_guides_example(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    section = guide.partition("## Values")[2].partition("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    reading = Avro(
        {
            "type": "record",
            "name": "Reading",
            "fields": [{"name": "room", "type": "string"}, {"name": "wh", "type": "double"}],
        }
    )
    write(
        world,
        "readings",
        reading,
        {"room": "hall", "wh": 1.5},
        {"room": "hall", "wh": 2.5},
        {"room": "attic", "wh": 1.0},
    )
    write(world, "meters", Json(), {"meter": "hall", "time": "2026-11-23T12:00:00Z", "wh": 7})
    write(world, "copies", reading)
    home = {"controller": world.uri, "scope": "home"}
    names: dict[str, Any] = {"spark": world.spark, "home": home}
    for example in examples:
        exec(compile(example, "docs/spark.md", "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"\|\s*hall\|\s*4\.0\|", printed), printed
    assert names["readings"].schema.simpleString() == "struct<room:string,wh:double,segment_id:bigint>"
    fields = names["meters"].schema["value"].dataType
    assert fields.simpleString() == "struct<meter:string,time:timestamp,wh:double>"
    assert names["meters"].isStreaming
    now = world.manager.cuts("home", "copies").tail()
    copies = world.manager.read_events("home", "copies", serializer=reading, end=now)
    assert sorted(event.value["wh"] for event in copies) == [1.0, 1.5, 2.5]
