"""Stream cuts and their text, which Pravega's clients write and read too."""

import base64
import gzip
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import InvalidStreamCutError
from nadi.model.streamcut import StreamCut
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
def test_cut_of_positions_that_are_no_offsets_is_refused(positions: Any) -> None:
    with pytest.raises(InvalidStreamCutError, match="positions are offsets by segment id"):
        StreamCut("sc", "st", positions)


@pytest.mark.parametrize("text", [None, 7, [], {}])
def test_cut_from_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(InvalidStreamCutError, match="is not the text of a stream cut"):
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
