"""Stream cuts and their text, and entries of mark streams, in the formats of Pravega's clients."""

from __future__ import annotations

import base64
import gzip
import pickle
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import InvalidStreamCutError, ProtocolError
from nadi.model.streamcut import StreamCut
from nadi.model.watermark import SegmentPosition, Watermark, decode_watermark, encode_watermark
from nadi.naming import segment_id

# `0:sc/st:2,0:1,0:70000,100`, as Java's StreamCut.asText() wrote it.
JAVA_TEXT = "H4sIAAAAAAAA/zOwKk7WLy6xMtIxsDIEYnMDINAxNDAAAHW7kUcZAAAA"
CUT = StreamCut("sc", "st", {segment_id(2, epoch=1): 70_000, 0: 100})


def packed(plain: str) -> str:
    return base64.b64encode(gzip.compress(plain.encode(), mtime=0)).decode()


def test_javas_text_is_read() -> None:
    assert StreamCut.from_text(JAVA_TEXT) == CUT


def test_our_text_is_javas_after_unpacking() -> None:
    assert gzip.decompress(base64.b64decode(CUT.as_text())) == b"0:sc/st:0,2:0,1:100,70000"
    reversed_lists = packed("0:sc/st:2,0:1,0:70000,100")
    assert StreamCut.from_text(reversed_lists).as_text() == CUT.as_text(), "one cut has one text"


cuts = st.builds(
    StreamCut,
    st.from_regex(r"_?[A-Za-z0-9.\-]{1,20}", fullmatch=True),
    st.from_regex(r"_?[A-Za-z0-9.\-]{1,20}", fullmatch=True),
    st.dictionaries(
        st.builds(segment_id, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
        st.integers(-1, 2**63 - 1),
        min_size=1,
        max_size=40,
    ),
)


@given(cuts)
def test_text_and_pickle_read_back(cut: StreamCut) -> None:
    assert StreamCut.from_text(cut.as_text()) == cut
    assert pickle.loads(pickle.dumps(cut)) == cut
    assert hash(StreamCut.from_text(cut.as_text())) == hash(cut)
    assert list(cut.positions) == sorted(cut.positions)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "UNBOUNDED",
        "not base64!",
        JAVA_TEXT[:-8],  # cut short
        base64.b64encode(b"no gzip").decode(),
        packed("1:sc/st:0:0:0"),
        packed("0:sc/st:0,1:0:0"),
        packed("0:sc:0:0:0"),
        packed("0:sc/st/more:0:0:0"),
        packed("0:sc/st:0:0"),
        packed("0:sc/st:zero:0:0"),
        packed("0:sc/st:-1:0:0"),
        packed("0:sc/st:0:-1:0"),
        packed("0:sc/st:0:0:-2"),
        packed(f"0:sc/st:{2**32}:0:0"),
        packed(f"0:sc/st:0:{2**31}:0"),
        packed(f"0:sc/st:0:0:{2**63}"),
        packed("0:sc/st:0,0:0,0:1,2"),
        packed("0:sc/st:1_0:0:0"),
        packed("0:/st:0:0:0"),
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidStreamCutError):
        StreamCut.from_text(text)


@pytest.mark.parametrize("positions", [None, 7, [0], "0=1", {"0": 1}, {0: "1"}, {0: 1.5}, {0: 1 << 63}, {1 << 70: 0}])
def test_cut_with_invalid_positions_is_rejected(positions: Any) -> None:
    with pytest.raises(InvalidStreamCutError):
        StreamCut("sc", "st", positions)


@pytest.mark.parametrize("text", [None, 7, [], {}])
def test_from_text_with_another_type_is_rejected(text: Any) -> None:
    with pytest.raises(InvalidStreamCutError):
        StreamCut.from_text(text)


def test_positions_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        CUT.positions[0] = 5  # type: ignore[index]
    mine = {0: 1}
    cut = StreamCut("sc", "st", mine)
    mine[0] = 2
    assert cut.positions[0] == 1


def test_it_shows_its_segments() -> None:
    assert str(CUT) == "sc/st: 0=100, 4294967298=70000"


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
def test_written_bytes_are_read(watermark: Watermark) -> None:
    assert decode_watermark(encode_watermark(watermark)) == watermark


@pytest.mark.parametrize("count", [0x7F, 0x80, 0x3F, 200, 0x2000])
def test_counts_of_every_length(count: int) -> None:
    cut = tuple(SegmentPosition(i, i / count, (i + 1) / count, i) for i in range(count))
    assert decode_watermark(encode_watermark(Watermark(1, 2, cut))).cut == cut


def test_a_long_count_takes_four_bytes_of_which_two_bits_say_so() -> None:
    data = encode_watermark(Watermark(1, 2, ()))
    longer = data[:4] + struct.pack(">i", 20) + data[8:24] + bytes.fromhex("c0000000")
    assert decode_watermark(longer) == Watermark(1, 2, ())


def test_later_revisions_are_skipped() -> None:
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
