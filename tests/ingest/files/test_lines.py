"""Cutting bytes into events: the same wherever it begins and however the bytes come."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import InvalidArgumentError
from nadi.ingest.files.keys import FieldKey, by_pattern, compiled
from nadi.ingest.files.tail import Cut, Cutter

STARTS = re.compile(rb"^\d")


def cut(data: bytes, at: int, pieces: list[int], starts: re.Pattern[bytes] | None, forced: int) -> list[Cut]:
    cutter, found = Cutter(at, starts, forced, most_bytes=7), list[Cut]()
    while cutter.at < len(data):
        size = pieces.pop() if pieces else 1000
        found += cutter.feed(data[cutter.at : cutter.at + size])
    return found


@given(
    data=st.text("1a\n\r", max_size=60).map(str.encode),
    pieces=st.lists(st.integers(1, 9)),
    other=st.lists(st.integers(1, 9)),
    forced=st.integers(0, 60),
    joined=st.booleans(),
    again=st.integers(0, 20),
)
def test_it_depends_on_the_bytes_alone(
    data: bytes, pieces: list[int], other: list[int], forced: int, joined: bool, again: int
) -> None:
    starts = STARTS if joined else None
    found = cut(data, 0, pieces, starts, forced)
    assert cut(data, 0, other, starts, forced) == found
    if again < len(found):  # a process that begins again after some of them
        end = found[again][0]
        assert cut(data, end, other, starts, forced if forced > end else 0) == found[again + 1 :]
    whole = b"".join(event for _, event in found).replace(b"\n", b"").replace(b"\r", b"")
    assert data.replace(b"\n", b"").replace(b"\r", b"").startswith(whole)
    assert [end for end, _ in found] == sorted({end for end, _ in found})


def test_several_lines_that_belong_together() -> None:
    cutter = Cutter(0, STARTS)
    assert cutter.feed(b"1 error\n  at x\n  at y\n2 ok\n  part") == [(22, b"1 error\n  at x\n  at y")]
    assert (cutter.has_whole, cutter.has_rest, cutter.whole_end) == (True, True, 27)
    assert cutter.flush(rest=False) == [(27, b"2 ok")]
    assert cutter.feed(b"ial\n3\n") == [(37, b"  partial")]
    assert cutter.flush(rest=True) == [(39, b"3")]


def test_keys() -> None:
    by_level = by_pattern(r"^(\w+):")
    assert (by_level(b"INFO: x"), by_level(b"no level")) == ("INFO", None)
    assert by_pattern(r"(a)(?P<key>b)")(b"ab") == "b"
    assert by_pattern(r"\d+")(b"x17") == "17"
    by_device = FieldKey("device.id")
    assert by_device(b'{"device": {"id": "kitchen"}}') == "kitchen"
    assert by_device(b'{"device": {"id": 7}}') == "7"
    assert [by_device(line) for line in (b"{", b"[]", b'{"device": 1}', b'{"device": {"id": null}}')] == [None] * 4
    with pytest.raises(InvalidArgumentError, match="no regular expression"):
        compiled("(", "key pattern")
    with pytest.raises(InvalidArgumentError, match="is not a field"):
        FieldKey("a..b")
