"""Rows of a key are sorted in the order of their stream, in any frames."""

import random

import pandas as pd
import pytest
from pyspark.sql import Row

from nadi.errors import InvalidArgumentError
from nadi.spark import in_order

OLD, NEW = 1, (1 << 32) + 3  # a segment, and one of those that replaced it


def frame(*places: tuple[int, int], **more: str) -> pd.DataFrame:
    return pd.DataFrame([{"segment_id": segment, "offset": offset, **more} for segment, offset in places])


def test_segments_by_age_and_a_segment_by_offset() -> None:
    places = [(OLD, 0), (OLD, 90), (OLD, 1000), (NEW, 0), (NEW, 8)]
    shuffled = random.Random(3).sample(places, len(places))
    frames = [frame(*shuffled[:2]), frame(*shuffled[2:])]
    assert [(row.segment_id, row.offset) for row in in_order(frames)] == places
    assert [(row.segment_id, row.offset) for row in in_order(iter(frames))] == places
    assert [(row.segment_id, row.offset) for row in in_order(frame(*shuffled))] == places
    rows = (Row(segment_id=segment, offset=offset) for segment, offset in shuffled)
    assert [(row.segment_id, row.offset) for row in in_order(rows)] == places


def test_one_stream_after_the_other() -> None:
    frames = [frame((NEW, 5), stream="b"), frame((NEW, 9), (OLD, 7), stream="a")]
    assert [(row.stream, row.offset) for row in in_order(frames)] == [("a", 7), ("a", 9), ("b", 5)]


def test_empty_input_is_sorted() -> None:
    assert list(in_order([])) == []
    assert list(in_order(frame().reindex(columns=["segment_id", "offset"]))) == []


@pytest.mark.parametrize("missing", ["segment_id", "offset"])
def test_missing_column_is_rejected_by_name(missing: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'{missing}'"):
        in_order(frame((OLD, 0)).drop(columns=[missing]))
    with pytest.raises(InvalidArgumentError, match=f"'{missing}'"):
        in_order([Row(**{name: 0 for name in ("segment_id", "offset") if name != missing})])
