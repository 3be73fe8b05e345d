"""The serializers without a schema."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nadi.client.serializers import Bytes, Json, Msgpack, Serializer, Text
from nadi.errors import SerializationError


class Reading(msgspec.Struct):
    meter: str
    wh: int = 0


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (Bytes(), b"\x00\xff"),
        (Text(), "zählen"),
        (Text("latin-1"), "zählen"),
        (Json(), {"a": [1, None, "x"]}),
        (Json(Reading), Reading("kitchen", 12)),
        (Msgpack(), {"a": [1, None, b"x"]}),
        (Msgpack(Reading), Reading("kitchen", 12)),
    ],
)
def test_values_come_back(serializer: Serializer[Any], value: Any) -> None:
    data = serializer.serialize(value)
    assert type(data) is bytes
    assert serializer.deserialize(data) == value


@pytest.mark.parametrize(
    ("serializer", "value", "told"),
    [
        (Bytes(), "text", "bytes here, not str"),
        (Text(), b"bytes", "str here, not bytes"),
        (Text("ascii"), "zählen", "written as ascii"),
        (Json(), object(), "written as JSON"),
        (Msgpack(), 1 << 70, "written as msgpack"),
    ],
)
def test_a_value_that_cant_be_written_is_named(serializer: Serializer[Any], value: Any, told: str) -> None:
    with pytest.raises(SerializationError, match=told):
        serializer.serialize(value)


@pytest.mark.parametrize(
    ("serializer", "data", "told"),
    [
        (Text(), b"\xff", "no utf-8 text"),
        (Json(), b"{", "not JSON"),
        (Json(), b"[" * 100_000, "not JSON"),
        (Json(Reading), b'{"wh":1}', "not JSON for Reading: .*meter"),
        (Msgpack(Reading), b"\xc1", "not valid msgpack for Reading"),
    ],
)
def test_an_event_that_cant_be_read_is_named(serializer: Serializer[Any], data: bytes, told: str) -> None:
    with pytest.raises(SerializationError, match=told):
        serializer.deserialize(data)
