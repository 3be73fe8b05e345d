"""Errors that stop a lake or its readers: each names the cause and the remedy, and disappears when it is fixed."""

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
    """Return a lake with ten rows in one partition, in two files."""
    lake = meters.lake(**({"partition": "", "compact_files": 2} | options))
    for first in (0, 5):
        meters.write(first, first + 5)
        meters.catch_up(lake)
    return lake


# --- schemas --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "event", "after", "field"),
    [
        ("wh long", b'{"WH": 1}', "WH long", "'wh' and 'WH'"),
        ("s struct<x: int>", b'{"s": {"X": 1}}', "s struct<X: int>", "'x' and 'X'"),
        ("d decimal(9, 2)", b'{"d": "1.2525"}', "d decimal(9, 4)", "d is decimal"),
        ("l array<long>", b'{"l": [1]}', "l array<string>", "l.element"),
    ],
)
def test_a_schema_that_the_table_cannot_follow_stops_the_lake(
    meters: Meters, before: str, event: bytes, after: str, field: str
) -> None:
    lake = small(meters, value_schema=before)
    meters.write_events(event)
    changed = meters.lake(value_schema=after, partition="", compact_files=2)
    with pytest.raises(LakeStoppedError, match=field):
        meters.catch_up(changed)
    assert len(in_table(lake)) == 10
    if " and " in field:
        with pytest.raises(LakeStoppedError, match=field):
            meters.union()


def test_fields_that_differ_only_by_case_fail(meters: Meters) -> None:
    meters.write_events(b"{}")
    schemas = (("wh long, WH long", "'WH'"), ("s struct<a: int, A: int>", "'A'"), ("_Offset long", "'_Offset'"))
    for number, (fields, named) in enumerate(schemas):
        lake = meters.lake(name=f"l{number}", table=f"a.b{number}", value_schema=fields, partition="")
        with pytest.raises(LakeStoppedError, match=named):
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
    for action in (
        lambda: list(meters.union().batches()),
        lambda: compacted(meters, lake),
        lambda: meters.run(lake),
        lambda: meters.rebuild("again"),
    ):
        with pytest.raises(LakeStoppedError, match=path.name):
            action()
    assert path.name in meters.status().trouble
    asked = nadi_command(nadi_server.controller_uri, "sql", f"select sum(wh) from {meters.scope}.meters for lake")
    assert (asked.exit_code, path.name in asked.stderr, "Traceback" in asked.output) == (1, True, False), asked.output
    path.write_bytes(content)
    meters.run(lake)
    assert len(in_table(lake)) == 11


def test_missing_data_file_is_named_and_writing_continues(meters: Meters) -> None:
    lake = small(meters)
    path = Path(FILES["data"](table_of(lake)).removeprefix("file://"))
    path.unlink()
    with pytest.raises(UnavailableError, match=path.name):
        list(meters.union().batches())
    with pytest.raises(pa.ArrowInvalid, match=path.name):  # wrapped by Arrow
        pa.table(meters.union())
    with pytest.raises(UnavailableError, match=path.name):
        LakeWriter(meters.manager, lake).compact()
    meters.write(10, 12)
    meters.run(lake)
    assert meters.status().lag_bytes == 0


def test_sweep_ignores_files_deleted_by_another_writer(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = small(meters)
    table = table_of(lake)
    gone = f"{table.location()}/data/{data_file_name(new_attempt(table.snapshots()[0].snapshot_id), 0)}"
    found = lake_writer._files
    monkeypatch.setattr(lake_writer, "_files", lambda table, folder: [*found(table, folder), gone])
    assert lake_writer.sweep(table.catalog, table) > 0
    monkeypatch.setattr(lake_writer, "_files", found)
    assert lake_writer.sweep(table.catalog, table_of(lake)) == 0


# --- catalogs -------------------------------------------------------------------------------------


def test_invalid_catalog_stops_the_writer(meters: Meters) -> None:
    garbage = meters.folder / "garbage.db"
    garbage.write_bytes(b"garbage" * 1_000)
    for uri in ("bogus", "bogus://x/y", f"sqlite:///{garbage}"):
        lake = meters.lake(catalog={**catalog_in(meters.folder), "uri": uri})
        began = time.monotonic()
        with pytest.raises(LakeStoppedError):
            nadi.lake.run(meters.manager, lake)
        assert time.monotonic() - began < 60  # an unavailable catalog is retried without limit


def test_once_fails_on_an_unavailable_catalog(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LAKE_ONCE_TRIES_S", 0.5)
    lake = meters.lake(catalog={**catalog_in(meters.folder), "uri": f"sqlite:///{meters.folder}/no/c.db"})
    with pytest.raises(UnavailableError):
        meters.run(lake)
    status = meters.status()
    assert (status.writers, "unable to open" in status.trouble) == ((), True)


# --- options, streams, reports --------------------------------------------------------------------


def test_options_can_change_until_there_is_a_table(meters: Meters) -> None:
    meters.write(0, 5)
    for name in ("nope", "meter"):
        with pytest.raises(InvalidArgumentError, match=f"'{name}'"):
            meters.lake(partition=f"day({name})")
    lake = meters.lake(partition="meter")
    late = meters.lake(partition="bucket(2, meter)", start="tail", table="other.meters")
    meters.write(5, 8)
    with pytest.raises(LakeStoppedError):
        LakeWriter(meters.manager, lake).commit()
    meters.run(late)
    assert sorted(in_table(late)["wh"].to_pylist()) == [5, 6, 7]
    with pytest.raises(InvalidArgumentError):
        meters.lake(partition="day(at)")


def test_recreated_stream_stops_its_lake(meters: Meters) -> None:
    lake = small(meters)
    meters.manager.seal_stream(meters.scope, "meters")
    meters.manager.delete_stream(meters.scope, "meters")
    meters.manager.create_stream(meters.scope, "meters", 2)
    meters.write(100, 150)
    for action in (
        lambda: meters.lake(partition="", compact_files=2),
        lambda: LakeWriter(meters.manager, lake).commit(),
        lambda: meters.union(),
    ):
        with pytest.raises(StreamRecreatedError):
            action()
    assert "nadi lake delete" in meters.status().trouble
    nadi.lake.delete(meters.manager, meters.scope, lake.name)
    same = meters.lake()
    for action in (lambda: LakeWriter(meters.manager, same).commit(), lambda: meters.union()):
        with pytest.raises(StreamRecreatedError):
            action()
    nadi.lake.delete(meters.manager, meters.scope, lake.name)
    recreated = meters.lake(table=f"{meters.scope}.meters-2")
    meters.run(recreated)
    assert sorted(pa.table(meters.union())["wh"].to_pylist()) == [*range(100, 150)]


def test_unexpected_error_is_reported_and_the_lake_deletable(
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


def test_status_drops_fixed_errors(meters: Meters) -> None:
    meters.write(1, 10, wrong=5)
    lake = meters.lake(dead_letters=None)
    with pytest.raises(LakeStoppedError):
        meters.run(lake)
    assert "json" in meters.status().trouble
    thread, core = inside(meters.manager)
    other = thread.result(lambda: StoredLake(core, meters.scope, lake.name).members())
    thread.run(other.report(0, 0.0, 0, "the catalog was away", "waiting"))
    assert meters.status().trouble == "the catalog was away"
    thread.run(other.leave())
    nadi.lake.run(meters.manager, meters.lake(), once=True)
    found = meters.status()
    assert (found.writers, found.trouble, found.rows) == ((), "", 8)


def test_union_at_invalid_cut_fails(meters: Meters) -> None:
    small(meters)
    for at in (5, b"tail", 1.5):
        with pytest.raises(InvalidArgumentError):
            meters.union(at=at)  # type: ignore[arg-type]
    with pytest.raises(NadiError):
        meters.union(at="")
