"""A lake's table has each event of its stream once, up to the cut in its newest snapshot."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import nadi
import nadi.lake
from nadi.client import RetentionPolicy
from nadi.client.serializers import Struct
from nadi.errors import ConflictError, InvalidArgumentError, NotFoundError, StreamNotFoundError, UnavailableError
from nadi.lake import LakeStoppedError, LakeWriter
from nadi.lake.rows import CUT, newest_mark
from nadi.testing import RestartableServer
from tests.support.waiting import until

from .world import NO_JSON, Meters, catalog_in, files_named, in_table, places, table_of


def test_table_has_each_event_once_and_invalid_ones_are_letters(meters: Meters) -> None:
    lake = meters.lake()
    assert meters.catch_up(lake) == 0
    for first in (0, 300):
        meters.write(first, first + 300, wrong=10)
        assert meters.catch_up(lake) == 1
    good, wrong = meters.in_stream()
    found = in_table(lake)
    assert places(found) == good
    assert sorted(found["wh"].to_pylist()) == [number for number in range(600) if number % 10]
    assert meters.letter_places() == wrong
    letter = meters.letters()[0]
    assert letter.data is not None
    assert (letter.data.startswith(NO_JSON), letter.by) == (True, "lake meters-lake")
    assert letter.reason
    cut = meters.tail
    assert table_of(lake).current_snapshot().summary.additional_properties[CUT] == cut.as_text()
    state = meters.status()
    assert (state.cut, state.lag_bytes, state.rows, state.dead_letters) == (cut, 0, 540, 60)


def test_each_partition_has_its_rows_wherever_others_look_for_them(meters: Meters) -> None:
    lake = meters.filled(0, 210)
    table = table_of(lake)
    for meter in range(7):  # PyIceberg filters by bucket, so buckets must be computed alike
        found = table.scan(row_filter=f"meter == 'm{meter}'").to_arrow()
        assert sorted(found["wh"].to_pylist()) == list(range(meter, 210, 7))
    days = table.scan(row_filter="at < '2026-11-02T00:00:00+00:00'")
    assert sorted(days.to_arrow()["wh"].to_pylist()) == list(range(0, 210, 3))
    assert len(list(days.plan_files())) < len(list(table.scan().plan_files()))


def test_commits_end_at_legal_cuts_when_there_is_much_across_splits_and_merges(meters: Meters) -> None:
    for first in range(0, 80_000, 20_000):
        meters.write(first, first + 20_000, wrong=1_000)
        if first == 0:
            meters.scale([0], [(0.0, 0.2), (0.2, 0.5)])
        elif first == 20_000:
            active = list(meters.tail.positions)
            meters.scale(active, [(0.0, 0.6), (0.6, 1.0)])
    lake = meters.lake(commit_bytes=1 << 20, partition="")
    assert meters.catch_up(lake) > 3
    meters.check(lake)
    for snapshot in table_of(lake).snapshots():
        cut = nadi.StreamCut.from_text(snapshot.summary.additional_properties[CUT])
        meters.manager.cuts(meters.scope, "meters").check(cut)


def test_invalid_event_without_dead_letters_stops_the_lake(meters: Meters) -> None:
    lake = meters.filled(1, 10, dead_letters=None)
    cut = meters.status().cut
    meters.write(10, 30, wrong=20)
    with pytest.raises(LakeStoppedError):
        meters.run(lake)
    state = meters.status()
    assert (state.cut, state.rows) == (cut, 9)
    assert "json" in state.trouble
    assert meters.files() == files_named(lake)
    lake = meters.lake()  # now with a dead-letter stream
    meters.run(lake)
    assert places(in_table(lake)) == meters.in_stream()[0]


def test_table_follows_compatible_schema_changes_only(meters: Meters) -> None:
    lake = meters.filled(0, 20)
    lake = meters.lake(value_schema="note string, wh double, meter string, at timestamp, more struct<a: int>")
    meters.write(20, 40)
    with pytest.raises(LakeStoppedError):
        meters.run(lake)
    lake = meters.lake(value_schema="note string, wh long, meter string, more struct<a: int, b: array<string>>")
    with meters.manager.create_writer(meters.scope, "meters") as writer:
        writer.write_event(b'{"note": "new", "wh": 40, "meter": "m1", "more": {"a": 1, "b": ["x"]}}', "m1")
        writer.write_event(b'{"note": "old", "wh": 41, "meter": "m1"}', "m1")
    meters.catch_up(lake)
    found = {row["wh"]: row for row in in_table(lake).to_pylist()}
    assert len(found) == 42
    assert found[40]["more"] == {"a": 1, "b": ["x"]}
    assert (found[41]["more"], found[41]["note"], found[41]["at"], found[3]["note"]) == (None, "old", None, None)
    assert (places(in_table(lake)), meters.letters()) == (meters.in_stream()[0], [])


def test_a_schema_of_the_store_is_followed_by_its_versions(meters: Meters) -> None:
    import msgspec

    old = msgspec.defstruct("Reading", [("meter", str), ("wh", int)])
    new = msgspec.defstruct("Reading", [("meter", str), ("wh", int), ("volts", float | None, None)])
    with meters.manager.create_writer(meters.scope, "meters", serializer=Struct(old)) as one:
        one.write_event(old("hall", 1), "hall")
    lake = meters.lake(value_schema=None, partition="meter")
    meters.catch_up(lake)
    with meters.manager.create_writer(meters.scope, "meters", serializer=Struct(new)) as other:
        other.write_event(new("hall", 2, 230.5), "hall")
    meters.catch_up(lake)
    rows = sorted((row["wh"], row["volts"]) for row in in_table(lake).to_pylist())
    assert rows == [(1, None), (2, 230.5)]


def test_overtaken_writer_continues_from_the_new_cut(meters: Meters) -> None:
    lake = meters.lake()
    meters.write(0, 100, wrong=10)
    others: list[int] = []

    def meanwhile(step: str) -> None:
        if step == "written" and not others:
            others.append(meters.catch_up(lake))

    slow = LakeWriter(meters.manager, lake, step=meanwhile)
    lost = slow.commit()
    assert lost is not None
    assert (lost.rows, others) == (0, [1])
    meters.write(100, 150, wrong=10)
    done = slow.commit()
    assert done is not None
    assert done.rows == 45
    assert slow.commit() is None
    meters.check(lake)
    assert meters.files() == files_named(lake)


def test_concurrent_writers_write_each_event_once(nadi_server: RestartableServer, meters: Meters) -> None:
    lake = meters.lake(partition="")
    stopping, failures = threading.Event(), list[BaseException]()

    def writing() -> None:
        try:
            with nadi.StreamManager(nadi_server.controller_uri) as own:
                nadi.lake.run(own, lake, stop=stopping)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=writing) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for first in range(0, 500, 50):
            meters.write(first, first + 50, wrong=9)
        tail = meters.tail
        until(lambda: failures or meters.status().cut == tail)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    assert failures == []
    meters.catch_up(lake)
    meters.check(lake)
    meters.write(500, 501)
    meters.catch_up(lake)  # it sweeps after its first commit
    assert meters.files() == files_named(lake)


@pytest.mark.parametrize("meters", [1], indirect=True)
def test_retention_waits_for_the_table_and_union_has_truncated_events(meters: Meters) -> None:
    lake = meters.lake()
    meters.write(1, 101)
    meters.manager.update_stream(meters.scope, "meters", retention=RetentionPolicy.by_size(1))
    (held,) = meters.manager.retained(meters.scope, "meters").holders
    assert (held.kind, held.name) == ("subscriber", f"{meters.scope}/{lake.name}")
    meters.catch_up(lake)
    assert meters.manager.retained(meters.scope, "meters").holders == ()
    meters.manager.truncate_stream(meters.tail)
    meters.write(101, 151)
    assert sorted(pa.table(meters.union())["wh"].to_pylist()) == list(range(1, 151))


def test_new_writer_ignores_truncation_before_the_table_cut(meters: Meters) -> None:
    lake = meters.filled(0, 50, wrong=5)
    wrong = meters.in_stream()[1]
    meters.manager.truncate_stream(meters.tail)
    ranges = [(0.0, 0.3), (0.3, 1.0)]
    meters.manager.scale_stream(meters.scope, "dead", [0, 1], ranges)  # with the letters' writer state
    meters.write(50, 100)
    meters.catch_up(lake)
    assert (len(in_table(lake)), meters.letter_places()) == (90, wrong)


def test_truncated_unwritten_events_stop_the_lake_unless_skipped(meters: Meters) -> None:
    lake = meters.filled(0, 50)
    meters.write(50, 100)
    meters.manager.truncate_stream(meters.tail)
    meters.write(100, 150)
    with pytest.raises(LakeStoppedError):
        meters.run(lake)
    lake = meters.lake(skip_truncated=True)
    meters.run(lake)
    assert sorted(in_table(lake)["wh"].to_pylist()) == [*range(50), *range(100, 150)]


def test_unavailable_catalog_is_retried(meters: Meters) -> None:
    lake = meters.filled(0, 50)
    catalog, away = meters.folder / "catalog.db", meters.folder / "away"
    catalog.rename(away)
    catalog.symlink_to(meters.folder)  # a folder, so that no writer creates a new one
    meters.write(50, 80)
    stopping = threading.Event()
    thread = threading.Thread(target=nadi.lake.run, args=(meters.manager, lake), kwargs={"stop": stopping})
    thread.start()
    try:
        until(lambda: [writer.state for writer in meters.status().writers] == ["waiting"])
        assert "catalog" in meters.status().trouble
        away.replace(catalog)  # atomically: between two steps the writer would create a new one
        until(lambda: meters.status().lag_bytes == 0)
        nadi.lake.stop(meters.manager, meters.scope, lake.name)
        thread.join(60)
        assert not thread.is_alive()
    finally:
        stopping.set()
        thread.join()
    assert places(in_table(lake)) == meters.in_stream()[0]


def test_foreign_or_missing_table_stops_the_lake(meters: Meters) -> None:
    meters.manager.create_stream(meters.scope, "other", 1)
    lake = meters.filled(0, 10)
    other = nadi.lake.define(meters.manager, meters.scope, "other", table=lake.table, catalog=lake.catalog)
    with pytest.raises(LakeStoppedError):
        meters.run(other)
    table_of(lake).catalog.drop_table(lake.table)
    meters.write(10, 20)
    with pytest.raises(LakeStoppedError):
        meters.run(lake)
    nadi.lake.delete(meters.manager, meters.scope, lake.name)
    lake = meters.lake()
    meters.catch_up(lake)
    assert len(in_table(lake)) == 20


def test_foreign_snapshot_keeps_the_cut(meters: Meters) -> None:
    lake = meters.filled(0, 30, partition="")
    table_of(lake).delete("wh < 10")
    mark = newest_mark(table_of(lake), meters.scope, "meters")
    assert mark is not None
    meters.write(30, 40)
    meters.catch_up(lake)
    assert sorted(in_table(lake)["wh"].to_pylist()) == list(range(10, 40))


def test_lake_without_format_stores_bytes(meters: Meters) -> None:
    meters.write(0, 20, wrong=3)
    lake = nadi.lake.define(
        meters.manager, meters.scope, "meters", name="raw", table="raw.meters", catalog=catalog_in(meters.folder)
    )
    meters.catch_up(lake)
    good, wrong = meters.in_stream()
    assert places(in_table(lake)) == sorted(good + wrong)
    assert in_table(lake)["event"].null_count == 0


def test_define_invalid_options_fails(meters: Meters) -> None:
    invalid: list[tuple[str, dict[str, Any]]] = [
        ("catalog", {"catalog": {}}),
        ("'token'", {"catalog": {"type": "rest", "uri": "http://x", "token": "abc"}}),
        ("'meters'", {"table": "meters"}),
        ("home..meters", {"table": "home..meters"}),
        ("week", {"partition": "week(at)"}),
        ("dead-letter", {"dead_letters": "meters"}),
        ("value_schema", {"value_format": None, "value_schema": "wh long"}),
        ("every_s", {"every_s": 0}),
    ]
    for named, options in invalid:
        with pytest.raises(InvalidArgumentError, match=named):
            meters.lake(**options)
    with pytest.raises(StreamNotFoundError):
        nadi.lake.define(meters.manager, meters.scope, "none", table="a.b", catalog=catalog_in(meters.folder))
    with pytest.raises(NotFoundError):
        nadi.lake.status(meters.manager, meters.scope, "none")
    lake = meters.lake()
    meters.catch_up(lake)
    with pytest.raises(InvalidArgumentError, match="partition"):
        meters.lake(partition="meter")
    with pytest.raises(InvalidArgumentError, match=r"meters.*dead"):
        nadi.lake.define(meters.manager, meters.scope, "dead", name=lake.name)
    with pytest.raises(ConflictError):
        meters.lake(protect_unconsumed=False)
    with pytest.raises(InvalidArgumentError, match="'meter'"):
        meters.lake(name="by-day", table="by.day", partition="day(meter)")
    with pytest.raises(InvalidArgumentError, match="NOT_SET"):
        LakeWriter(meters.manager, meters.lake(catalog={**lake.catalog, "s3.secret-access-key": "${NOT_SET}"}))
    missing = catalog_in(meters.folder) | {"uri": f"sqlite:///{meters.folder}/no/such/folder.db"}
    with pytest.raises(UnavailableError):
        meters.catch_up(meters.lake(catalog=missing))
