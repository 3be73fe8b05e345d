"""The algebra of key ranges, against single keys; and positions of routing keys, as in Java's client."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.errors import InvalidStreamCutError
from nadi.model.keyspace import equal_ranges, key_position
from nadi.model.segments import SegmentRange, SegmentsByKey, gaps, ids_under, joined, oldest_by_key, share_keys, tiles
from nadi.naming import segment_epoch, segment_id

CELLS = 8
ranges = st.tuples(st.integers(0, CELLS - 1), st.integers(1, CELLS)).filter(lambda r: r[0] < r[1])


@st.composite
def segments(draw: st.DrawFn) -> list[SegmentRange]:
    """Draw segments of several epochs; those of one epoch share no keys."""
    found: list[SegmentRange] = []
    for number, (low, high) in enumerate(draw(st.lists(ranges, max_size=10))):
        piece = SegmentRange(segment_id(number, draw(st.integers(0, 3))), low / CELLS, high / CELLS)
        same = [other for other in found if segment_epoch(other.segment_id) == segment_epoch(piece.segment_id)]
        if not any(share_keys(piece, other) for other in same):
            found.append(piece)
    return found


def cells(piece: SegmentRange) -> set[int]:
    return {cell for cell in range(CELLS) if piece.low <= (cell + 0.5) / CELLS < piece.high}


@given(segments())
def test_gaps_and_oldest_segments(found: list[SegmentRange]) -> None:
    taken = set().union(*map(cells, found)) if found else set()
    assert set().union(*(cells(SegmentRange(0, *gap)) for gap in gaps(found)), taken) == set(range(CELLS))
    assert not any(share_keys(SegmentRange(0, *gap), piece) for gap in gaps(found) for piece in found)
    pieces = oldest_by_key(found)
    for cell in range(CELLS):
        here = [piece.segment_id for piece in found if cell in cells(piece)]
        assert [piece.segment_id for piece in pieces if cell in cells(piece)] == ([min(here)] if here else [])
    for piece in found:
        under = {other.segment_id for other in pieces if cells(other) & cells(piece)}
        assert set(ids_under(pieces, piece)) == under


@given(segments(), st.data())
def test_segments_are_found_by_the_keys_they_share(found: list[SegmentRange], data: st.DataObject) -> None:
    keys = data.draw(st.none() | st.lists(st.integers(0, CELLS - 1), unique=True))
    wanted = set(range(CELLS)) if keys is None else set(keys)
    index = SegmentsByKey(found, None if keys is None else sorted((cell + 0.5) / CELLS for cell in keys))
    gone = data.draw(st.sets(st.sampled_from(found))) if found else set()
    for piece in gone:
        index.remove(piece)
    left = [piece for piece in found if piece not in gone]
    for piece in found:
        epoch = segment_epoch(piece.segment_id)
        sharing = [other for other in left if cells(other) & cells(piece) & wanted]
        older = {other for other in sharing if segment_epoch(other.segment_id) < epoch}
        newer = {other for other in sharing if segment_epoch(other.segment_id) > epoch}
        assert (set(index.older(piece)), set(index.newer(piece))) == (older, newer)
        assert index.is_oldest(piece) == (not older)


def test_an_epoch_has_each_key_once() -> None:
    index = SegmentsByKey([SegmentRange(1, 0.25, 0.5)])
    for low, high in ((0.0, 0.3), (0.4, 0.6), (0.3, 0.4), (0.0, 1.0), (0.25, 0.5)):
        with pytest.raises(InvalidStreamCutError):
            index.add(SegmentRange(2, low, high))
    index.add(SegmentRange(2, 0.5, 1.0))
    index.add(SegmentRange(3, 0.0, 0.25))


def test_neighbours_share_no_key_and_tile() -> None:
    left, right = SegmentRange(0, 0.0, 0.5), SegmentRange(1, 0.5, 1.0)
    assert not share_keys(left, right)
    assert share_keys(left, SegmentRange(2, 0.4, 0.6))
    assert tiles([left, right])
    assert not tiles([right, left])
    assert not tiles([left, SegmentRange(1, 0.4, 1.0)])
    assert joined([(0.5, 1.0), (0.1, 0.2), (0.2, 0.3)]) == [(0.1, 0.3), (0.5, 1.0)]


class LookedAt(Sequence[SegmentRange]):
    """Pieces that count accesses."""

    def __init__(self, pieces: list[SegmentRange]) -> None:
        self.pieces, self.looks = pieces, 0

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return self.pieces[at]


def test_segments_without_shared_keys_are_not_visited() -> None:
    """A cut of ten thousand segments is compared piece by piece; comparing each with all others takes half a second."""
    size = 1000
    pieces = LookedAt([SegmentRange(i, i / size, (i + 1) / size) for i in range(size)])
    for i in range(size):
        assert list(ids_under(pieces, pieces.pieces[i])) == [i]
    assert pieces.looks < size * 2 * size.bit_length()


POSITIONS = {
    "": 0.24117842791623523,
    "a": 0.9433912753816884,
    "hello": 0.658716230571337,
    "key0": 0.37155562929548913,
    "routing-key": 0.7829314629288311,
    "é": 0.6688272069632242,
    "日本": 0.34924442974855974,
}


@pytest.mark.parametrize(("key", "position"), POSITIONS.items())
def test_known_positions(key: str, position: float) -> None:
    assert key_position(key) == position


@given(st.text() | st.text(st.characters(categories=["Cs"])))
def test_every_key_has_a_place(key: str) -> None:
    assert 0 <= key_position(key) < 1


@given(st.integers(1, 300), st.floats(0, 0.49), st.floats(0.5, 1))
def test_equal_ranges_tile(count: int, low: float, high: float) -> None:
    ranges = equal_ranges(count, low, high)
    assert len(ranges) == count
    assert (ranges[0][0], ranges[-1][1]) == (low, high)
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert all(start < end for start, end in ranges)
