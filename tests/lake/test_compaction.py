"""Small files are merged in snapshots that keep rows and cut; old snapshots are expired, and unreferenced files
deleted."""

from __future__ import annotations

import pytest

from nadi.lake import LakeDefinition, LakeWriter
from nadi.lake.rows import newest_mark, recorded_segments
from nadi.lake.table.files import commit_files
from nadi.testing import RestartableServer

from .world import Killed, Meters, files_named, in_table, places, table_of


def small(meters: Meters, commits: int = 4, **options: object) -> LakeDefinition:
    lake = meters.lake(**({"partition": "bucket(2, meter)", "compact_files": 3} | options))
    for first in range(0, commits * 30, 30):
        meters.write(first, first + 30, wrong=10)
        meters.catch_up(lake)
    return lake


def test_joined_files_have_the_same_rows_and_the_snapshot_the_same_cut(meters: Meters) -> None:
    lake = small(meters)
    before = table_of(lake)
    assert len(files_named(lake)) == 8
    united = meters.union()
    assert LakeWriter(meters.manager, lake).compact() == 8
    after = table_of(lake)
    assert len(files_named(lake)) == 2
    assert after.current_snapshot().summary.operation.value == "replace"
    assert int(after.current_snapshot().summary["total-records"]) == 108
    assert (newest_mark(after, meters.scope, "meters").cut, recorded_segments(after)) == (  # type: ignore[union-attr]
        newest_mark(before, meters.scope, "meters").cut,  # type: ignore[union-attr]
        recorded_segments(before),
    )
    good, wrong = meters.in_stream()
    assert (places(in_table(lake)), places(united), meters.letter_places()) == (good, good, wrong)
    assert len(before.scan().to_arrow()) == 108, "files of snapshots that are left stay"
    meters.write(200, 220, wrong=10)
    meters.catch_up(lake)
    meters.check(lake)
    assert places(meters.union(at=meters.status().cut)) == meters.in_stream()[0]


def test_old_snapshots_and_their_files_are_deleted(meters: Meters) -> None:
    lake = small(meters, keep_snapshots_s=0)
    middle = meters.after(60)
    expected = meters.in_stream(middle)[0]
    assert LakeWriter(meters.manager, lake).compact() == 8
    assert len(table_of(lake).snapshots()) == 1
    assert meters.files() == files_named(lake)
    meters.manager.truncate_stream(meters.tail)
    assert places(meters.union(at=middle)) == expected


def test_an_earlier_cut_can_be_read_once_the_snapshots_of_its_segments_are_gone(meters: Meters) -> None:
    lake = small(meters, commits=1, keep_snapshots_s=0, compact_files=0)
    meters.scale([0, 1], [(0.0, 0.2), (0.2, 1.0)])
    meters.write(30, 60)
    cut = meters.tail
    expected = meters.in_stream(cut)[0]
    meters.keep_level(lake, range(60, 120, 30))
    table, summaries = table_of(lake), []
    for _ in range(2):
        assert LakeWriter(meters.manager, lake).compact() == 0
        (left,) = table_of(lake).snapshots()
        summaries.append(left.summary.additional_properties)
        assert recorded_segments(table_of(lake)) == recorded_segments(table)
    assert summaries[0] == summaries[1], "each segment is recorded once"
    meters.manager.truncate_stream(meters.tail)
    assert places(meters.union(at=cut)) == expected


def test_rows_that_others_deleted_stay_deleted(meters: Meters) -> None:
    lake = small(meters, partition="")
    table_of(lake).delete("wh < 50")
    assert LakeWriter(meters.manager, lake).compact() > 0
    assert sorted(in_table(lake)["wh"].to_pylist()) == [number for number in range(50, 120) if number % 10]


def test_a_commit_meanwhile_wins_and_a_kill_leaves_nothing(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = small(meters)
    where, commit = "nadi.lake.writer.commit_files", commit_files

    def late(*given: object) -> object:
        monkeypatch.setattr(where, commit)
        meters.write(500, 520)
        meters.catch_up(lake)
        return commit(*given)  # type: ignore[arg-type]

    def never(*given: object) -> object:
        raise Killed

    monkeypatch.setattr(where, late)
    assert LakeWriter(meters.manager, lake).compact() == 0
    monkeypatch.setattr(where, never)
    with pytest.raises(Killed):
        LakeWriter(meters.manager, lake).compact()
    monkeypatch.setattr(where, commit)
    assert meters.files() > files_named(lake)
    meters.write(520, 540)
    meters.catch_up(lake)
    assert meters.files() == files_named(lake)
    meters.check(lake)


def test_running_lake_merges_small_files(nadi_server: RestartableServer, meters: Meters) -> None:
    lake = small(meters)
    meters.run(lake)
    assert len(files_named(lake)) == 2
    lake = meters.lake(partition="bucket(2, meter)", compact_files=0)
    for first in range(300, 400, 20):
        meters.write(first, first + 20)
        meters.run(lake)
    assert len(files_named(lake)) == 12
