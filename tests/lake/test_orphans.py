"""Files of failed attempts are deleted once they can't be referenced any more, and other files are kept; also after a
full storage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nadi.errors import UnavailableError
from nadi.lake import LakeWriter
from nadi.lake.table.catalogs import open_catalog
from nadi.lake.table.files import NO_SNAPSHOT, data_file_name, head_of, new_attempt, parent_of
from nadi.lake.writer import sweep
from tests.support.small_disk import fill, small_disk

from .world import Meters, catalog_in, files_named, in_table, places, table_of


def test_files_of_older_snapshots_go_and_those_of_the_newest_and_of_others_stay(meters: Meters) -> None:
    lake = meters.filled(0, 20)
    first = head_of(table_of(lake))
    meters.write(20, 40)
    meters.catch_up(lake)
    table = table_of(lake)
    data = Path(table.location_provider().data_path.removeprefix("file://"))
    one = next(data.iterdir())
    dead = {data_file_name(new_attempt(parent), 0) for parent in (NO_SNAPSHOT, first)}
    kept = {data_file_name(new_attempt(head_of(table)), 0), "00000-7-3f0c3e4a-2f1b-4b1e-9a61-2d7c3b1f0a55.parquet"}
    metadata = data.parent / "metadata"
    manifest = metadata / f"{new_attempt(first)}-m0.avro"
    shutil.copy(one, manifest)
    for name in dead | kept:
        shutil.copy(one, data / name)
    before = {path.name for path in metadata.iterdir()}
    assert sweep(open_catalog(lake.catalog), table) == len(dead) + 1
    assert meters.files() == files_named(lake) | kept
    assert before - {path.name for path in metadata.iterdir()} == {manifest.name}
    assert len(table_of(lake).scan().to_arrow()) == 40


def test_sweep_with_an_old_table_keeps_new_attempts(meters: Meters) -> None:
    lake = meters.filled(0, 20)
    old = table_of(lake)
    meters.write(20, 40)
    meters.catch_up(lake)
    meters.write(40, 60)
    swept = []

    def meanwhile(step: str) -> None:
        if step == "written":
            swept.append(sweep(open_catalog(lake.catalog), old))

    writer = LakeWriter(meters.manager, lake, step=meanwhile)
    assert writer.commit() is not None
    assert swept == [0]
    assert len(table_of(lake).scan().to_arrow()) == 60


def test_parent_of_reads_the_attempt_from_file_names() -> None:
    largest = (1 << 63) - 1
    assert [parent_of(data_file_name(new_attempt(parent), 1)) for parent in (0, 5, largest)] == [0, 5, largest]
    assert parent_of("snap-12-0-00000000-0000-0005-6e61-646901020304.avro") == 5
    assert parent_of("v1.metadata.json") is None


def test_full_storage(meters: Meters) -> None:
    with small_disk(meters.folder / "lake", 4) as disk:
        lake = meters.lake(catalog=catalog_in(meters.folder))
        meters.write(0, 100)
        writer = LakeWriter(meters.manager, lake)
        assert writer.commit() is not None
        ballast = fill(disk)
        meters.write(100, 20_000)
        for _ in range(3):
            with pytest.raises(UnavailableError):
                writer.commit()
        assert len(in_table(lake)) == 100
        ballast.unlink()
        while writer.commit() is not None:
            pass
        meters.write(20_000, 20_001)
        meters.catch_up(lake)
        assert places(in_table(lake)) == meters.in_stream()[0]
        assert meters.files() == files_named(lake)
