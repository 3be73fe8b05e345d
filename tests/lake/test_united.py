"""Table and stream read as one: each event before a cut once."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import duckdb
import polars
import pyarrow as pa
import pytest

import nadi
import nadi.lake
from nadi.errors import InvalidArgumentError, InvalidStreamCutError, TruncatedError
from nadi.lake import LakeStoppedError

from .world import Meters, places, table_of


def test_union_at_any_cut_equals_the_stream(meters: Meters) -> None:
    lake = meters.lake()
    cuts = meters.manager.cuts(meters.scope, "meters")
    places_at = {}
    head = meters.manager.stream_info(meters.scope, "meters").head
    for step in range(6):
        meters.write(step * 60, step * 60 + 60, wrong=9)
        tail = list(meters.tail.positions)
        if step == 1:
            meters.scale(tail[:1], [(0.0, 0.1), (0.1, 0.5)])
        elif step == 3:
            meters.scale(tail, [(0.0, 0.6), (0.6, 1.0)])
        if step in (0, 2, 3):
            meters.catch_up(lake)
    for events in range(0, 361, 72):
        cut = cuts.after(head, events)
        places_at[cut] = meters.in_stream(cut)[0]
    for cut, expected in places_at.items():
        assert places(meters.union(at=cut.as_text())) == expected
    whole = meters.union()
    expected = meters.in_stream()[0]
    assert places(whole) == expected
    assert whole.stream_bytes > 0
    meters.write(360, 400)
    assert places(whole) == expected, "as it was when it was made"
    meters.catch_up(lake)
    meters.manager.truncate_stream(meters.tail)
    for cut, expected in places_at.items():
        assert places(meters.union(at=cut)) == expected


def test_union_at_uneven_cuts_equals_the_stream(meters: Meters) -> None:
    lake = meters.lake()
    meters.write(0, 70)
    early = meters.tail
    meters.write(70, 140)
    meters.catch_up(lake)
    meters.write(140, 210)
    late = meters.tail
    crossed = nadi.StreamCut(meters.scope, "meters", {0: early.positions[0], 1: late.positions[1]})
    assert places(meters.union(at=crossed)) == meters.in_stream(crossed)[0]


@pytest.mark.parametrize("meters", [1], indirect=True)
def test_a_moment_is_found_in_the_stream_or_else_in_the_table(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = meters.lake()
    meters.write(0, 300)
    time.sleep(2.5)  # the time index is that coarse
    middle = datetime.now(UTC)
    time.sleep(2.5)
    meters.write(300, 600)
    expected = places(meters.union(at=middle))
    assert 0 < len(expected) <= 300
    meters.catch_up(lake)
    assert places(meters.union(at=middle)) == expected
    meters.manager.truncate_stream(meters.tail)
    found = places(meters.union(at=middle.isoformat()))
    assert found == places(meters.union())[: len(found)]
    assert len(found) <= 300
    past = datetime.now(UTC) - timedelta(days=1)
    assert places(meters.union(at=past)) == []


def test_every_engine_has_the_same_answer_while_the_stream_is_written(meters: Meters) -> None:
    lake = meters.lake()
    for first in itertools.chain(range(0, 300, 100)):
        meters.write(first, first + 100, wrong=8)
        if first < 200:
            meters.catch_up(lake)
        united = meters.union()
        plain: dict[str, int] = {}
        for batch in united.batches():
            for row in batch.to_pylist():
                plain[row["meter"]] = plain.get(row["meter"], 0) + row["wh"]
        meters.write(1_000 + first, 1_010 + first)
        queried = duckdb.sql("select meter, sum(wh)::long from united group by meter order by meter")
        assert queried is not None
        assert queried.fetchall() == sorted(plain.items())
        summed = polars.DataFrame(united).group_by("meter").agg(polars.col("wh").sum()).sort("meter").rows()
        assert summed == sorted(plain.items())
        arrow = pa.table(united).group_by("meter").aggregate([("wh", "sum")]).sort_by("meter").to_pylist()
        assert [(row["meter"], row["wh_sum"]) for row in arrow] == sorted(plain.items())


def test_columns_are_those_of_both_and_can_be_chosen(meters: Meters) -> None:
    lake = meters.lake()
    empty = meters.union()
    assert (pa.table(empty).num_rows, empty.schema.names[:2]) == (0, ["meter", "wh"])
    meters.write(0, 10)
    assert pa.table(meters.union(columns=["wh"])).num_rows == 10
    meters.catch_up(lake)
    meters.lake(value_schema="meter string, wh long, at timestamp, note string")
    meters.write(10, 20)
    both = pa.table(meters.union(columns=["note", "wh"]))
    assert (both.column_names, sorted(both["wh"].to_pylist()), both["note"].null_count) == (
        ["note", "wh"],
        list(range(20)),
        20,
    )
    with pytest.raises(InvalidArgumentError, match="'none'"):
        meters.union(columns=["none"])
    with pytest.raises(InvalidArgumentError, match="'wh'"):
        meters.union(columns=["wh", "note", "wh"])
    with pytest.raises(InvalidStreamCutError):
        meters.union(at=nadi.StreamCut(meters.scope, "dead", {0: 0}))


def test_union_of_lost_events_fails(meters: Meters) -> None:
    lake = meters.filled(0, 10)
    meters.write(10, 20)
    meters.manager.truncate_stream(meters.tail)
    with pytest.raises(TruncatedError):
        meters.union()
    table_of(lake).catalog.drop_table(lake.table)
    with pytest.raises(LakeStoppedError):
        meters.union()


def test_splits_have_each_row_once_wherever_they_are_read(meters: Meters) -> None:
    lake = meters.lake()
    meters.keep_level(lake, range(0, 200, 100), wrong=9)
    meters.write(200, 250, wrong=9)
    for at in (None, meters.after(70)):
        whole = meters.union(at=at, columns=["wh", "_offset", "_segment_id"])
        splits = pickle.loads(pickle.dumps(whole.splits(3)))
        assert len(splits) == (2 if at is None else 1)
        assert sorted(place for split in splits for place in places(split)) == meters.in_stream(at)[0]
    counted = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pickle as p, pyarrow as a; print(*(a.table(s).num_rows for s in p.load(sys.stdin.buffer)))",
        ],
        input=pickle.dumps(splits),
        capture_output=True,
        check=True,
    )
    assert sum(map(int, counted.stdout.split())) == len(places(whole))
