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
def test_values_round_trip(serializer: Serializer[Any], value: Any) -> None:
    data = serializer.serialize(value)
    assert type(data) is bytes
    assert serializer.deserialize(data) == value


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (Bytes(), "text"),
        (Text(), b"bytes"),
        (Text("ascii"), "zählen"),
        (Json(), object()),
        (Msgpack(), 1 << 70),
    ],
)
def test_unserializable_value_is_rejected(serializer: Serializer[Any], value: Any) -> None:
    with pytest.raises(SerializationError):
        serializer.serialize(value)


@pytest.mark.parametrize(
    ("serializer", "data"),
    [
        (Text(), b"\xff"),
        (Json(), b"{"),
        (Json(), b"[" * 100_000),
        (Json(Reading), b'{"wh":1}'),
        (Msgpack(Reading), b"\xc1"),
    ],
)
def test_undecodable_event_is_rejected(serializer: Serializer[Any], data: bytes) -> None:
    with pytest.raises(SerializationError):
        serializer.deserialize(data)
