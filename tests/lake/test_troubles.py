"""What stops a lake, or its readers: each is told in words, with what to do, and is over when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nadi
import nadi.lake
from nadi.client.blocking.face import inside
from nadi.errors import InvalidArgumentError, NadiError, StreamRecreatedError, UnavailableError
from nadi.lake import LakeDefinition, LakeStoppedError, LakeWriter, runner
from nadi.lake import writer as lake_writer
from nadi.lake.definition import StoredLake
from nadi.lake.table.files import data_file_name, new_attempt
from nadi.testing import RestartableServer

from .test_command import command, nadi_command
from .world import Meters, catalog_in, in_table, table_of


def small(meters: Meters, **options: Any) -> LakeDefinition:
    """With ten rows in one partition, in two files."""
    lake = meters.lake(**({"partition": "", "compact_files": 2} | options))
    for first in (0, 5):
        meters.write(first, first + 5)
        meters.catch_up(lake)
    return lake


# --- schemas --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "event", "after", "why"),
    [
        ("wh long", b'{"WH": 1}', "WH long", "'wh' and 'WH' differ by case alone"),
        ("s struct<x: int>", b'{"s": {"X": 1}}', "s struct<X: int>", "'x' and 'X' differ by case alone"),
        ("d decimal(9, 2)", b'{"d": "1.2525"}', "d decimal(9, 4)", r"d is decimal128\(9, 2\) there"),
        ("l array<long>", b'{"l": [1]}', "l array<string>", "l.element is int64 there, and string now"),
    ],
)
def test_a_schema_that_the_table_cannot_follow_stops_the_lake(
    meters: Meters, before: str, event: bytes, after: str, why: str
) -> None:
    lake = small(meters, value_schema=before)
    meters.write_events(event)
    changed = meters.lake(value_schema=after, partition="", compact_files=2)
    with pytest.raises(LakeStoppedError, match=f"(?s){why}.*--schema"):
        meters.catch_up(changed)
    assert len(in_table(lake)) == 10
    if "case" in why:
        with pytest.raises(LakeStoppedError, match=why):
            meters.union()


def test_fields_that_differ_by_case_alone_are_no_columns(meters: Meters) -> None:
    meters.write_events(b"{}")
    for number, fields in enumerate(["wh long, WH long", "s struct<a: int, A: int>", "_Offset long"]):
        lake = meters.lake(name=f"l{number}", table=f"a.b{number}", value_schema=fields, partition="")
        with pytest.raises(LakeStoppedError, match="case alone"):
            meters.catch_up(lake)


# --- damage ---------------------------------------------------------------------------------------


def cut_off(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    return bytes(byte ^ 255 if at >= 40 and at % 97 == 40 else byte for at, byte in enumerate(content))


FILES: dict[str, Callable[[Any], str]] = {
    "metadata": lambda table: table.metadata_location,
    "manifest list": lambda table: table.current_snapshot().manifest_list,
    "manifest": lambda table: table.current_snapshot().manifests(table.io)[0].manifest_path,
    "data": lambda table: next(iter(table.scan().plan_files())).file.file_path,
}


def compacted(meters: Meters, lake: LakeDefinition) -> None:
    with closing(LakeWriter(meters.manager, lake)) as writer:
        writer.compact()


@pytest.mark.parametrize("damage", [cut_off, flipped])
@pytest.mark.parametrize("which", FILES)
def test_a_damaged_file_is_named(
    nadi_server: RestartableServer, meters: Meters, which: str, damage: Callable[[bytes], bytes]
) -> None:
    lake = small(meters)
    path = Path(FILES[which](table_of(lake)).removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(damage(content))
    meters.write(10, 11)
    for deed in (
        lambda: list(meters.union().batches()),
        lambda: compacted(meters, lake),
        lambda: meters.run(lake),
        lambda: meters.rebuild("again"),
    ):
        with pytest.raises(LakeStoppedError, match=f"{path.name}, a file of the table, is damaged"):
            deed()
    assert path.name in meters.status().trouble
    asked = nadi_command(nadi_server.controller_uri, "sql", f"select sum(wh) from {meters.scope}.meters for lake")
    assert (asked.exit_code, path.name in asked.stderr, "Traceback" in asked.output) == (1, True, False), asked.output
    path.write_bytes(content)
    meters.run(lake)
    assert len(in_table(lake)) == 11


def test_a_data_file_that_is_gone_is_named_and_keeps_nobody_from_writing(meters: Meters) -> None:
    lake = small(meters)
    path = Path(FILES["data"](table_of(lake)).removeprefix("file://"))
    path.unlink()
    with pytest.raises(UnavailableError, match=f"{path.name}, a file of the table, is gone"):
        list(meters.union().batches())
    with pytest.raises(pa.ArrowInvalid, match=path.name):  # as whoever reads it tells it
        pa.table(meters.union())
    with pytest.raises(UnavailableError, match=path.name):
        LakeWriter(meters.manager, lake).compact()
    meters.write(10, 12)
    meters.run(lake)
    assert meters.status().behind_bytes == 0


def test_a_file_that_another_writer_has_swept_is_no_trouble(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = small(meters)
    table = table_of(lake)
    gone = f"{table.location()}/data/{data_file_name(new_attempt(table.snapshots()[0].snapshot_id), 0)}"
    found = lake_writer._files
    monkeypatch.setattr(lake_writer, "_files", lambda table, folder: [*found(table, folder), gone])
    assert lake_writer.sweep(table.catalog, table) > 0
    monkeypatch.setattr(lake_writer, "_files", found)
    assert lake_writer.sweep(table.catalog, table_of(lake)) == 0


# --- catalogs -------------------------------------------------------------------------------------


def test_a_catalog_that_cannot_be_one_ends_the_writer_at_once(meters: Meters) -> None:
    garbage = meters.folder / "garbage.db"
    garbage.write_bytes(b"garbage" * 1_000)
    for uri in ("bogus", "bogus://x/y", f"sqlite:///{garbage}"):
        lake = meters.lake(catalog={**catalog_in(meters.folder), "uri": uri})
        began = time.monotonic()
        with pytest.raises(LakeStoppedError, match="the catalog can't be used"):
            nadi.lake.run(meters.manager, lake)
        assert time.monotonic() - began < 60  # one that is away is waited for without end


def test_one_that_is_away_is_not_waited_for_without_end_by_a_writer_that_is_to_end(
    meters: Meters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LAKE_ONCE_TRIES_S", 0.5)
    lake = meters.lake(catalog={**catalog_in(meters.folder), "uri": f"sqlite:///{meters.folder}/no/c.db"})
    with pytest.raises(UnavailableError, match="unable to open database file"):
        meters.run(lake)
    status = meters.status()
    assert (status.writers, "unable to open" in status.trouble) == ((), True)


# --- options, streams, reports --------------------------------------------------------------------


def test_options_can_change_until_there_is_a_table(meters: Meters) -> None:
    meters.write(0, 5)
    for partition, why in (
        ("day(nope)", "a column 'nope', and the table will have meter"),
        ("day(meter)", "is string"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            meters.lake(partition=partition)
    lake = meters.lake(partition="meter")
    late = meters.lake(partition="bucket(2, meter)", start="tail", table="other.meters")
    meters.write(5, 8)
    with pytest.raises(LakeStoppedError, match="other options by now"):
        LakeWriter(meters.manager, lake).commit()
    meters.run(late)
    assert sorted(in_table(late)["wh"].to_pylist()) == [5, 6, 7]
    with pytest.raises(InvalidArgumentError, match="its table stays so"):
        meters.lake(partition="day(at)")


def test_whoever_has_the_lake_of_a_stream_that_was_made_anew_is_told_to_forget_it(meters: Meters) -> None:
    lake = small(meters)
    meters.manager.seal_stream(meters.scope, "meters")
    meters.manager.delete_stream(meters.scope, "meters")
    meters.manager.create_stream(meters.scope, "meters", 2)
    meters.write(100, 150)
    advice = "Delete the lake .* run it again with a new table"
    for deed in (
        lambda: meters.lake(partition="", compact_files=2),
        lambda: LakeWriter(meters.manager, lake).commit(),
        lambda: meters.union(),
    ):
        with pytest.raises(StreamRecreatedError, match=advice):
            deed()
    assert "Delete the lake" in meters.status().trouble
    nadi.lake.delete(meters.manager, meters.scope, lake.name)
    same = meters.lake()
    for deed in (lambda: LakeWriter(meters.manager, same).commit(), lambda: meters.union()):
        with pytest.raises(StreamRecreatedError, match=advice):
            deed()
    nadi.lake.delete(meters.manager, meters.scope, lake.name)
    anew = meters.lake(table=f"{meters.scope}.meters-2")
    meters.run(anew)
    assert sorted(pa.table(meters.union())["wh"].to_pylist()) == [*range(100, 150)]


def test_any_error_ends_a_writer_and_is_reported_and_the_lake_can_be_forgotten(
    nadi_server: RestartableServer, meters: Meters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: LakeWriter) -> None:
        raise ZeroDivisionError("odd")

    lake = small(meters)
    with monkeypatch.context() as patched:
        patched.setattr(LakeWriter, "commit", broken)
        with pytest.raises(ZeroDivisionError):
            nadi.lake.run(meters.manager, lake)
    found = meters.status()
    assert (found.writers, found.trouble) == ((), "ZeroDivisionError: odd")
    assert command(nadi_server.controller_uri, "delete", meters.scope, "meters-lake", "--yes").exit_code == 0


def test_a_trouble_that_is_over_is_no_longer_shown(meters: Meters) -> None:
    meters.write(1, 10, wrong=5)
    lake = meters.lake(dead_letters=None)
    with pytest.raises(LakeStoppedError, match="can't be read as json"):
        meters.run(lake)
    assert "can't be read as json" in meters.status().trouble
    thread, core = inside(meters.manager)
    other = thread.result(lambda: StoredLake(core, meters.scope, lake.name).members())
    thread.run(other.say(0, 0.0, 0, "the catalog was away", "waiting"))
    assert meters.status().trouble == "the catalog was away"
    thread.run(other.leave())
    nadi.lake.run(meters.manager, meters.lake(), once=True)
    found = meters.status()
    assert (found.writers, found.trouble, found.rows) == ((), "", 8)


def test_a_place_that_is_none_is_refused(meters: Meters) -> None:
    small(meters)
    for at in (5, b"tail", 1.5):
        with pytest.raises(InvalidArgumentError, match="at is a cut"):
            meters.union(at=at)  # type: ignore[arg-type]
    with pytest.raises(NadiError):
        meters.union(at="")
