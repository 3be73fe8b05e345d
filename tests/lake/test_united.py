"""Table and stream read as one: each event before a cut once, whatever either has."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest

import nadi
import nadi.lake
from nadi.errors import InvalidArgumentError, InvalidStreamCutError, TruncatedError
from nadi.lake import LakeStoppedError

from .world import a_lake, catch_up, in_stream, places, streams, table_of, write


def test_at_every_cut_it_has_what_the_stream_had_across_splits_merges_and_truncation(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    cuts = manager.cuts(scope, "meters")
    places_at = {}
    head = manager.stream_info(scope, "meters").head
    for step in range(6):
        write(manager, scope, step * 60, step * 60 + 60, wrong=9)
        tail = list(manager.stream_info(scope, "meters").tail.positions)
        if step == 1:
            manager.scale_stream(scope, "meters", tail[:1], [(0.0, 0.1), (0.1, 0.5)])
        elif step == 3:
            manager.scale_stream(scope, "meters", tail, [(0.0, 0.6), (0.6, 1.0)])
        if step in (0, 2, 3):
            catch_up(manager, lake)
    for events in range(0, 361, 40):
        cut = cuts.after(head, events)
        places_at[cut] = in_stream(manager, scope, cut)[0]
    for cut, expected in places_at.items():
        assert places(nadi.lake.union(manager, scope, "meters", at=cut)) == expected
        assert places(nadi.lake.union(manager, scope, "meters", at=cut.as_text())) == expected
    whole = nadi.lake.union(manager, scope, "meters")
    expected = in_stream(manager, scope)[0]
    assert places(whole) == expected
    assert whole.stream_bytes > 0
    write(manager, scope, 360, 400)
    assert places(whole) == expected, "as it was when it was made"
    catch_up(manager, lake)
    manager.truncate_stream(manager.stream_info(scope, "meters").tail)
    for cut, expected in places_at.items():
        assert places(nadi.lake.union(manager, scope, "meters", at=cut)) == expected


def test_cuts_of_one_segment_far_ahead_of_another_are_read_as_they_are(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 70)
    early = manager.stream_info(scope, "meters").tail
    write(manager, scope, 70, 140)
    catch_up(manager, lake)
    write(manager, scope, 140, 210)
    late = manager.stream_info(scope, "meters").tail
    crossed = nadi.StreamCut(scope, "meters", {0: early.positions[0], 1: late.positions[1]})
    assert places(nadi.lake.union(manager, scope, "meters", at=crossed)) == in_stream(manager, scope, crossed)[0]


def test_a_moment_is_found_in_the_stream_or_else_in_the_table(
    manager: nadi.StreamManager, scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams(manager, scope, 1)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 300)
    time.sleep(2.5)  # the index of times is that coarse
    middle = datetime.now(UTC)
    time.sleep(2.5)
    write(manager, scope, 300, 600)
    expected = places(nadi.lake.union(manager, scope, "meters", at=middle))
    assert 0 < len(expected) <= 300
    catch_up(manager, lake)
    assert places(nadi.lake.union(manager, scope, "meters", at=middle)) == expected
    manager.truncate_stream(manager.stream_info(scope, "meters").tail)
    found = places(nadi.lake.union(manager, scope, "meters", at=middle.isoformat()))
    assert found == places(nadi.lake.union(manager, scope, "meters"))[: len(found)]
    assert len(found) <= 300
    past = datetime.now(UTC) - timedelta(days=1)
    assert places(nadi.lake.union(manager, scope, "meters", at=past)) == []


def test_every_engine_has_the_same_answer_while_the_stream_is_written(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    for first in itertools.chain(range(0, 300, 100)):
        write(manager, scope, first, first + 100, wrong=8)
        if first < 200:
            catch_up(manager, lake)
        united = nadi.lake.union(manager, scope, "meters")
        plain: dict[str, int] = {}
        for batch in united.batches():
            for row in batch.to_pylist():
                plain[row["meter"]] = plain.get(row["meter"], 0) + row["wh"]
        write(manager, scope, 1_000 + first, 1_010 + first)
        queried = duckdb.sql("select meter, sum(wh)::long from united group by meter order by meter")
        assert queried is not None
        assert queried.fetchall() == sorted(plain.items())
        summed = polars.DataFrame(united).group_by("meter").agg(polars.col("wh").sum()).sort("meter").rows()
        assert summed == sorted(plain.items())
        arrow = pa.table(united).group_by("meter").aggregate([("wh", "sum")]).sort_by("meter").to_pylist()
        assert [(row["meter"], row["wh_sum"]) for row in arrow] == sorted(plain.items())


def test_columns_are_those_of_both_and_can_be_chosen(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    empty = nadi.lake.union(manager, scope, "meters")
    assert (pa.table(empty).num_rows, empty.schema.names[:2]) == (0, ["meter", "wh"])
    write(manager, scope, 0, 10)
    assert pa.table(nadi.lake.union(manager, scope, "meters", columns=["wh"])).num_rows == 10
    catch_up(manager, lake)
    a_lake(manager, scope, tmp_path, value_schema="meter string, wh long, at timestamp, note string")
    write(manager, scope, 10, 20)
    both = pa.table(nadi.lake.union(manager, scope, "meters", columns=["note", "wh"]))
    assert (both.column_names, sorted(both["wh"].to_pylist()), both["note"].null_count) == (
        ["note", "wh"],
        list(range(20)),
        20,
    )
    with pytest.raises(InvalidArgumentError, match="no column 'none'"):
        nadi.lake.union(manager, scope, "meters", columns=["none"])
    with pytest.raises(InvalidArgumentError, match="'wh' twice"):
        nadi.lake.union(manager, scope, "meters", columns=["wh", "note", "wh"])
    with pytest.raises(InvalidStreamCutError):
        nadi.lake.union(manager, scope, "meters", at=nadi.StreamCut(scope, "dead", {0: 0}))


def test_what_neither_has_is_said(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 10)
    catch_up(manager, lake)
    write(manager, scope, 10, 20)
    manager.truncate_stream(manager.stream_info(scope, "meters").tail)
    with pytest.raises(TruncatedError):
        nadi.lake.union(manager, scope, "meters")
    table_of(lake).catalog.drop_table(lake.table)
    with pytest.raises(LakeStoppedError, match="isn't in the catalog"):
        nadi.lake.union(manager, scope, "meters")


def test_splits_have_each_row_once_wherever_they_are_read(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    for first in range(0, 200, 100):
        write(manager, scope, first, first + 100, wrong=9)
        catch_up(manager, lake)
    write(manager, scope, 200, 250, wrong=9)
    for at in (None, manager.cuts(scope, "meters").after(manager.stream_info(scope, "meters").head, 70)):
        whole = nadi.lake.union(manager, scope, "meters", at=at, columns=["wh", "_offset", "_segment_id"])
        splits = pickle.loads(pickle.dumps(whole.splits(3)))
        assert len(splits) == (2 if at is None else 1)
        assert sorted(place for split in splits for place in places(split)) == in_stream(manager, scope, at)[0]
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
