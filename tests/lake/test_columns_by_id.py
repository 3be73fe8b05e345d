"""Another engine changes the columns of a lake's table, or writes to it: all readers find columns by id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from pyiceberg.types import DoubleType, LongType, StringType

from nadi.lake import LakeStoppedError

from .world import Meters, in_table, table_of

FIELDS = "a int, f float, b string, s struct<x:int,y:string>, l array<struct<p:int>>, m map<string,struct<v:int>>"
EVENTS = (
    b'{"a": 1, "f": 1.5, "b": "old", "s": {"x": 1, "y": "y"}, "l": [{"p": 1}, null], "m": {"k": {"v": 1}}}',
    b'{"a": 2, "l": [], "m": {}}',
    b'{"a": 3, "s": {"x": null}}',
)
Change = Callable[[Any], Any]
pytestmark = pytest.mark.parametrize("meters", [1], indirect=True)


def again(table: Any, *path: str) -> None:
    table.update_schema(allow_incompatible_changes=True).delete_column(path).commit()
    table.update_schema().add_column(path, StringType()).commit()


CHANGES: dict[str, Change] = {
    "renamed": lambda table: table.update_schema().rename_column("b", "c").commit(),
    "dropped": lambda table: table.update_schema(allow_incompatible_changes=True).delete_column("b").commit(),
    "again": lambda table: again(table, "b"),
    "grown": lambda table: (
        table.update_schema().update_column("a", LongType()).update_column("f", DoubleType()).commit()
    ),
    "first": lambda table: table.update_schema().move_first("l").commit(),
    "renamed within": lambda table: (
        table.update_schema().rename_column("s.x", "xx").rename_column("l.element.p", "pp").commit()
    ),
    "again within": lambda table: again(table, "s", "y"),
    "renamed in a map": lambda table: table.update_schema().rename_column("m.value.v", "vv").commit(),
}


def lake_with_events(meters: Meters, **options: Any) -> Any:
    """Return a lake whose table has the events."""
    lake = meters.lake(**{"value_schema": FIELDS, "partition": ""} | options)
    meters.write_events(*EVENTS)
    meters.catch_up(lake)
    return lake


def rows(found: Any, names: list[str]) -> list[Any]:
    return sorted(pa.table(found).select(names).to_pylist(), key=repr)


@pytest.mark.parametrize("change", CHANGES)
def test_a_union_has_the_rows_that_the_changed_table_has(meters: Meters, change: str) -> None:
    lake = lake_with_events(meters)
    before = in_table(lake)
    CHANGES[change](table_of(lake))
    meters.write_events(b'{"a": 4, "f": 2.5, "b": "new", "s": {"x": 4}}')
    united = meters.union()
    meters.catch_up(lake)  # adds the events' fields that the table lacks
    now = in_table(lake)
    found = pa.table(united)
    names = [name for name in now.column_names if not name.startswith("_")]
    plain = [
        name for name in names if name not in ("l", "m")
    ]  # PyIceberg reads null lists and maps of structs as empty
    assert rows(found, plain) == rows(now, plain)
    first = [table.filter(pa.compute.field("a") == 1) for table in (found, now)]
    assert rows(first[0], names) == rows(first[1], names)
    assert rows(found, ["a"]) == [{"a": number} for number in range(1, 5)]
    parts = [batch for split in united.splits(3) for batch in split.batches()]
    assert rows(pa.Table.from_batches(parts), names) == rows(found, names)
    assert polars.DataFrame(united).height == duckdb.table("united").aggregate("count(*)").fetchall()[0][0] == 4
    is_live = found["l"].is_valid().to_pylist()
    assert sorted(zip(found["a"].to_pylist(), is_live, strict=True)) == [(1, True), (2, True), (3, False), (4, False)]
    texts = {row["a"]: row.get("b") for row in found.to_pylist()}
    assert texts[4] == "new"
    assert texts[1] == ("old" if "b" in before.column_names and change not in ("renamed", "dropped", "again") else None)


def test_table_without_position_columns_or_with_required_ones_stops_the_lake(meters: Meters) -> None:
    lake = lake_with_events(meters)
    table_of(lake).update_schema().rename_column("_offset", "place").commit()
    meters.write_events(b'{"a": 4}')
    for use in (lambda: meters.catch_up(lake), lambda: meters.union(), lambda: meters.rebuild("again")):
        with pytest.raises(LakeStoppedError, match="'_offset'"):
            use()
    table_of(lake).update_schema().rename_column("place", "_offset").commit()
    meters.catch_up(lake)
    assert len(in_table(lake)) == 4
    changed = table_of(lake).update_schema(allow_incompatible_changes=True)
    changed.update_column("b", required=True).add_column("more", LongType(), required=True).commit()
    meters.write_events(b'{"a": 5}')
    with pytest.raises(LakeStoppedError, match="'more'"):
        meters.catch_up(lake)


def test_foreign_rows_and_deletes_are_kept(meters: Meters) -> None:
    lake = lake_with_events(meters, partition="b")
    cut = meters.tail
    table_of(lake).append(pa.table({"a": pa.array([8, 9], pa.int32()), "b": ["theirs", "theirs"]}))
    table_of(lake).delete("a = 2")
    table_of(lake).overwrite(pa.table({"a": pa.array([7], pa.int32()), "b": ["theirs"]}), "a = 8")
    meters.write_events(b'{"a": 4}')
    meters.catch_up(lake)
    for at, expected in ((None, [1, 3, 4, 7, 9]), (cut, [1, 3, 7, 9])):
        assert sorted(pa.table(meters.union(at=at))["a"].to_pylist()) == expected
    with pytest.raises(LakeStoppedError):
        meters.rebuild("again")
