"""Partitions of rows equal those of PyIceberg's transforms, value by value."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyiceberg")

from nadi.errors import InvalidArgumentError
from nadi.lake.table.partitions import Partitions, partition_fields

_DAY, _BIG = dt.timedelta(days=1), 2**62


def _rows() -> st.SearchStrategy[list[dict[str, Any]]]:
    moments = st.datetimes(dt.datetime(1600, 1, 1), dt.datetime(2400, 1, 1), timezones=st.just(dt.UTC))
    row = st.fixed_dictionaries(
        {
            "at": st.none() | moments,
            "day": st.none() | st.dates(dt.date(1600, 1, 1), dt.date(2400, 1, 1)),
            "key": st.none() | st.text(max_size=8).filter(lambda text: text.isprintable()),
            "number": st.none() | st.sampled_from([0, 1, -1, 7]) | st.integers(-_BIG, _BIG),
            "data": st.none() | st.binary(max_size=5),
        }
    )
    return st.lists(row, min_size=1, max_size=20)


SCHEMA = pa.schema(
    {"at": pa.timestamp("us", "UTC"), "day": pa.date32(), "key": pa.string(), "number": pa.int64(), "data": pa.binary()}
)
SPECS = (
    "day(at)",
    "hour(at), year(day)",
    "month(at), bucket(16, key), bucket(3, number)",
    "bucket(4, at), bucket(5, day), bucket(6, data)",
    "key, number, day, truncate(3, key), truncate(10, number)",
    "year(at), month(day)",
)


@cache
def _metadata(text: str, schema: pa.Schema = SCHEMA) -> Any:
    from pyiceberg.catalog.memory import InMemoryCatalog

    catalog = InMemoryCatalog("c")
    catalog.create_namespace("a")
    with catalog.create_table_transaction("a.b", schema) as making, making.update_spec() as spec:
        for column, transform in partition_fields(text):
            spec.add_field(column, transform)
    return catalog.load_table("a.b").metadata


@given(_rows(), st.sampled_from(SPECS))
def test_each_row_is_in_the_partition_that_the_transforms_say(rows: list[dict[str, Any]], text: str) -> None:
    metadata = _metadata(text)
    batch = pa.RecordBatch.from_pylist([{**row, "data": row["data"]} for row in rows], schema=SCHEMA)
    found = [(key, row) for key, some in Partitions(metadata).of(batch) for row in some.to_pylist()]
    assert len(found) == len(rows)
    assert sorted(repr(row) for _, row in found) == sorted(map(repr, batch.to_pylist()))
    assert len({key for key, _ in found}) == len(list(Partitions(metadata).of(batch)))
    for key, row in found:
        assert key == tuple(_expected(metadata, row))


def _expected(metadata: Any, row: dict[str, Any]) -> Iterator[Any]:
    schema = metadata.schema()
    for field in metadata.spec().fields:
        value = row[schema.find_column_name(field.source_id)]
        if isinstance(value, dt.datetime):
            value = (value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
        elif isinstance(value, dt.date):
            value = (value - dt.date(1970, 1, 1)).days
        yield None if value is None else field.transform.transform(schema.find_type(field.source_id))(value)


@pytest.mark.parametrize("name", ["log.level", "resource.service.name", "a.b.c.d", "b.c"])
def test_column_with_a_dot_in_a_name_on_its_way_has_partitions(name: str) -> None:
    row = {
        "log.level": "x",
        "resource": {"service.name": "x", "service": {"version": "y"}},
        "a.b": {"c": {"d": "x"}, "e": "y"},
        "b": {"c": "x"},
    }
    batch = pa.RecordBatch.from_pylist([row, {}])
    found = list(Partitions(_metadata(name, batch.schema)).of(batch))
    assert [(key, rows.num_rows) for key, rows in found] == [(("x",), 1), ((None,), 1)]


@pytest.mark.parametrize("text", ["week(at)", "bucket(key)", "bucket(0, key)", "day(2, at)", "day(at", "a,,b", "day()"])
def test_partition_fields_invalid_text_fails(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        partition_fields(text)
