"""Avro read in whole batches equals reading event by event, for any bytes."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from typing import Any

import pytest

from nadi.client.serializers import Avro
from nadi.client.serializers import avro_columns as avro
from nadi.client.serializers.arrow_columns import plain
from nadi.client.serializers.avro import Schema
from nadi.client.serializers.avro_columns import block_reader

INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["int", "null"]}]}
FIELDS: list[dict[str, Any]] = [
    {"name": "flag", "type": "boolean"},
    {"name": "small", "type": "int"},
    {"name": "large", "type": "long"},
    {"name": "half", "type": "float"},
    {"name": "whole", "type": "double"},
    {"name": "text", "type": "string"},
    {"name": "maybe", "type": ["null", "string"]},
    {"name": "never", "type": ["null", "long"]},
    {"name": "data", "type": "bytes"},
    {"name": "two", "type": {"type": "fixed", "name": "F", "size": 2}},
    {"name": "colour", "type": {"type": "enum", "name": "E", "symbols": ["RED", "BLUE"]}},
    {"name": "again", "type": ["null", "E"]},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
    {"name": "inner", "type": INNER},
    {"name": "other", "type": ["null", "I"]},
]
SERIALIZER = Avro({"type": "record", "name": "R", "fields": FIELDS})
KIND = avro.type_of(SERIALIZER.definition)


def value(chance: random.Random) -> dict[str, Any]:
    def maybe(some: Any) -> Any:
        return chance.choice([None, some])

    size = chance.choice([0, 1, 7, 63, 64, 300])
    return {
        "flag": chance.random() < 0.5,
        "small": chance.choice([0, -1, 63, 64, -65, 2**31 - 1, -(2**31)]),
        "large": chance.choice([0, 2**63 - 1, -(2**63), chance.randrange(10**12)]),
        "half": 0.5 * chance.randrange(100),
        "whole": chance.random(),
        "text": "ü" * size,
        "maybe": maybe("x" * size),
        "never": None,
        "data": chance.randbytes(size),
        "two": chance.randbytes(2),
        "colour": chance.choice(["RED", "BLUE"]),
        "again": maybe("BLUE"),
        "day": date(2026, 1, chance.randrange(1, 28)),
        "at": maybe(datetime(2026, 1, chance.randrange(1, 28), tzinfo=UTC)),
        "inner": {"x": maybe(chance.randrange(100))},
        "other": maybe({"x": maybe(7)}),
    }


def test_whole_batch_is_read() -> None:
    chance = random.Random(1)
    values = [value(chance) for _ in range(500)]
    read = block_reader(Schema(SERIALIZER.definition, plain_times=True).root, KIND)
    assert read is not None
    column = read([*map(SERIALIZER.serialize, values)])
    assert column is not None
    column.validate(full=True)
    assert column.type == plain(KIND)
    assert column.to_pylist() == values


def test_random_bytes_are_read_as_by_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(2)
    events = []
    for _ in range(600):
        data = bytearray(SERIALIZER.serialize(value(chance)))
        for _ in range(chance.choice([0, 1, 1, 2])):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        if chance.random() < 0.05:
            data += b"\x00"
        events.append(bytes(data))
    decode = avro.decoder(KIND, SERIALIZER.definition, SERIALIZER.definition)
    monkeypatch.setattr(avro, "block_reader", lambda *_: None)
    slow = avro.decoder(KIND, SERIALIZER.definition, SERIALIZER.definition)
    read = 0
    for event in events:
        one, other = decode([event]), slow([event])
        assert repr(one.values.to_pylist()) == repr(other.values.to_pylist()), event
        assert one.wrong == other.wrong
        read += not one.wrong
    assert 100 < read < 500, "some could be read, some not"
    whole, other = decode(events), slow(events)
    assert list(whole.wrong) == list(other.wrong)


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        ["null", "int", "string"],
        ["int"],
        "null",
        {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        {"type": "string", "logicalType": "uuid"},
        {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", "R"]}]},
    ],
)
def test_complex_schemas_are_left_to_fastavro(kind: Any) -> None:
    definition = json.dumps({"type": "record", "name": "R", "fields": [{"name": "it", "type": kind}]}).encode()
    assert block_reader(Schema(definition).root, avro.type_of(definition)) is None
