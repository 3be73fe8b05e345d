"""Entries of mark streams: their bytes, as Pravega's clients write and read them."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import ProtocolError
from nadi.model.watermark import SegmentPosition, Watermark, decode_watermark, encode_watermark

# by hand from the format: header and length, the two times, the count, then header, id, range and offset of each
GOLDEN = bytes.fromhex(
    "00000100 00000061"
    "00000000000003e8 ffffffffffffffff 02"
    "00000100 00000018 0000000000000002 0000000000000000 3fe0000000000000 0000000000000007"
    "00000100 00000018 0000000100000003 3fe0000000000000 3ff0000000000000 0000000100000000"
)
WATERMARK = Watermark(1000, -1, (SegmentPosition(2, 0.0, 0.5, 7), SegmentPosition((1 << 32) | 3, 0.5, 1.0, 1 << 32)))

i64 = st.integers(-(1 << 63), (1 << 63) - 1)
positions = st.builds(SegmentPosition, i64, st.floats(0, 1), st.floats(0, 1), i64)
floors = st.dictionaries(i64, i64, max_size=200)
watermarks = st.builds(Watermark, i64, i64, st.lists(positions, max_size=200).map(tuple), floors)


def test_an_entry_has_these_bytes() -> None:
    assert encode_watermark(WATERMARK) == GOLDEN
    assert decode_watermark(GOLDEN) == WATERMARK


def test_a_floor_is_a_revision_of_its_own_at_the_end() -> None:
    more = GOLDEN[:2] + b"\x02" + GOLDEN[3:] + bytes.fromhex("64 00000010 0000000000000002 0000000000000005")
    assert encode_watermark(replace(WATERMARK, floor={2: 5})) == more


@given(watermarks)
def test_what_is_written_is_read(watermark: Watermark) -> None:
    assert decode_watermark(encode_watermark(watermark)) == watermark


@pytest.mark.parametrize("count", [0x7F, 0x80, 0x3F, 200, 0x2000])
def test_counts_of_every_length(count: int) -> None:
    cut = tuple(SegmentPosition(i, i / count, (i + 1) / count, i) for i in range(count))
    assert decode_watermark(encode_watermark(Watermark(1, 2, cut))).cut == cut


def test_a_long_count_takes_four_bytes_of_which_two_bits_say_so() -> None:
    data = encode_watermark(Watermark(1, 2, ()))
    longer = data[:4] + struct.pack(">i", 20) + data[8:24] + bytes.fromhex("c0000000")
    assert decode_watermark(longer) == Watermark(1, 2, ())


def test_what_later_versions_add_is_passed_over() -> None:
    more = GOLDEN[:2] + b"\x02" + GOLDEN[3:] + struct.pack(">bi", 1, 3) + b"abc"
    assert decode_watermark(more) == WATERMARK
    (length,) = struct.unpack_from(">i", GOLDEN, 4)
    assert decode_watermark(GOLDEN[:4] + struct.pack(">i", length + 2) + GOLDEN[8:] + b"xx") == WATERMARK


@given(st.integers(0, len(GOLDEN) - 1))
def test_half_an_entry_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        decode_watermark(GOLDEN[:size])


@pytest.mark.parametrize(
    "wrong", [b"\x01" + GOLDEN[1:], b"\x00\x01" + GOLDEN[2:], GOLDEN[:2] + b"\x00" + GOLDEN[3:], b"text of no entry"]
)
def test_other_bytes_are_refused(wrong: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_watermark(wrong)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_entry_or_refused(data: bytes) -> None:
    try:
        decode_watermark(data)
    except ProtocolError:
        pass
