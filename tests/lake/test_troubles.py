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
from nadi.errors import InvalidArgumentError, NadiError, StreamRemadeError, UnavailableError
from nadi.lake import LakeDefinition, LakeStoppedError, LakeWriter, running
from nadi.lake import writer as lake_writer
from nadi.lake.record import StoredLake
from nadi.lake.table.files import data_file_name, new_attempt
from nadi.testing import RestartableServer

from .test_command import command, nadi_command
from .world import a_lake, catalog_in, catch_up, in_table, streams, table_of, write


def small(manager: nadi.StreamManager, scope: str, folder: Path, **options: Any) -> LakeDefinition:
    """With ten rows in one partition, in two files."""
    streams(manager, scope)
    lake = a_lake(manager, scope, folder, **({"partition": "", "compact_files": 2} | options))
    for first in (0, 5):
        write(manager, scope, first, first + 5)
        catch_up(manager, lake)
    return lake


def raw(manager: nadi.StreamManager, scope: str, *events: bytes) -> None:
    with manager.create_writer(scope, "meters") as writer:
        writer.write_batch(list(events), ["m"] * len(events))


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
    manager: nadi.StreamManager, scope: str, tmp_path: Path, before: str, event: bytes, after: str, why: str
) -> None:
    lake = small(manager, scope, tmp_path, value_schema=before)
    raw(manager, scope, event)
    changed = a_lake(manager, scope, tmp_path, value_schema=after, partition="", compact_files=2)
    with pytest.raises(LakeStoppedError, match=f"(?s){why}.*--schema"):
        catch_up(manager, changed)
    assert len(in_table(lake)) == 10
    if "case" in why:
        with pytest.raises(LakeStoppedError, match=why):
            nadi.lake.union(manager, scope, "meters")


def test_fields_that_differ_by_case_alone_are_no_columns(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    raw(manager, scope, b"{}")
    for number, fields in enumerate(["wh long, WH long", "s struct<a: int, A: int>", "_Offset long"]):
        lake = a_lake(
            manager, scope, tmp_path, name=f"l{number}", table=f"a.b{number}", value_schema=fields, partition=""
        )
        with pytest.raises(LakeStoppedError, match="case alone"):
            catch_up(manager, lake)


# --- damage ---------------------------------------------------------------------------------------


def cut_off(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    return bytes(byte ^ 255 if at >= 40 and at % 97 == 40 else byte for at, byte in enumerate(content))


def metadata(lake: LakeDefinition) -> str:
    location: str = table_of(lake).metadata_location
    return location


def manifest_list(lake: LakeDefinition) -> str:
    location: str = table_of(lake).current_snapshot().manifest_list
    return location


def manifest(lake: LakeDefinition) -> str:
    table = table_of(lake)
    location: str = table.current_snapshot().manifests(table.io)[0].manifest_path
    return location


def data_file(lake: LakeDefinition) -> str:
    location: str = next(iter(table_of(lake).scan().plan_files())).file.file_path
    return location


def compacted(manager: nadi.StreamManager, lake: LakeDefinition) -> None:
    with closing(LakeWriter(manager, lake)) as writer:
        writer.compact()


@pytest.mark.parametrize("damage", [cut_off, flipped])
@pytest.mark.parametrize("which", [metadata, manifest_list, manifest, data_file])
def test_a_damaged_file_is_named(
    nadi_server: RestartableServer,
    manager: nadi.StreamManager,
    scope: str,
    tmp_path: Path,
    which: Callable[[LakeDefinition], str],
    damage: Callable[[bytes], bytes],
) -> None:
    lake = small(manager, scope, tmp_path)
    location = which(lake)
    path = Path(location.removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(damage(content))
    write(manager, scope, 10, 11)
    for deed in (
        lambda: list(nadi.lake.union(manager, scope, "meters").batches()),
        lambda: compacted(manager, lake),
        lambda: nadi.lake.run(manager, lake, once=True),
        lambda: nadi.lake.rebuild(manager, scope, lake.name, "again"),
    ):
        with pytest.raises(LakeStoppedError, match=f"{path.name}, a file of the table, is damaged"):
            deed()
    assert path.name in nadi.lake.status(manager, scope, lake.name).trouble
    asked = nadi_command(nadi_server.controller_uri, "sql", f"select sum(wh) from {scope}.meters for lake")
    assert (asked.exit_code, path.name in asked.stderr, "Traceback" in asked.output) == (1, True, False), asked.output
    path.write_bytes(content)
    nadi.lake.run(manager, lake, once=True)
    assert len(in_table(lake)) == 11


def test_a_data_file_that_is_gone_is_named_and_keeps_nobody_from_writing(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    lake = small(manager, scope, tmp_path)
    path = Path(data_file(lake).removeprefix("file://"))
    path.unlink()
    with pytest.raises(UnavailableError, match=f"{path.name}, a file of the table, is gone"):
        list(nadi.lake.union(manager, scope, "meters").batches())
    with pytest.raises(pa.ArrowInvalid, match=path.name):  # as whoever reads it tells it
        pa.table(nadi.lake.union(manager, scope, "meters"))
    with pytest.raises(UnavailableError, match=path.name):
        LakeWriter(manager, lake).compact()
    write(manager, scope, 10, 12)
    nadi.lake.run(manager, lake, once=True)
    assert nadi.lake.status(manager, scope, lake.name).behind_bytes == 0


def test_a_file_that_another_writer_has_swept_is_no_trouble(
    manager: nadi.StreamManager, scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = small(manager, scope, tmp_path)
    table = table_of(lake)
    gone = f"{table.location()}/data/{data_file_name(new_attempt(table.snapshots()[0].snapshot_id), 0)}"
    found = lake_writer._files
    monkeypatch.setattr(lake_writer, "_files", lambda table, folder: [*found(table, folder), gone])
    assert lake_writer.sweep(table.catalog, table) > 0
    monkeypatch.setattr(lake_writer, "_files", found)
    assert lake_writer.sweep(table.catalog, table_of(lake)) == 0


# --- catalogs -------------------------------------------------------------------------------------


def test_a_catalog_that_cannot_be_one_ends_the_writer_at_once(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    streams(manager, scope)
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"garbage" * 1_000)
    for uri in ("bogus", "bogus://x/y", f"sqlite:///{garbage}"):
        lake = a_lake(manager, scope, tmp_path, catalog={**catalog_in(tmp_path), "uri": uri})
        began = time.monotonic()
        with pytest.raises(LakeStoppedError, match="the catalog can't be used"):
            nadi.lake.run(manager, lake)
        assert time.monotonic() - began < 60  # one that is away is waited for without end


def test_one_that_is_away_is_not_waited_for_without_end_by_a_writer_that_is_to_end(
    manager: nadi.StreamManager, scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LAKE_ONCE_TRIES_S", 0.5)
    streams(manager, scope)
    lake = a_lake(manager, scope, tmp_path, catalog={**catalog_in(tmp_path), "uri": f"sqlite:///{tmp_path}/no/c.db"})
    with pytest.raises(UnavailableError, match="unable to open database file"):
        nadi.lake.run(manager, lake, once=True)
    status = nadi.lake.status(manager, scope, lake.name)
    assert (status.writers, "unable to open" in status.trouble) == ((), True)


# --- options, streams, reports --------------------------------------------------------------------


def test_options_can_change_until_there_is_a_table(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    streams(manager, scope)
    write(manager, scope, 0, 5)
    for partition, why in (
        ("day(nope)", "a column 'nope', and the table will have meter"),
        ("day(meter)", "is string"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            a_lake(manager, scope, tmp_path, partition=partition)
    lake = a_lake(manager, scope, tmp_path, partition="meter")
    late = a_lake(manager, scope, tmp_path, partition="bucket(2, meter)", start="tail", table="other.meters")
    write(manager, scope, 5, 8)
    with pytest.raises(LakeStoppedError, match="other options by now"):
        LakeWriter(manager, lake).commit()
    nadi.lake.run(manager, late, once=True)
    assert sorted(in_table(late)["wh"].to_pylist()) == [5, 6, 7]
    with pytest.raises(InvalidArgumentError, match="its table stays so"):
        a_lake(manager, scope, tmp_path, partition="day(at)")


def test_whoever_has_the_lake_of_a_stream_that_was_made_anew_is_told_to_forget_it(
    manager: nadi.StreamManager, scope: str, tmp_path: Path
) -> None:
    lake = small(manager, scope, tmp_path)
    manager.seal_stream(scope, "meters")
    manager.delete_stream(scope, "meters")
    manager.create_stream(scope, "meters", 2)
    write(manager, scope, 100, 150)
    advice = "Delete the lake .* run it again with a new table"
    for deed in (
        lambda: a_lake(manager, scope, tmp_path, partition="", compact_files=2),
        lambda: LakeWriter(manager, lake).commit(),
        lambda: nadi.lake.union(manager, scope, "meters"),
    ):
        with pytest.raises(StreamRemadeError, match=advice):
            deed()
    assert "Delete the lake" in nadi.lake.status(manager, scope, lake.name).trouble
    nadi.lake.forget(manager, scope, lake.name)
    same = a_lake(manager, scope, tmp_path)
    for deed in (lambda: LakeWriter(manager, same).commit(), lambda: nadi.lake.union(manager, scope, "meters")):
        with pytest.raises(StreamRemadeError, match=advice):
            deed()
    nadi.lake.forget(manager, scope, lake.name)
    anew = a_lake(manager, scope, tmp_path, table=f"{scope}.meters-2")
    nadi.lake.run(manager, anew, once=True)
    assert sorted(pa.table(nadi.lake.union(manager, scope, "meters"))["wh"].to_pylist()) == [*range(100, 150)]


def test_any_error_ends_a_writer_and_is_reported_and_the_lake_can_be_forgotten(
    nadi_server: RestartableServer,
    manager: nadi.StreamManager,
    scope: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: LakeWriter) -> None:
        raise ZeroDivisionError("odd")

    lake = small(manager, scope, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(LakeWriter, "commit", broken)
        with pytest.raises(ZeroDivisionError):
            nadi.lake.run(manager, lake)
    found = nadi.lake.status(manager, scope, lake.name)
    assert (found.writers, found.trouble) == ((), "ZeroDivisionError: odd")
    assert command(nadi_server.controller_uri, "delete", scope, "meters-lake", "--yes").exit_code == 0


def test_a_trouble_that_is_over_is_no_longer_shown(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    streams(manager, scope)
    write(manager, scope, 1, 10, wrong=5)
    lake = a_lake(manager, scope, tmp_path, dead_letters=None)
    with pytest.raises(LakeStoppedError, match="can't be read as json"):
        nadi.lake.run(manager, lake, once=True)
    assert "can't be read as json" in nadi.lake.status(manager, scope, lake.name).trouble
    thread, core = inside(manager)
    other = thread.result(lambda: StoredLake(core, scope, lake.name).members())
    thread.run(other.say(0, 0.0, 0, "the catalog was away", "waiting"))
    assert nadi.lake.status(manager, scope, lake.name).trouble == "the catalog was away"
    thread.run(other.leave())
    nadi.lake.run(manager, a_lake(manager, scope, tmp_path), once=True)
    found = nadi.lake.status(manager, scope, lake.name)
    assert (found.writers, found.trouble, found.rows) == ((), "", 8)


def test_a_place_that_is_none_is_refused(manager: nadi.StreamManager, scope: str, tmp_path: Path) -> None:
    small(manager, scope, tmp_path)
    for at in (5, b"tail", 1.5):
        with pytest.raises(InvalidArgumentError, match="at is a cut"):
            nadi.lake.union(manager, scope, "meters", at=at)  # type: ignore[arg-type]
    with pytest.raises(NadiError):
        nadi.lake.union(manager, scope, "meters", at="")
