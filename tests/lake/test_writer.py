"""A lake's table has each event of its stream once, up to the cut in its newest snapshot."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nadi
import nadi.lake
from nadi.client import RetentionPolicy
from nadi.client.serializers import Struct
from nadi.errors import ConflictError, InvalidArgumentError, NotFoundError, StreamNotFoundError, UnavailableError
from nadi.lake import LakeDefinition, LakeStoppedError, LakeWriter
from nadi.lake.marks import CUT, newest_mark
from nadi.testing import RestartableServer
from tests.support.waiting import until

from .world import (
    NO_JSON,
    a_lake,
    catalog_in,
    catch_up,
    files_in,
    files_named,
    in_stream,
    in_table,
    letter_places,
    letters,
    places,
    streams,
    table_of,
    write,
)


def test_the_table_has_each_event_once_and_the_others_are_letters(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    assert catch_up(manager, lake) == 0
    for first in (0, 300):
        write(manager, scope, first, first + 300, wrong=10)
        assert catch_up(manager, lake) == 1
    good, wrong = in_stream(manager, scope)
    found = in_table(lake)
    assert places(found) == good
    assert sorted(found["wh"].to_pylist()) == [number for number in range(600) if number % 10]
    assert letter_places(manager, scope) == wrong
    letter = letters(manager, scope)[0]
    assert letter.data is not None
    assert (letter.data.startswith(NO_JSON), letter.by) == (True, "lake meters-lake")
    assert "malformed" in letter.reason or "UTF-8" in letter.reason
    cut = manager.stream_info(scope, "meters").tail
    assert table_of(lake).current_snapshot().summary.additional_properties[CUT] == cut.as_text()
    state = nadi.lake.status(manager, scope, lake.name)
    assert (state.cut, state.behind_bytes, state.rows, state.letters) == (cut, 0, 540, 60)


def test_each_partition_has_its_rows_wherever_others_look_for_them(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 210)
    catch_up(manager, lake)
    table = table_of(lake)
    for meter in range(7):  # which PyIceberg answers by buckets, so they must be those that it means
        found = table.scan(row_filter=f"meter == 'm{meter}'").to_arrow()
        assert sorted(found["wh"].to_pylist()) == list(range(meter, 210, 7))
    days = table.scan(row_filter="at < '2026-11-02T00:00:00+00:00'")
    assert sorted(days.to_arrow()["wh"].to_pylist()) == list(range(0, 210, 3))
    assert len(list(days.plan_files())) < len(list(table.scan().plan_files()))


def test_commits_end_at_legal_cuts_when_there_is_much_across_splits_and_merges(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    for first in range(0, 80_000, 20_000):
        write(manager, scope, first, first + 20_000, wrong=1_000)
        if first == 0:
            manager.scale_stream(scope, "meters", [0], [(0.0, 0.2), (0.2, 0.5)])
        elif first == 20_000:
            active = list(manager.stream_info(scope, "meters").tail.positions)
            manager.scale_stream(scope, "meters", active, [(0.0, 0.6), (0.6, 1.0)])
    lake = a_lake(manager, scope, tmp_path, commit_bytes=1 << 20, partition="")
    assert catch_up(manager, lake) > 3
    good, wrong = in_stream(manager, scope)
    assert (places(in_table(lake)), letter_places(manager, scope)) == (good, wrong)
    for snapshot in table_of(lake).snapshots():
        cut = nadi.StreamCut.from_text(snapshot.summary.additional_properties[CUT])
        manager.cuts(scope, "meters").check(cut)


def test_without_a_stream_for_letters_the_lake_stops_at_its_cut(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path, dead_letters=None)
    write(manager, scope, 1, 10)
    catch_up(manager, lake)
    cut = nadi.lake.status(manager, scope, lake.name).cut
    write(manager, scope, 10, 30, wrong=20)
    with pytest.raises(LakeStoppedError, match=r"--dead-letter STREAM"):
        nadi.lake.run(manager, lake, once=True)
    state = nadi.lake.status(manager, scope, lake.name)
    assert (state.cut, state.rows) == (cut, 9)
    assert "can't be read as json" in state.trouble
    assert files_in(tmp_path) == files_named(lake)
    lake = a_lake(manager, scope, tmp_path)  # now with one
    nadi.lake.run(manager, lake, once=True)
    assert places(in_table(lake)) == in_stream(manager, scope)[0]


def test_the_table_grows_with_the_schema_and_stops_where_it_cannot(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 20)
    catch_up(manager, lake)
    lake = a_lake(
        manager, scope, tmp_path, value_schema="note string, wh double, meter string, at timestamp, more struct<a: int>"
    )
    write(manager, scope, 20, 40)
    with pytest.raises(LakeStoppedError, match="start another lake"):
        nadi.lake.run(manager, lake, once=True)
    lake = a_lake(
        manager,
        scope,
        tmp_path,
        value_schema="note string, wh long, meter string, more struct<a: int, b: array<string>>",
    )
    with manager.create_writer(scope, "meters") as writer:
        writer.write_event(b'{"note": "new", "wh": 40, "meter": "m1", "more": {"a": 1, "b": ["x"]}}', "m1")
        writer.write_event(b'{"note": "old", "wh": 41, "meter": "m1"}', "m1")
    catch_up(manager, lake)
    found = {row["wh"]: row for row in in_table(lake).to_pylist()}
    assert len(found) == 42
    assert found[40]["more"] == {"a": 1, "b": ["x"]}
    assert (found[41]["more"], found[41]["note"], found[41]["at"], found[3]["note"]) == (None, "old", None, None)
    assert (places(in_table(lake)), letters(manager, scope)) == (in_stream(manager, scope)[0], [])


def test_a_schema_of_the_store_is_followed_by_its_versions(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    import msgspec

    streams(manager, scope)
    old = msgspec.defstruct("Reading", [("meter", str), ("wh", int)])
    new = msgspec.defstruct("Reading", [("meter", str), ("wh", int), ("volts", float | None, None)])
    with manager.create_writer(scope, "meters", serializer=Struct(old)) as one:
        one.write_event(old("hall", 1), "hall")
    lake = a_lake(manager, scope, tmp_path, value_schema=None, partition="meter")
    catch_up(manager, lake)
    with manager.create_writer(scope, "meters", serializer=Struct(new)) as other:
        other.write_event(new("hall", 2, 230.5), "hall")
    catch_up(manager, lake)
    rows = sorted((row["wh"], row["volts"]) for row in in_table(lake).to_pylist())
    assert rows == [(1, None), (2, 230.5)]


def test_of_two_writers_one_loses_and_goes_on_from_the_others_cut(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 100, wrong=10)
    others: list[int] = []

    def meanwhile(step: str) -> None:
        if step == "written" and not others:
            others.append(catch_up(manager, lake))

    slow = LakeWriter(manager, lake, step=meanwhile)
    lost = slow.commit()
    assert lost is not None
    assert (lost.rows, others) == (0, [1])
    write(manager, scope, 100, 150, wrong=10)
    done = slow.commit()
    assert done is not None
    assert done.rows == 45
    assert slow.commit() is None
    good, wrong = in_stream(manager, scope)
    assert (places(in_table(lake)), letter_places(manager, scope)) == (good, wrong)
    assert files_in(tmp_path) == files_named(lake)


def test_many_writers_at_once_are_one(
    nadi_server: RestartableServer, manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path, partition="")
    stopping, failures = threading.Event(), list[BaseException]()

    def writing() -> None:
        try:
            with nadi.StreamManager(nadi_server.controller_uri) as own:
                nadi.lake.run(own, lake, stopping=stopping)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=writing) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for first in range(0, 500, 50):
            write(manager, scope, first, first + 50, wrong=9)
        tail = manager.stream_info(scope, "meters").tail
        until(lambda: failures or nadi.lake.status(manager, scope, lake.name).cut == tail)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert failures == []
    catch_up(manager, lake)
    good, wrong = in_stream(manager, scope)
    assert (places(in_table(lake)), letter_places(manager, scope)) == (good, wrong)
    write(manager, scope, 500, 501)
    catch_up(manager, lake)  # it sweeps behind its first commit
    assert files_in(tmp_path) == files_named(lake)


def test_retention_waits_for_the_table_and_the_union_has_what_it_took(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope, 1)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 1, 101)
    manager.update_stream(scope, "meters", retention=RetentionPolicy.by_size(1))
    (held,) = manager.kept(scope, "meters").held_by
    assert (held.kind, held.name) == ("subscriber", f"{scope}/{lake.name}")
    catch_up(manager, lake)
    assert manager.kept(scope, "meters").held_by == ()
    manager.truncate_stream(manager.stream_info(scope, "meters").tail)
    write(manager, scope, 101, 151)
    assert sorted(pa.table(nadi.lake.union(manager, scope, "meters"))["wh"].to_pylist()) == list(range(1, 151))


def test_a_stream_that_was_truncated_behind_the_table_stops_no_writer_that_begins_then(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 50, wrong=5)
    catch_up(manager, lake)
    wrong = in_stream(manager, scope)[1]
    manager.truncate_stream(manager.stream_info(scope, "meters").tail)
    manager.scale_stream(scope, "dead", [0, 1], [(0.0, 0.3), (0.3, 1.0)])  # with what is known of the letters
    write(manager, scope, 50, 100)
    catch_up(manager, lake)
    assert (len(in_table(lake)), letter_places(manager, scope)) == (90, wrong)


def test_what_was_truncated_before_it_was_in_the_table_stops_the_lake_unless_it_may_be_skipped(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 50)
    catch_up(manager, lake)
    write(manager, scope, 50, 100)
    manager.truncate_stream(manager.stream_info(scope, "meters").tail)
    write(manager, scope, 100, 150)
    with pytest.raises(LakeStoppedError, match="--skip-truncated"):
        nadi.lake.run(manager, lake, once=True)
    lake = a_lake(manager, scope, tmp_path, skip_truncated=True)
    nadi.lake.run(manager, lake, once=True)
    assert sorted(in_table(lake)["wh"].to_pylist()) == [*range(50), *range(100, 150)]


def test_a_catalog_that_is_away_is_waited_for(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 50)
    catch_up(manager, lake)
    catalog, away = tmp_path / "catalog.db", tmp_path / "away"
    catalog.rename(away)
    catalog.symlink_to(tmp_path)  # a folder, so that nobody makes a new one
    write(manager, scope, 50, 80)
    stopping = threading.Event()
    thread = threading.Thread(target=nadi.lake.run, args=(manager, lake), kwargs={"stopping": stopping})
    thread.start()
    try:
        until(lambda: _states(manager, scope, lake) == ["waiting"])
        assert "catalog" in nadi.lake.status(manager, scope, lake.name).trouble
        away.replace(catalog)  # at once: between two steps the writer would make a new one
        until(lambda: nadi.lake.status(manager, scope, lake.name).behind_bytes == 0)
        nadi.lake.stop(manager, scope, lake.name)
        thread.join(60)
        assert not thread.is_alive()
    finally:
        stopping.set()
        thread.join()
    assert places(in_table(lake)) == in_stream(manager, scope)[0]


def _states(manager: nadi.StreamManager, scope: str, lake: LakeDefinition) -> list[str]:
    return [one.state for one in nadi.lake.status(manager, scope, lake.name).writers]


def test_a_table_of_others_and_one_that_is_gone_are_refused(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    manager.create_stream(scope, "other", 1)
    lake = a_lake(manager, scope, tmp_path)
    write(manager, scope, 0, 10)
    catch_up(manager, lake)
    other = nadi.lake.start(manager, scope, "other", table=lake.table, catalog=lake.catalog)
    with pytest.raises(LakeStoppedError, match="a table of its own"):
        nadi.lake.run(manager, other, once=True)
    table_of(lake).catalog.drop_table(lake.table)
    write(manager, scope, 10, 20)
    with pytest.raises(LakeStoppedError, match="isn't in the catalog any more"):
        nadi.lake.run(manager, lake, once=True)
    nadi.lake.forget(manager, scope, lake.name)
    lake = a_lake(manager, scope, tmp_path)
    catch_up(manager, lake)
    assert len(in_table(lake)) == 20


def test_a_foreign_snapshot_between_ours_changes_nothing(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path, partition="")
    write(manager, scope, 0, 30)
    catch_up(manager, lake)
    table_of(lake).delete("wh < 10")
    mark = newest_mark(table_of(lake), scope, "meters")
    assert mark is not None
    write(manager, scope, 30, 40)
    catch_up(manager, lake)
    assert sorted(in_table(lake)["wh"].to_pylist()) == list(range(10, 40))


def test_bytes_are_rows_where_nothing_is_said_of_values(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    write(manager, scope, 0, 20, wrong=3)
    lake = nadi.lake.start(manager, scope, "meters", name="raw", table="raw.meters", catalog=catalog_in(tmp_path))
    catch_up(manager, lake)
    good, wrong = in_stream(manager, scope)
    assert places(in_table(lake)) == sorted(good + wrong)
    assert in_table(lake)["event"].null_count == 0


def test_what_cannot_be_meant_is_refused(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    streams(manager, scope)
    refused: dict[str, dict[str, Any]] = {
        "say its catalog": {"catalog": {}},
        "name a variable": {"catalog": {"type": "rest", "uri": "http://x", "token": "abc"}},
        "with its namespace": {"table": "meters"},
        "with its namespace, as home.meters, not 'home..meters'": {"table": "home..meters"},
        "is no partition": {"partition": "week(at)"},
        "the lake's own": {"dead_letters": "meters"},
        "no effect without": {"value_format": None, "value_schema": "wh long"},
        "every_s is from 0.05 to": {"every_s": 0},
    }
    for match, options in refused.items():
        with pytest.raises(InvalidArgumentError, match=match):
            a_lake(manager, scope, tmp_path, **options)
    with pytest.raises(StreamNotFoundError):
        nadi.lake.start(manager, scope, "none", table="a.b", catalog=catalog_in(tmp_path))
    with pytest.raises(NotFoundError, match="nadi lake list"):
        nadi.lake.status(manager, scope, "none")
    lake = a_lake(manager, scope, tmp_path)
    catch_up(manager, lake)
    with pytest.raises(InvalidArgumentError, match="another lake"):
        a_lake(manager, scope, tmp_path, partition="meter")
    with pytest.raises(InvalidArgumentError, match="one of stream meters, not of dead"):
        nadi.lake.start(manager, scope, "dead", name=lake.name)
    with pytest.raises(ConflictError, match="retention"):
        a_lake(manager, scope, tmp_path, holds_back=False)
    with pytest.raises(InvalidArgumentError, match="column 'meter' is string, and day doesn't take that"):
        a_lake(manager, scope, tmp_path, name="by-day", table="by.day", partition="day(meter)")
    with pytest.raises(InvalidArgumentError, match="isn't set"):
        LakeWriter(
            manager, a_lake(manager, scope, tmp_path, catalog={**lake.catalog, "s3.secret-access-key": "${NOT_SET}"})
        )
    missing = {"type": "sql", "uri": f"sqlite:///{tmp_path}/no/such/folder.db", "warehouse": f"file://{tmp_path}"}
    with pytest.raises(UnavailableError):
        catch_up(manager, a_lake(manager, scope, tmp_path, catalog=missing))
