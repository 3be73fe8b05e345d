"""Small files are joined in snapshots that keep rows and cut; old snapshots go, and with them files that none is left
to name."""

from __future__ import annotations

from pathlib import Path

import pytest

import nadi
import nadi.lake
from nadi.lake import LakeDefinition, LakeWriter
from nadi.lake.marks import newest_mark, segments_told
from nadi.lake.table.files import commit_files
from nadi.testing import RestartableServer

from .test_kills import Killed
from .world import (
    a_lake,
    catch_up,
    files_in,
    files_named,
    in_stream,
    in_table,
    letter_places,
    places,
    streams,
    table_of,
    write,
)


def small(manager: nadi.StreamManager, scope: str, folder: Path, commits: int = 4, **options: object) -> LakeDefinition:
    streams(manager, scope)
    lake = a_lake(manager, scope, folder, **({"partition": "bucket(2, meter)", "compact_files": 3} | options))
    for first in range(0, commits * 30, 30):
        write(manager, scope, first, first + 30, wrong=10)
        catch_up(manager, lake)
    return lake


def test_joined_files_have_the_same_rows_and_the_snapshot_the_same_cut(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    lake = small(manager, scope, tmp_path)
    before = table_of(lake)
    assert len(files_named(lake)) == 8
    united = nadi.lake.union(manager, scope, "meters")
    assert LakeWriter(manager, lake).compact() == 8
    after = table_of(lake)
    assert len(files_named(lake)) == 2
    assert after.current_snapshot().summary.operation.value == "replace"
    assert int(after.current_snapshot().summary["total-records"]) == 108
    assert (newest_mark(after, scope, "meters").cut, segments_told(after)) == (  # type: ignore[union-attr]
        newest_mark(before, scope, "meters").cut,  # type: ignore[union-attr]
        segments_told(before),
    )
    good, wrong = in_stream(manager, scope)
    assert (places(in_table(lake)), places(united), letter_places(manager, scope)) == (good, good, wrong)
    assert len(before.scan().to_arrow()) == 108, "files of snapshots that are left stay"
    write(manager, scope, 200, 220, wrong=10)
    catch_up(manager, lake)
    good, wrong = in_stream(manager, scope)
    assert (places(in_table(lake)), letter_places(manager, scope)) == (good, wrong)
    assert places(nadi.lake.union(manager, scope, "meters", at=nadi.lake.status(manager, scope, lake.name).cut)) == good


def test_old_snapshots_go_and_what_only_they_named(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    lake = small(manager, scope, tmp_path, keep_snapshots_s=0)
    middle = manager.cuts(scope, "meters").after(manager.stream_info(scope, "meters").head, 60)
    expected = in_stream(manager, scope, middle)[0]
    assert LakeWriter(manager, lake).compact() == 8
    assert len(table_of(lake).snapshots()) == 1
    assert files_in(tmp_path) == files_named(lake)
    manager.truncate_stream(manager.stream_info(scope, "meters").tail)
    assert places(nadi.lake.union(manager, scope, "meters", at=middle)) == expected


def test_an_earlier_cut_can_be_read_once_the_snapshots_of_its_segments_are_gone(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    lake = small(manager, scope, tmp_path, commits=1, keep_snapshots_s=0, compact_files=0)
    manager.scale_stream(scope, "meters", [0, 1], [(0.0, 0.2), (0.2, 1.0)])
    write(manager, scope, 30, 60)
    cut = manager.stream_info(scope, "meters").tail
    expected = in_stream(manager, scope, cut)[0]
    for first in range(60, 120, 30):
        write(manager, scope, first, first + 30)
        catch_up(manager, lake)
    table, summaries = table_of(lake), []
    for _ in range(2):
        assert LakeWriter(manager, lake).compact() == 0
        (left,) = table_of(lake).snapshots()
        summaries.append(left.summary.additional_properties)
        assert segments_told(table_of(lake)) == segments_told(table)
    assert summaries[0] == summaries[1], "what is told is told once"
    manager.truncate_stream(manager.stream_info(scope, "meters").tail)
    assert places(nadi.lake.union(manager, scope, "meters", at=cut)) == expected


def test_rows_that_others_deleted_stay_deleted(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    lake = small(manager, scope, tmp_path, partition="")
    table_of(lake).delete("wh < 50")
    assert LakeWriter(manager, lake).compact() > 0
    assert sorted(in_table(lake)["wh"].to_pylist()) == [number for number in range(50, 120) if number % 10]


def test_a_commit_meanwhile_wins_and_a_kill_leaves_nothing(
    manager: nadi.StreamManager, scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = small(manager, scope, tmp_path)
    where, commit = "nadi.lake.writer.commit_files", commit_files

    def late(*given: object) -> object:
        monkeypatch.setattr(where, commit)
        write(manager, scope, 500, 520)
        catch_up(manager, lake)
        return commit(*given)  # type: ignore[arg-type]

    def never(*given: object) -> object:
        raise Killed

    monkeypatch.setattr(where, late)
    assert LakeWriter(manager, lake).compact() == 0
    monkeypatch.setattr(where, never)
    with pytest.raises(Killed):
        LakeWriter(manager, lake).compact()
    monkeypatch.setattr(where, commit)
    assert files_in(tmp_path) > files_named(lake)
    write(manager, scope, 520, 540)
    catch_up(manager, lake)
    assert files_in(tmp_path) == files_named(lake)
    good, wrong = in_stream(manager, scope)
    assert (places(in_table(lake)), letter_places(manager, scope)) == (good, wrong)


def test_a_running_lake_joins_them_by_itself(
    nadi_server: RestartableServer, manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    lake = small(manager, scope, tmp_path)
    nadi.lake.run(manager, lake, once=True)
    assert len(files_named(lake)) == 2
    lake = a_lake(manager, scope, tmp_path, partition="bucket(2, meter)", compact_files=0)
    for first in range(300, 400, 20):
        write(manager, scope, first, first + 20)
        nadi.lake.run(manager, lake, once=True)
    assert len(files_named(lake)) == 12
