"""JSON events as the text that they are, and the routing keys that their fields hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import InvalidArgumentError
from nadi.model.field_path import parse_path
from nadi.model.json_events import NotJsonError, checked, fields_of, key_in, known_key_in, with_whole_characters

KEYS: list[tuple[bytes, str | None]] = [
    (b'{"id": ""}', ""),
    (b'{"id": "a"}', "a"),
    (rb'{"id": "\u00e4\ud83d"}', "ä\ufffd"),
    (b'{"id": 1}', "1"),
    (b'{"id": 1.0}', "1.0"),
    (b'{"id": 1e0}', "1e0"),
    (b'{"id": -0}', "-0"),
    (b'{"id": 12345678901234567890123}', "12345678901234567890123"),
    (b'{"id": 1e400}', "1e400"),
    (b'{"id": null}', None),
    (b"{}", None),
    (b"[1]", None),
    (b'"id"', None),
    (b'{"id": 1, "id": 2}', "2"),
    (rb'{"\u0069d": "escaped"}', "escaped"),
]


@pytest.mark.parametrize(("event", "key"), KEYS)
def test_key_in_a_field_by_its_type_is_its_text_or_none(event: bytes, key: str | None) -> None:
    assert key_in(event, parse_path("id")) == key
    assert key_in(b'{"of": {"of": ' + event + b"}}", parse_path("of.of.id")) == key


@pytest.mark.parametrize("value", [b"true", b"false", b"[]", b'["a"]', b"{}", b'{"id": 1}'])
def test_key_that_is_a_truth_value_a_list_or_an_object_is_refused_by_its_field(value: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match=r"the field 'device\.id' is .*, but a routing key is a string or"):
        key_in(b'{"device": {"id": ' + value + b"}}", parse_path("device.id"))
    assert known_key_in(b'{"id": ' + value + b"}", parse_path("id")) is None


def test_key_field_with_a_dot_in_its_name_is_found_before_a_nested_one() -> None:
    assert key_in(b'{"service.name": "shop", "service": {"name": "other"}}', parse_path("service.name")) == "shop"
    assert key_in(b'{"service": {"name": "other"}}', parse_path("service.name")) == "other"
    assert key_in(b'{"service": 7}', parse_path("service.name")) is None


@pytest.mark.parametrize(
    "text", [b"", b"{", b"NaN", b"[1,]", b'"\xff"', b'{"a": "\xff"}', b'"\x01"', b"[" * 100_000, b"01"]
)
def test_text_that_is_not_json_is_refused_whatever_is_asked_of_it(text: bytes) -> None:
    for ask in (checked, fields_of, lambda it: key_in(it, parse_path("id"))):
        with pytest.raises(NotJsonError, match="not JSON"):
            ask(text)


@given(
    st.lists(st.sampled_from(["\\ud83d", "\\uDE00", "\\\\", "\\n", "\\u00e4", "u", "d", "83d", "ä", "\\uD83D\\ude00"]))
)
def test_halves_of_surrogate_pairs_become_the_replacement_character_and_no_other_byte_changes(parts: list[str]) -> None:
    text = f'"{"".join(parts)}"'
    wanted = json.loads(text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    mended = with_whole_characters(text.encode())
    assert len(mended) == len(text.encode())
    assert (
        json.loads(mended) == json.loads(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace") == wanted
    )


def test_fields_are_the_text_that_they_were() -> None:
    values = {"a": b"1.50", "b": b"12345678901234567890", "c": b"1e400", "d": b'{ "x" : [ 1 ] }', "e": rb'"\u00e4"'}
    document = b"{" + b", ".join(b'"%s" :  %s ' % (name.encode(), value) for name, value in values.items()) + b"}"
    assert {name: bytes(value) for name, value in fields_of(document).items()} == values
