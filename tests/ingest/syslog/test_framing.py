"""Messages out of a connection's bytes, however these come, and whatever they are."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.ingest.syslog.framing import Framing

_TEXTS = st.text("<a1 ", max_size=8).map(lambda text: b"<1>" + text.encode() + b".")


def fed(framing: Framing, data: bytes, pieces: list[int]) -> list[bytes]:
    found, pieces = list[bytes](), list(pieces)
    while data:
        size = pieces.pop() if pieces else 1000
        found += framing.feed(data[:size])
        data = data[size:]
    return found


@given(st.lists(_TEXTS), st.sampled_from([b"\n", b"\r\n", b"\0", None]), st.lists(st.integers(1, 7)))
def test_messages_are_found_however_the_bytes_come(sent: list[bytes], end: bytes | None, pieces: list[int]) -> None:
    data = b"".join(b"%d %s" % (len(one), one) if end is None else one + end for one in sent)
    assert fed(Framing(20), data, pieces) == sent


@given(st.lists(st.sampled_from([b"1", b"0", b"99", b" ", b"<", b">", b"\n", b"\0", b"\xff", b"a" * 30]), max_size=60))
def test_nothing_that_comes_is_too_much(parts: list[bytes]) -> None:
    data = b"".join(parts)
    whole, framing = Framing(20), Framing(20)
    found = list[bytes]()
    for at in range(len(data)):
        found += framing.feed(data[at : at + 1])
        assert len(framing._rest) <= 31  # a message, and its length
    assert found == whole.feed(data)
    assert all(0 < len(one) <= 20 for one in found)
    assert (framing.broken, framing.cut, framing.end()) == (whole.broken, whole.cut, whole.end())


@pytest.mark.parametrize("pieces", [[], [1] * 100])
def test_what_is_too_long_is_cut_and_the_next_message_is_whole(pieces: list[int]) -> None:
    for data in (b"<1>456789012345\n<2>b\n", b"15 <1>4567890123454 <2>b"):
        framing = Framing(10)
        assert fed(framing, data, pieces) == [b"<1>4567890", b"<2>b"]
        assert framing.cut == 1
    exactly = Framing(10)
    assert fed(exactly, b"<1>4567890\n10 <1>4567\n", pieces) == [b"<1>4567890", b"10 <1>4567"]
    assert exactly.cut == 0


@pytest.mark.parametrize("second", [b"x <2>", b"0 <2>", b"-1 <2>", b"\n<2>", b"12345678901 <2>", b"4  <2>"])
def test_a_length_that_is_none_breaks_it_off_after_what_was_whole(second: bytes) -> None:
    framing = Framing(10)
    found = framing.feed(b"4 <1>a" + second)
    if second[:1] == b"4":
        assert found == [b"<1>a", b" <2>"]  # by its length it is one, if an odd one
        return
    assert found == [b"<1>a"]
    assert framing.broken is not None
    assert framing.feed(b"4 <3>a") == []


def test_a_line_that_begins_with_a_number_is_a_line() -> None:
    assert Framing(100).feed(b"<1>2 files:\n3 <a>\n4 b\n") == [b"<1>2 files:", b"3 <a>", b"4 b"]
    assert Framing(100).feed(b"2026 a\n<1>b\n") == [b"2026 a", b"<1>b"]


def test_the_end_of_a_connection() -> None:
    for data, rest in ((b"<1>half", [b"<1>half"]), (b"12 <1>half", []), (b"", []), (b"12", [b"12"])):
        ended = Framing(20)
        assert ended.feed(data) == []
        assert ended.end() == rest


TEXT = b"<13>1 2026-11-28T20:18:36Z vm app - - - started, and a text that is long enough to be packed" * 2
PACKED = b"z" + zlib.compress(TEXT, 9)


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize(
    ("data", "before"),
    [
        (b"%d %s" % (len(PACKED), PACKED), []),
        (b"9 <13>hello%d %s" % (len(PACKED), PACKED), [b"<13>hello"]),
        (b"<13>hello\n%d %s" % (len(PACKED), PACKED), [b"<13>hello"]),
        (zlib.compress(TEXT, 1), []),
        (zlib.compress(TEXT), []),
        (zlib.compress(TEXT, 9), []),
    ],
    ids=["counted", "counted-later", "among-lines", "stream-1", "stream-6", "stream-9"],
)
def test_compressed_messages_break_it_off_with_a_reason(data: bytes, before: list[bytes], size: int) -> None:
    framing = Framing(65_536)
    assert fed(framing, data, [size] * len(data)) == before
    assert framing.broken is not None
    assert "it is compressed (ziplevel or compression.mode" in framing.broken
    assert framing.end() == []


@pytest.mark.parametrize(
    ("data", "reason"), [(b"\x16\x03\x01\x02\x00\x01", "TLS"), (b"\x1f\x8b\x08\x00", "compressed")], ids=["tls", "gzip"]
)
def test_connection_that_begins_with_tls_or_gzip_is_broken_off(data: bytes, reason: str) -> None:
    framing = Framing(100)
    assert framing.feed(data[:1]) == framing.feed(data[1:]) == []
    assert reason in str(framing.broken)


@pytest.mark.parametrize("text", [b"x^2 > y", b"xylophone", b"z", b"zx spectrum", b"5 zxcvb", b"x", b"12 zebras"])
def test_text_that_begins_as_compressed_data_may_is_text(text: bytes) -> None:
    framing = Framing(100)
    assert fed(framing, text + b"\n", []) + framing.end() == [text]
    assert framing.broken is None
