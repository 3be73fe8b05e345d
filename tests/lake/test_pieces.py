"""Pieces of a table's files: each row is read once, whichever reader reads which piece."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nadi.lake import LakeDefinition
from nadi.lake.table import files
from nadi.lake.table import reading as pieces
from nadi.lake.table.reading import FilePiece, TableFiles, distribute, files_of, pieces_of
from nadi.limits import LAKE_FILE_PIECES, MIB

from .world import Meters, Place, places, table_of

OF_FOUR = pytest.mark.parametrize("meters", [4], indirect=True)
GROUPS = 3  # one for each segment with rows: seven keys fall into three of four segments


@pytest.fixture
def in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write files with at least a row group per segment; each group can be a piece."""
    monkeypatch.setattr(files, "LAKE_ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(pieces, "_LEAST_BYTES", 100)


def a_file(meters: Meters, **options: Any) -> tuple[LakeDefinition, Any]:
    lake = meters.filled(0, 200, wrong=9, partition="", **options)
    (file,) = files_of(table_of(lake))
    return lake, file


def rows_of(lake: LakeDefinition, some: list[FilePiece], *names: str) -> pa.Table:
    names = names or ("_segment_id", "_offset")
    found = [batch.select(names) for batch in TableFiles.of(table_of(lake)).read(some, names)]
    schema = found[0].schema if found else pa.schema([(name, pa.int64()) for name in names])
    return pa.Table.from_batches(found, schema)


@pytest.mark.usefixtures("in_groups")
@OF_FOUR
def test_a_file_is_divided_where_its_groups_of_rows_are(meters: Meters) -> None:
    lake, file = a_file(meters)
    groups = pq.ParquetFile(file.file.file_path.removeprefix("file://")).num_row_groups
    found = pieces_of([file])
    assert len(found) == groups == GROUPS
    assert sum(one.size_bytes for one in found) == file.file.file_size_in_bytes
    parts = [places(rows_of(lake, [one])) for one in found]
    assert all(parts)
    assert sorted(place for part in parts for place in part) == meters.in_stream()[0]


@pytest.mark.usefixtures("in_groups")
@OF_FOUR
def test_wherever_a_file_is_cut_its_rows_are_read_once(meters: Meters) -> None:
    lake, file = a_file(meters)
    size = file.file.file_size_in_bytes
    expected = meters.in_stream()[0]
    for cuts in ([1], [4], [5], [size], [2 * size], range(7, size, 97), file.file.split_offsets):
        found: list[Place] = []
        for low, high in pairwise([0, *cuts, None]):
            found += places(rows_of(lake, [FilePiece(file, low, high)]))
        assert sorted(found) == expected, cuts


@pytest.mark.usefixtures("in_groups")
@OF_FOUR
def test_splits_of_one_file_have_its_rows_once_up_to_any_cut(meters: Meters) -> None:
    a_file(meters)
    meters.write(200, 230, wrong=9)
    early = meters.after(70)
    for at in (None, early):
        whole = meters.union(at=at, columns=["wh", "_offset", "_segment_id"])
        for count in (1, 2, 3, 50):
            splits = pickle.loads(pickle.dumps(whole.splits(count)))
            of_table = [split for split in splits if split.table is not None]
            assert len(of_table) == min(count, GROUPS)
            assert sorted(place for split in splits for place in places(split)) == meters.in_stream(at)[0]


@pytest.mark.usefixtures("in_groups")
@OF_FOUR
def test_columns_are_the_tables_as_they_are_now(meters: Meters) -> None:
    from pyiceberg.types import LongType, StringType

    lake, _ = a_file(meters, value_schema="meter string, wh int, at timestamp")
    with table_of(lake).update_schema() as change:
        change.update_column("wh", LongType())
        change.rename_column("meter", "device")
        change.add_column("note", StringType())
        change.delete_column("at")
    found = rows_of(lake, pieces_of(files_of(table_of(lake))), "note", "wh", "device")
    assert (found.schema.field("wh").type, found["note"].null_count) == (pa.int64(), found.num_rows)
    rows = {(row["wh"], row["device"]) for row in found.to_pylist()}
    assert rows == {(number, f"m{number % 7}") for number in range(200) if number % 9}


@pytest.mark.usefixtures("in_groups")
@OF_FOUR
def test_a_file_with_deletes_is_one_piece_without_them(meters: Meters) -> None:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table import FileScanTask
    from pyiceberg.typedef import Record

    lake, file = a_file(meters)
    whole = places(rows_of(lake, [FilePiece(file, 0, None)]))
    path = meters.folder / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [file.file.file_path] * 2, "pos": pa.array([0, 3], pa.int64())}), path)
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=2,
        file_size_in_bytes=path.stat().st_size,
    )
    (piece,) = pieces_of([FileScanTask(file.file, {deletes})])
    left = places(rows_of(lake, [piece]))
    assert len(left) == len(whole) - 2
    assert set(left) < set(whole)


def described(size: int, **more: Any) -> Any:
    """Return a file that doesn't exist, as described by a manifest."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table import FileScanTask
    from pyiceberg.typedef import Record

    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="file:///none.parquet",
        partition=Record(),
        record_count=1,
        file_size_in_bytes=size,
        **({"file_format": FileFormat.PARQUET} | more),
    )
    return FileScanTask(file)


def test_pieces_have_a_mib_or_more_and_a_file_has_few() -> None:
    from pyiceberg.manifest import FileFormat

    def sizes(**more: Any) -> list[int]:
        return [one.size_bytes // MIB for one in pieces_of([described(**more)])]

    small = [4, 100_000, 3 * MIB, 3 * MIB + 5, 5 * MIB, 6 * MIB - 5]
    assert sizes(size=6 * MIB, split_offsets=small) == [3, 2, 1]
    assert sizes(size=6 * MIB, split_offsets=[5 * MIB, 3 * MIB, 4]) == [3, 2, 1], "in no order"
    assert sizes(size=6 * MIB, split_offsets=[4, 9 * MIB]) == [6], "behind its end"
    assert sizes(size=6 * MIB) == [6], "where nothing is said of groups"
    assert sizes(size=6 * MIB, split_offsets=small, file_format=FileFormat.ORC) == [6]
    assert sizes(size=MIB - 1, split_offsets=[4, MIB // 2]) == [0]
    many = sizes(size=6_400 * MIB, split_offsets=range(4, 6_400 * MIB, MIB))
    assert LAKE_FILE_PIECES // 2 < len(many) <= LAKE_FILE_PIECES
    assert max(many) < 200


def test_pieces_are_dealt_out_evenly_and_read_in_their_order() -> None:
    file = described(11 * MIB)
    some = [FilePiece(file, low * MIB, high * MIB) for low, high in pairwise([0, 3, 5, 8, 10, 11])]
    assert [[one.size_bytes // MIB for one in mine] for mine in distribute(some, 2)] == [[3, 2, 1], [3, 2]]
    assert len(distribute(some, 50)) == 5
    assert distribute(some[4:], 50) == [(some[4],)]
    assert distribute([], 3) == []
